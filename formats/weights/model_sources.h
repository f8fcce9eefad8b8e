// The two kinds of model on disk behind TensorSource.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "formats/weights/model_files.h"

namespace kvcc {

ModelFiles open_gguf_model(const std::string& path);
ModelFiles open_directory_model(const std::string& path);

/// Names for a message, which a file may have made many and long: "a, b and 3 more".
inline std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 200, kLength = 300;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i > 0 ? ", " : "") + names[i].substr(0, kLength);
  if (names.size() > kMost) text += " and " + std::to_string(names.size() - kMost) + " more";
  return text;
}

}  // namespace kvcc
