// tokenizer.model of a Hugging Face directory, with tokenizer_config.json and added_tokens.json where they are.
#include <algorithm>
#include <map>

#include "calib/text/json_fields.h"
#include "formats/core/file.h"

namespace kvcc {
namespace {

using nlohmann::json;

constexpr uint64_t kMostBytes = 128 << 20;

int32_t number_of(const std::string& text, const JsonFields& fields) {
  const bool digits = !text.empty() && text.size() < 9 &&
                      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || std::stol(text) >= kMaxVocabulary) throw fields.refuse("added_tokens_decoder: id \"" + text + "\"");
  return static_cast<int32_t>(std::stol(text));
}

}  // namespace

TokenizerSpec spec_from_sentencepiece(const TokenizerSource& source) {
  TokenizerSpec spec;
  spec.place = source.sentencepiece_path;
  const MappedFile file(source.sentencepiece_path);
  if (file.bytes().size() > kMostBytes) {
    throw tokenizer_error(spec.place, std::to_string(file.bytes().size()) + " bytes", "at most 128 MiB");
  }
  set_sentencepiece({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, spec);

  std::map<int32_t, AddedToken> added;
  for (AddedToken& token : spec.added) added[token.id] = std::move(token);
  spec.added.clear();
  std::map<std::string, int32_t> ids;
  for (size_t id = 0; id < spec.tokens.size(); ++id) ids.emplace(spec.tokens[id], static_cast<int32_t>(id));
  if (!source.added_json_path.empty()) {
    const JsonFields fields{source.added_json_path};
    const json names = read_json<json>(source.added_json_path, kMostBytes);
    for (const auto& [name, id] : names.items()) {
      const int32_t number = fields.id(id, "added token " + name);
      added[number] = {.content = name, .id = number};
    }
  }
  json settings;
  if (!source.config_json_path.empty()) {
    const JsonFields fields{source.config_json_path};
    settings = read_json<json>(source.config_json_path, kMostBytes);
    const json& decoder = JsonFields::member(settings, "added_tokens_decoder");
    if (!decoder.is_null() && !decoder.is_object()) throw fields.refuse("added_tokens_decoder is no object");
    for (const auto& [id, entry] : decoder.items()) {
      AddedToken token = fields.added(entry);
      token.id = number_of(id, fields);
      token.normalized = false;  // SentencePiece normalises a text as a whole
      added[token.id] = std::move(token);
    }
  }
  for (auto& [id, token] : added) {
    if (token.content.empty()) continue;
    ids[token.content] = id;
    spec.added.push_back(std::move(token));
  }
  const JsonFields fields{source.config_json_path};
  const json& bos = JsonFields::member(settings, "bos_token");
  const auto named = ids.find(bos.is_null() ? "<s>" : fields.token_text(bos));
  spec.bos_id = named == ids.end() ? source.bos_id : named->second;
  // Models of this kind begin with their BOS unless they say otherwise, as llama.cpp has it too.
  spec.adds_bos = spec.bos_id >= 0 && fields.flag(settings, "add_bos_token", true);
  return spec;
}

}  // namespace kvcc
