#include <algorithm>
#include <unordered_map>

#include "calib/text/bpe_spec.h"
#include "formats/core/json.h"

namespace kvcc {
namespace {

using nlohmann::json;

constexpr uint64_t kMostBytes = 128 << 20;
constexpr int64_t kMaxVocabulary = 1 << 24;
constexpr size_t kMaxStages = 64;
constexpr size_t kMaxHoles = 1 << 20;  // ids without token, which take memory all the same

class Reader {
 public:
  Reader(const std::string& path, const json& root, BpeSpec& spec) : path_(path), root_(root), spec_(spec) {}

  void read() {
    read_normalizer(member(root_, "normalizer"));
    read_model(member(root_, "model"));
    read_added(member(root_, "added_tokens"));
    const json& pre = member(root_, "pre_tokenizer");
    if (pre.is_null()) throw refuse("no pre_tokenizer", "one with ByteLevel");
    read_pre_tokenizer(pre);
    if (!byte_level_) throw refuse("a pre_tokenizer without ByteLevel", "byte-level BPE");
    read_post_processor(member(root_, "post_processor"));
  }

 private:
  Error refuse(const std::string& found, const std::string& wanted = "") const {
    return tokenizer_error(path_, found, wanted);
  }
  static const json& member(const json& object, const char* name) {
    static const json kNull;
    if (!object.is_object()) return kNull;
    const auto it = object.find(name);
    return it == object.end() ? kNull : *it;
  }
  std::string text(const json& object, const char* name, const char* otherwise = "") const {
    const json& v = member(object, name);
    if (v.is_null()) return otherwise;
    if (!v.is_string()) throw refuse(std::string(name) + " is not a string");
    return v.get<std::string>();
  }
  bool flag(const json& object, const char* name, bool otherwise) const {
    const json& v = member(object, name);
    if (v.is_null()) return otherwise;
    if (!v.is_boolean()) throw refuse(std::string(name) + " is not true or false");
    return v.get<bool>();
  }
  int32_t id(const json& v, const std::string& what) const {
    if (!v.is_number_integer() || v.get<int64_t>() < 0 || v.get<int64_t>() >= kMaxVocabulary) {
      throw refuse("the id of " + what + " is not a number from 0 to " + std::to_string(kMaxVocabulary - 1));
    }
    return v.get<int32_t>();
  }

  void read_normalizer(const json& normalizer) {
    if (normalizer.is_null()) return;
    const json& parts = member(normalizer, "normalizers");
    if (text(normalizer, "type") == "Sequence" && parts.is_array() && parts.empty()) return;
    throw refuse("normalizer " + text(normalizer, "type", "without a type"), "none");
  }

  void read_model(const json& model) {
    const json &vocab = member(model, "vocab"), &merges = member(model, "merges");
    const std::string type = text(model, "type", merges.is_array() ? "BPE" : "");
    if (type != "BPE") throw refuse("tokenizer model " + (type.empty() ? "without a type" : type), "BPE");
    if (!vocab.is_object() || !merges.is_array()) throw refuse("a BPE model without vocab and merges");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!text(model, name).empty()) throw refuse(std::string(name) + " \"" + text(model, name) + "\"", "none");
    }
    if (flag(model, "byte_fallback", false)) throw refuse("byte_fallback", "byte-level BPE");
    const json& dropout = member(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0) throw refuse("dropout", "none");
    spec_.ignore_merges = flag(model, "ignore_merges", false);
    spec_.fuse_unknown = flag(model, "fuse_unk", false);
    for (const auto& [token, value] : vocab.items()) {
      const int32_t number = id(value, "token " + token);
      if (static_cast<size_t>(number) > vocab.size() + kMaxHoles) {
        throw refuse("the id of token " + token + " is " + std::to_string(number) + " in a vocabulary of " +
                         std::to_string(vocab.size()),
                     "few ids without token");
      }
      if (spec_.tokens.size() <= static_cast<size_t>(number)) spec_.tokens.resize(static_cast<size_t>(number) + 1);
      ids_.emplace(token, number);
      std::string& bytes = spec_.tokens[static_cast<size_t>(number)];
      if (!bytes_of_alphabet(token, bytes)) bytes.clear();
    }
    if (const std::string unknown = text(model, "unk_token"); !unknown.empty()) {
      const auto it = ids_.find(unknown);
      if (it == ids_.end()) throw refuse("unk_token \"" + unknown + "\" is not in the vocabulary");
      spec_.unknown = it->second;
    }
    for (const json& merge : merges) read_merge(merge);
  }

  void read_merge(const json& merge) {
    std::string left, right;
    if (merge.is_string()) {
      const std::string both = merge.get<std::string>();
      const size_t blank = both.find(' ');
      left = both.substr(0, blank);
      right = blank == std::string::npos ? "" : both.substr(blank + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    }
    const auto a = ids_.find(left), b = ids_.find(right);
    if (a == ids_.end() || b == ids_.end()) {
      throw refuse("merge " + std::to_string(spec_.merges.size()) + " \"" + left + " " + right + "\"",
                   "two tokens of the vocabulary");
    }
    spec_.merges.emplace_back(a->second, b->second);
  }

  void read_added(const json& added) {
    if (added.is_null()) return;
    if (!added.is_array()) throw refuse("added_tokens is not a list");
    for (const json& entry : added) {
      AddedToken token;
      token.content = text(entry, "content");
      token.id = id(member(entry, "id"), "added token " + token.content);
      token.special = flag(entry, "special", false);
      token.lstrip = flag(entry, "lstrip", false);
      token.rstrip = flag(entry, "rstrip", false);
      token.single_word = flag(entry, "single_word", false);
      // Special tokens are looked for in the text as it is.
      token.normalized = flag(entry, "normalized", !token.special);
      if (token.content.empty()) continue;
      added_[token.content] = token.id;
      spec_.added.push_back(std::move(token));
    }
    std::sort(spec_.added.begin(), spec_.added.end(), [](auto& a, auto& b) { return a.id < b.id; });
  }

  void read_pre_tokenizer(const json& pre) {
    const std::string type = text(pre, "type");
    if (type == "Sequence") {
      const json& parts = member(pre, "pretokenizers");
      if (!parts.is_array() || nested_++ > 0 || parts.size() > kMaxStages) {
        throw refuse("a pre_tokenizer Sequence that is not a list of plain steps",
                     "at most " + std::to_string(kMaxStages) + " of them");
      }
      for (const json& part : parts) read_pre_tokenizer(part);
    } else if (byte_level_) {
      throw refuse("pre_tokenizer " + type + " after ByteLevel", "ByteLevel to be the last");
    } else if (type == "ByteLevel") {
      const bool pattern = flag(pre, "use_regex", true), prefix = flag(pre, "add_prefix_space", true);
      spec_.stages.push_back({pattern ? kByteLevelPattern : "", true, true, prefix});
      byte_level_ = true;
    } else if (type == "Digits") {
      const bool each = flag(pre, "individual_digits", false);
      spec_.stages.push_back({each ? R"(\p{N})" : R"(\p{N}+)", true, true, false});
    } else if (type == "Split") {
      read_split(pre);
    } else {
      throw refuse("pre_tokenizer " + (type.empty() ? "without a type" : type), "Sequence, Split, Digits or ByteLevel");
    }
  }

  void read_split(const json& pre) {
    const json& pattern = member(pre, "pattern");
    SplitStage stage;
    if (member(pattern, "Regex").is_string()) {
      stage.pattern = pattern["Regex"].get<std::string>();
    } else if (member(pattern, "String").is_string()) {
      for (const char c : pattern["String"].get<std::string>()) {
        const auto byte = static_cast<unsigned char>(c);
        const bool plain = byte >= 0x80 || std::isalnum(byte) || std::isspace(byte);
        stage.pattern += plain ? std::string(1, c) : std::string("\\") + c;
      }
    }
    if (stage.pattern.empty()) throw refuse("pre_tokenizer Split without a pattern");
    const std::string behaviour = text(pre, "behavior");
    const bool invert = flag(pre, "invert", false);
    if (behaviour == "Removed") {
      stage.keep_gaps = !invert;
      stage.keep_matches = invert;
    } else if (behaviour != "Isolated") {
      throw refuse("pre_tokenizer Split with behavior " + behaviour, "Isolated or Removed");
    }
    spec_.stages.push_back(std::move(stage));
  }

  // Only a template that begins with a special token matters: that token is the BOS, and it is added.
  void read_post_processor(const json& post) {
    const std::string type = text(post, "type");
    if (type == "Sequence") {
      const json& parts = member(post, "processors");
      if (!parts.is_array()) throw refuse("a post_processor Sequence without a list of processors");
      for (const json& part : parts) {
        if (text(part, "type") != "Sequence") read_post_processor(part);
      }
    } else if (type == "TemplateProcessing") {
      const json& single = member(post, "single");
      if (!single.is_array() || single.empty()) return;
      const json& first = member(single[0], "SpecialToken");
      if (first.is_null()) return;
      const std::string name = text(first, "id");
      const json& ids = member(member(member(post, "special_tokens"), name.c_str()), "ids");
      if (ids.is_array() && ids.size() == 1) {
        spec_.bos_id = id(ids[0], "token " + name);
      } else {
        const auto it = added_.find(name);
        if (it == added_.end()) throw refuse("the post_processor begins with \"" + name + "\", which has no id");
        spec_.bos_id = it->second;
      }
      spec_.adds_bos = true;
    } else if (!type.empty() && type != "ByteLevel") {
      throw refuse("post_processor " + type, "ByteLevel or TemplateProcessing");
    }
  }

 public:
  // tokenizer_config.json: the name of the BOS, and for files without a template whether it is added.
  void read_settings(const json& settings) {
    const json& bos = member(settings, "bos_token");
    const std::string name = bos.is_object() ? text(bos, "content") : bos.is_string() ? bos.get<std::string>() : "";
    if (spec_.bos_id < 0 || !spec_.adds_bos) {
      if (const auto it = added_.find(name); it != added_.end()) {
        spec_.bos_id = it->second;
      } else if (const auto in_vocab = ids_.find(name); in_vocab != ids_.end()) {
        spec_.bos_id = in_vocab->second;
      }
    }
    if (member(root_, "post_processor").is_null() && member(settings, "add_bos_token").is_boolean()) {
      spec_.adds_bos = spec_.bos_id >= 0 && settings["add_bos_token"].get<bool>();
    }
  }

 private:
  const std::string& path_;
  const json& root_;
  BpeSpec& spec_;
  std::unordered_map<std::string, int32_t> ids_, added_;
  bool byte_level_ = false;
  int nested_ = 0;
};

}  // namespace

BpeSpec spec_from_json(const TokenizerSource& source) {
  BpeSpec spec;
  spec.place = source.json_path;
  spec.bos_id = source.bos_id;
  const json root = read_json<json>(source.json_path, kMostBytes);
  Reader reader(source.json_path, root, spec);
  reader.read();
  if (!source.config_json_path.empty()) reader.read_settings(read_json<json>(source.config_json_path, kMostBytes));
  return spec;
}

}  // namespace kvcc
