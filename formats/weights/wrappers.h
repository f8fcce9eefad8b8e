// Models of images and text. config.json has the decoder's part in text_config; the files have the decoder's tensors
// below a prefix, beside those of the images, which are left out: text alone is calibrated.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace kvcc {

struct Wrapper {
  const char* name;          ///< model_type of config.json
  const char* models;        ///< for people
  const char* architecture;  ///< of the decoder, where text_config does not say
  bool tied;                 ///< the configuration class's tie_word_embeddings
};

/// Against transformers, by tests/calib/model/test_architectures.py.
std::span<const Wrapper> wrappers();
/// nullptr when it is not one.
const Wrapper* find_wrapper(const std::string& model_type);

/// The decoder's configuration in the words of its own config.json. Throws Error(bad_input) at `place`.
nlohmann::json text_config(const Wrapper& wrapper, const nlohmann::json& file, const std::string& place);

/// The decoder's own name of a tensor of such a file ("model.norm.weight"), "" for a tensor of images. Names that are
/// neither stay, so that they are refused.
std::string text_tensor(const std::string& name);

}  // namespace kvcc
