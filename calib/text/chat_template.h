// A model's own chat template: conversations to the text that the model was trained on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "calib/text/jinja/template.h"
#include "formats/weights/model_files.h"

namespace kvcc {

/// From chat_template.jinja or tokenizer_config.json of a Hugging Face directory, or a GGUF file's
/// tokenizer.chat_template. Of several named ones "default" is it.
class ChatTemplate {
 public:
  /// Throws Error(bad_input) for a model without one, or with one that jinja::Template refuses.
  explicit ChatTemplate(const ModelFiles& files);
  /// As transformers' apply_chat_template(messages, tools=tools, tokenize=False) has it, without a prompt for an
  /// answer; but strftime_now is not defined, so that the text does not depend on the day. Throws Error(bad_input).
  std::string render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools) const;

 private:
  struct Source {
    std::string text, place;
    nlohmann::ordered_json tokens = nlohmann::ordered_json::object();  ///< "bos_token": "<s>", …
  };
  static Source of_directory(const ModelFiles& files);
  static Source of_gguf(const ModelFiles& files);
  explicit ChatTemplate(Source source);

  nlohmann::ordered_json tokens_;
  jinja::Template template_;
};

}  // namespace kvcc
