// The two kinds of model on disk behind TensorSource.
#pragma once

#include <string>

#include "formats/weights/model_files.h"

namespace kvcc {

ModelFiles open_gguf_model(const std::string& path);
ModelFiles open_directory_model(const std::string& path);

}  // namespace kvcc
