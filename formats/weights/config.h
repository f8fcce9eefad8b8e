// Hyper-parameters from config.json or GGUF metadata.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "formats/weights/architecture.h"
#include "formats/weights/gguf_file.h"
#include "formats/weights/model_files.h"

namespace kvcc {

/// Reads config.json of a Hugging Face directory. Both spellings of RoPE parameters are understood: rope_theta and
/// rope_scaling, and transformers 5's rope_parameters. Throws Error(bad_input) naming file and field.
DecoderConfig config_from_json(const std::string& path);

/// Reads `<architecture>.*` of the metadata; vocabulary, tied embeddings, biases and the rope factors of Llama 3 are
/// seen from the tensors, because GGUF has no keys for them.
DecoderConfig config_from_gguf(const GgufFile& file);

/// Dimensions of latent attention, in the words of config.json.
void read_latent(const nlohmann::json& object, const std::string& place, DecoderConfig& config);

/// What an architecture's configuration says beyond sizes: windows, experts, multipliers, caps, layers without
/// rotation. `object` in the words of config.json, which GGUF keys were put into; sizes and rope of `config` are set.
/// `sliding_rope`: the rotation of sliding layers, where it is one of its own. Throws Error(bad_input) at `place`.
void read_features(const std::string& place, const Architecture& architecture, const nlohmann::json& object,
                   const std::optional<RopeInfo>& sliding_rope, DecoderConfig& config);

}  // namespace kvcc
