#include "calib/text/chat_template.h"

#include <filesystem>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/json.h"
#include "formats/weights/gguf_file.h"

namespace kvcc {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kMostConfig = 64 << 20;  ///< bytes
constexpr const char* kTokens[] = {"bos_token", "eos_token", "unk_token",  "sep_token",
                                   "pad_token", "cls_token", "mask_token", "image_token"};

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// A token is a text or an object with its content.
void add_tokens(const Json& config, Json& tokens) {
  for (const char* name : kTokens) {
    const auto token = config.find(name);
    if (token == config.end() || tokens.contains(name)) continue;
    if (token->is_string()) tokens[name] = *token;
    if (token->is_object() && token->contains("content")) tokens[name] = (*token)["content"];
  }
}

}  // namespace

ChatTemplate::Source ChatTemplate::of_directory(const ModelFiles& files) {
  const fs::path folder = files.path;
  Source source;
  const std::string config_path = (folder / "tokenizer_config.json").string();
  if (is_file(config_path)) {
    const Json config = read_json<Json>(config_path, kMostConfig);
    add_tokens(config, source.tokens);
    if (const auto found = config.find("chat_template"); found != config.end()) {
      source.place = config_path + ": chat_template";
      if (found->is_string()) source.text = found->get<std::string>();
      for (const Json& one : found->is_array() ? *found : Json::array()) {
        if (json_member<std::string>(one, "name", source.place) != "default") continue;
        source.text = json_member<std::string>(one, "template", source.place);
      }
    }
  }
  const std::string map_path = (folder / "special_tokens_map.json").string();
  if (is_file(map_path)) add_tokens(read_json<Json>(map_path, kMostConfig), source.tokens);
  const std::string own = (folder / "chat_template.jinja").string();
  if (is_file(own)) {
    source.text = read_text_file(own);
    source.place = own;
  }
  return source;
}

ChatTemplate::Source ChatTemplate::of_gguf(const ModelFiles& files) {
  Source source;
  const std::string path = files.weight_files.empty() ? files.path : files.weight_files.front();
  const GgufFile file(path);
  source.text = file.text("tokenizer.chat_template").value_or("");
  source.place = path + ": tokenizer.chat_template";
  const auto token = [&](const char* name, int64_t id) {
    const std::vector<std::string>& tokens = files.tokenizer.gguf_tokens;
    if (id >= 0 && id < static_cast<int64_t>(tokens.size())) source.tokens[name] = tokens[static_cast<size_t>(id)];
  };
  token("bos_token", files.tokenizer.bos_id);
  token("eos_token", files.tokenizer.eos_id);
  return source;
}

ChatTemplate::ChatTemplate(const ModelFiles& files)
    : ChatTemplate(fs::is_directory(files.path) ? of_directory(files) : of_gguf(files)) {
  // The delegate has refused an empty text.
}

ChatTemplate::ChatTemplate(Source source)
    : tokens_(std::move(source.tokens)), template_([&] {
        if (!source.text.empty()) return jinja::Template(source.text, source.place);
        throw bad_input(source.place.empty() ? "the model" : source.place, "no chat template",
                        "one in chat_template.jinja, tokenizer_config.json or the GGUF file",
                        "give conversations as texts, with --field, or the ids of a tokenizer that has one");
      }()) {}

std::string ChatTemplate::render(const Json& messages, const Json& tools) const {
  Json variables = tokens_;
  variables["messages"] = messages;
  variables["tools"] = tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = false;
  return template_.render(variables);
}

}  // namespace kvcc
