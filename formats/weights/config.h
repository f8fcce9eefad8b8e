// Hyper-parameters from config.json or GGUF metadata.
#pragma once

#include <string>

#include "formats/weights/gguf_file.h"
#include "formats/weights/model_files.h"

namespace kvcc {

/// Reads config.json of a Hugging Face directory. Both spellings of RoPE parameters are understood: rope_theta and
/// rope_scaling, and transformers 5's rope_parameters. Throws Error(bad_input) naming file and field.
DecoderConfig config_from_json(const std::string& path);

/// Reads `<architecture>.*` of the metadata; vocabulary, tied embeddings, biases and the rope factors of Llama 3 are
/// seen from the tensors, because GGUF has no keys for them.
DecoderConfig config_from_gguf(const GgufFile& file);

}  // namespace kvcc
