// The part "pre_tokenizer" of tokenizer.json.
#include "calib/text/json_fields.h"
#include "calib/text/utf8.h"

namespace kvcc {
namespace {

using nlohmann::json;

constexpr size_t kMaxStages = 64;

// ASCII punctuation and Unicode's category P, as PyPI tokenizers' Punctuation has it.
constexpr const char* kPunctuation = R"([!-/:-@\[-`{-~\p{P}])";

class Reader {
 public:
  Reader(const JsonFields& fields, TokenizerSpec& spec) : fields_(fields), spec_(spec) {}

  void read(const json& pre, bool nested) {
    const std::string type = fields_.text(pre, "type");
    if (type == "Sequence") {
      const json& parts = JsonFields::member(pre, "pretokenizers");
      if (!parts.is_array() || nested || parts.size() > kMaxStages) {
        throw fields_.refuse("a pre_tokenizer Sequence that is not a list of plain steps",
                             "at most " + std::to_string(kMaxStages) + " of them");
      }
      for (const json& part : parts) read(part, true);
    } else if (spec_.byte_level) {
      throw fields_.refuse("pre_tokenizer " + type + " after ByteLevel", "ByteLevel to be the last");
    } else {
      read_step(type, pre);
    }
  }

 private:
  void read_step(const std::string& type, const json& pre) {
    SplitStage stage;
    if (type == "ByteLevel") {
      if (fields_.flag(pre, "use_regex", true)) stage.pattern = kByteLevelPattern;
      if (fields_.flag(pre, "add_prefix_space", true)) stage.prefix = " ";
      spec_.byte_level = true;
    } else if (type == "Metaspace") {
      read_metaspace(pre, stage);
    } else if (type == "Digits") {
      stage.pattern = fields_.flag(pre, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)";
    } else if (type == "Whitespace") {  // the words and signs of Rust's regex \w+|[^\w\s]+
      stage.pattern =
          R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}\s]+)";
      stage.behaviour = Behaviour::removed;
      stage.invert = true;
    } else if (type == "WhitespaceSplit") {
      stage.pattern = R"(\s)";
      stage.behaviour = Behaviour::removed;
    } else if (type == "Punctuation") {
      stage.pattern = kPunctuation;
      stage.behaviour = behaviour(fields_.text(pre, "behavior", "Isolated"), "Punctuation");
    } else if (type == "Split") {
      stage.pattern = fields_.pattern(pre, "pre_tokenizer Split").regex;
      stage.behaviour = behaviour(fields_.text(pre, "behavior"), "Split");
      stage.invert = fields_.flag(pre, "invert", false);
    } else {
      throw fields_.refuse("pre_tokenizer " + (type.empty() ? "without a type" : type),
                           "Sequence, Split, Digits, ByteLevel, Metaspace, Whitespace, WhitespaceSplit or Punctuation");
    }
    spec_.stages.push_back(std::move(stage));
  }

  Behaviour behaviour(const std::string& name, const char* of) const {
    if (name == "Isolated") return Behaviour::isolated;
    if (name == "Removed") return Behaviour::removed;
    if (name == "MergedWithPrevious") return Behaviour::merged_with_previous;
    if (name == "MergedWithNext") return Behaviour::merged_with_next;
    if (name == "Contiguous") return Behaviour::contiguous;
    throw fields_.refuse(std::string("pre_tokenizer ") + of + " with behavior " + name,
                         "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
  }

  void read_metaspace(const json& pre, SplitStage& stage) const {
    const std::string mark = fields_.text(pre, "replacement", kSpaceMark);
    if (mark.empty() || utf8_length(mark, 0) != mark.size()) {
      throw fields_.refuse("pre_tokenizer Metaspace with replacement \"" + mark + "\"", "one character");
    }
    stage.space = mark;
    // Older files say add_prefix_space, which is always or never.
    const std::string scheme =
        fields_.text(pre, "prepend_scheme", fields_.flag(pre, "add_prefix_space", true) ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      throw fields_.refuse("pre_tokenizer Metaspace with prepend_scheme " + scheme, "always, first or never");
    }
    if (scheme != "never") stage.prefix = mark;
    stage.prefix_first = scheme == "first";
    if (fields_.flag(pre, "split", true)) {
      stage.pattern = fields_.pattern({{"pattern", {{"String", mark}}}}, "Metaspace").regex;
      stage.behaviour = Behaviour::merged_with_next;
    }
  }

  const JsonFields& fields_;
  TokenizerSpec& spec_;
};

}  // namespace

void read_pre_tokenizer(const JsonFields& fields, const json& pre, TokenizerSpec& spec) {
  if (!pre.is_null()) Reader(fields, spec).read(pre, false);
}

}  // namespace kvcc
