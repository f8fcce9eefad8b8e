// tokenizer.json of a Hugging Face directory, with tokenizer_config.json beside it.
#include <algorithm>
#include <unordered_map>

#include "calib/text/json_fields.h"

namespace kvcc {
namespace {

using nlohmann::json;

constexpr uint64_t kMostBytes = 128 << 20;
constexpr size_t kMaxHoles = 1 << 20;  // ids without token, which take memory all the same

class Reader {
 public:
  Reader(const std::string& path, const json& root, TokenizerSpec& spec) : fields_{path}, root_(root), spec_(spec) {}

  void read() {
    spec_.normalizers = read_normalizer(fields_, member(root_, "normalizer"));
    read_pre_tokenizer(fields_, member(root_, "pre_tokenizer"), spec_);
    read_model(member(root_, "model"));
    read_added(member(root_, "added_tokens"));
    read_post_processor(member(root_, "post_processor"));
  }

  // tokenizer_config.json: the name of the BOS, and whether it is added, which overrules the template.
  void read_settings(const json& settings) {
    const std::string name = fields_.token_text(member(settings, "bos_token"));
    if (spec_.bos_id < 0 || !spec_.adds_bos) {
      if (const auto it = added_.find(name); it != added_.end()) {
        spec_.bos_id = it->second;
      } else if (const auto in_vocab = ids_.find(name); in_vocab != ids_.end()) {
        spec_.bos_id = in_vocab->second;
      }
    }
    if (member(settings, "add_bos_token").is_boolean()) {
      spec_.adds_bos = spec_.bos_id >= 0 && settings["add_bos_token"].get<bool>();
    }
  }

 private:
  static const json& member(const json& object, const char* name) { return JsonFields::member(object, name); }
  Error refuse(const std::string& found, const std::string& wanted = "") const { return fields_.refuse(found, wanted); }

  void read_model(const json& model) {
    const json &vocab = member(model, "vocab"), &merges = member(model, "merges");
    std::string type = fields_.text(model, "type", merges.is_array() ? "BPE" : "");
    if (type.empty() && vocab.is_array()) type = "Unigram";
    if (type == "BPE") {
      read_bpe(model, vocab, merges);
    } else if (type == "Unigram") {
      read_unigram(model, vocab);
    } else {
      throw refuse("tokenizer model " + (type.empty() ? "without a type" : type), "BPE or Unigram");
    }
  }

  void read_bpe(const json& model, const json& vocab, const json& merges) {
    if (!vocab.is_object() || !merges.is_array()) throw refuse("a BPE model without vocab and merges");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!fields_.text(model, name).empty()) {
        throw refuse(std::string(name) + " \"" + fields_.text(model, name) + "\"", "none");
      }
    }
    const json& dropout = member(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0) throw refuse("dropout", "none");
    const std::string unknown = fields_.text(model, "unk_token");
    spec_.byte_fallback = fields_.flag(model, "byte_fallback", false);
    if (spec_.byte_level && spec_.byte_fallback) throw refuse("byte_fallback of a byte-level BPE", "one of the two");
    // Else a byte-level vocabulary whose pre_tokenizer was lost would be taken for another, and characters dropped.
    if (!spec_.byte_level && !spec_.byte_fallback && unknown.empty()) {
      throw refuse("a pre_tokenizer without ByteLevel",
                   "byte-level BPE, or a BPE of characters with byte_fallback or an unk_token");
    }
    spec_.ignore_merges = fields_.flag(model, "ignore_merges", false);
    spec_.fuse_unknown = fields_.flag(model, "fuse_unk", false);
    for (const auto& [token, value] : vocab.items()) {
      const int32_t number = fields_.id(value, "token " + token);
      if (static_cast<size_t>(number) > vocab.size() + kMaxHoles) {
        throw refuse("the id of token " + token + " is " + std::to_string(number) + " in a vocabulary of " +
                         std::to_string(vocab.size()),
                     "few ids without token");
      }
      if (spec_.tokens.size() <= static_cast<size_t>(number)) spec_.tokens.resize(static_cast<size_t>(number) + 1);
      ids_.emplace(token, number);
      std::string& bytes = spec_.tokens[static_cast<size_t>(number)];
      if (!spec_.byte_level) {
        bytes = token;
      } else if (!bytes_of_alphabet(token, bytes)) {
        bytes.clear();
      }
    }
    if (!unknown.empty()) {
      const auto it = ids_.find(unknown);
      if (it == ids_.end()) throw refuse("unk_token \"" + unknown + "\" is not in the vocabulary");
      spec_.unknown = it->second;
    }
    for (const json& merge : merges) read_merge(merge);
  }

  void read_unigram(const json& model, const json& vocab) {
    spec_.kind = ModelKind::unigram;
    if (spec_.byte_level)
      throw refuse("a Unigram model with ByteLevel", "one with Metaspace, or with its marks in the text");
    if (!vocab.is_array() || vocab.size() >= static_cast<size_t>(kMaxVocabulary)) {
      throw refuse("a Unigram model without a list vocab");
    }
    for (const json& entry : vocab) {
      const size_t id = spec_.tokens.size();
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
        throw refuse("vocab " + std::to_string(id) + " is " + json_brief(entry), "a token and its score");
      }
      spec_.tokens.push_back(entry[0].get<std::string>());
      spec_.scores.push_back(entry[1].get<double>());
      ids_[spec_.tokens.back()] = static_cast<int32_t>(id);
    }
    spec_.byte_fallback = fields_.flag(model, "byte_fallback", false);
    if (const json& unknown = member(model, "unk_id"); !unknown.is_null()) {
      spec_.unknown = fields_.id(unknown, "unk_id");
      if (static_cast<size_t>(spec_.unknown) >= spec_.tokens.size()) {
        throw refuse("unk_id is " + std::to_string(spec_.unknown),
                     "below the vocabulary's " + std::to_string(vocab.size()));
      }
    }
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
      AddedToken token = fields_.added(entry);
      token.id = fields_.id(member(entry, "id"), "added token " + token.content);
      if (token.content.empty()) continue;
      added_[token.content] = token.id;
      spec_.added.push_back(std::move(token));
    }
    std::sort(spec_.added.begin(), spec_.added.end(), [](auto& a, auto& b) { return a.id < b.id; });
  }

  // Only a template that begins with a special token matters: that token is the BOS, and it is added.
  void read_post_processor(const json& post) {
    const std::string type = fields_.text(post, "type");
    if (type == "Sequence") {
      const json& parts = member(post, "processors");
      if (!parts.is_array()) throw refuse("a post_processor Sequence without a list of processors");
      for (const json& part : parts) {
        if (fields_.text(part, "type") != "Sequence") read_post_processor(part);
      }
    } else if (type == "TemplateProcessing") {
      const json& single = member(post, "single");
      if (!single.is_array() || single.empty()) return;
      const json& first = member(single[0], "SpecialToken");
      if (first.is_null()) return;
      const std::string name = fields_.text(first, "id");
      const json& ids = member(member(member(post, "special_tokens"), name.c_str()), "ids");
      if (ids.is_array() && ids.size() == 1) {
        spec_.bos_id = fields_.id(ids[0], "token " + name);
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

  const JsonFields fields_;
  const json& root_;
  TokenizerSpec& spec_;
  std::unordered_map<std::string, int32_t> ids_, added_;
};

}  // namespace

TokenizerSpec spec_from_json(const TokenizerSource& source) {
  TokenizerSpec spec;
  spec.place = source.json_path;
  spec.bos_id = source.bos_id;
  const json root = read_json<json>(source.json_path, kMostBytes);
  Reader reader(source.json_path, root, spec);
  reader.read();
  if (!source.config_json_path.empty()) reader.read_settings(read_json<json>(source.config_json_path, kMostBytes));
  return spec;
}

}  // namespace kvcc
