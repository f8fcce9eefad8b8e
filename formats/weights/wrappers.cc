#include "formats/weights/wrappers.h"

#include <algorithm>
#include <string_view>

#include "formats/weights/config_fields.h"

namespace kvcc {
namespace {

using nlohmann::json;

constexpr Wrapper kWrappers[] = {
    {"gemma3", "Gemma 3 with images (4B to 27B)", "gemma3_text", true},
    {"mistral3", "Mistral Small 3.1 and 3.2", "mistral", true},
    {"llava", "LLaVA 1.5", "llama", false},
    {"llava_next", "LLaVA 1.6", "llama", false},
    {"idefics3", "Idefics3", "llama", false},
    {"smolvlm", "SmolVLM", "llama", false},
    {"internvl", "InternVL3 (transformers' form)", "qwen2", true},
};

/// What the decoder's names begin with in the files, and in its own.
constexpr struct {
  std::string_view there, here;
} kPrefixes[] = {
    {"language_model.", ""},
    {"model.language_model.", "model."},
    {"model.text_model.", "model."},
};

constexpr std::string_view kImages[] = {"vision_tower.",       "vision_model.",    "multi_modal_projector.",
                                        "connector.",          "image_newline",    "model.vision_tower.",
                                        "model.vision_model.", "model.connector.", "model.multi_modal_projector.",
                                        "model.image_newline"};

}  // namespace

std::span<const Wrapper> wrappers() { return kWrappers; }

const Wrapper* find_wrapper(const std::string& model_type) {
  const auto* it =
      std::find_if(std::begin(kWrappers), std::end(kWrappers), [&](auto& w) { return w.name == model_type; });
  return it == std::end(kWrappers) ? nullptr : it;
}

json text_config(const Wrapper& wrapper, const json& file, const std::string& place) {
  const Fields fields(place, file);
  const json* inner = fields.get("text_config");
  if (inner == nullptr) throw bad_input(place, "text_config is absent", "the decoder's configuration");
  if (!inner->is_object()) throw fields.wrong("text_config", "an object");
  json text = *inner;
  if (!text.contains("model_type")) text["model_type"] = wrapper.architecture;
  text["tie_word_embeddings"] = fields.boolean("tie_word_embeddings", wrapper.tied);
  for (const char* name : {"bos_token_id", "eos_token_id"}) {
    if (fields.get(name)) text[name] = file[name];
  }
  return text;
}

std::string text_tensor(const std::string& name) {
  for (const std::string_view prefix : kImages) {
    if (name.starts_with(prefix)) return "";
  }
  for (const auto& [there, here] : kPrefixes) {
    if (name.starts_with(there)) return std::string(here) + name.substr(there.size());
  }
  return name;
}

}  // namespace kvcc
