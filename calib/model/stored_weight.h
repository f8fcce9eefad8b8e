// Weights that stay in the model's files and are converted for each use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "formats/weights/model_files.h"

namespace kvcc {

/// A tensor of the files as `type` (f32 or bf16) in its shape. Not copied where the files have it so: then it points
/// into the map, which lives as long as `source`, and must not be written to. Throws Error(bad_input).
at::Tensor read_weight(const TensorSource& source, const std::string& name, at::ScalarType type);

/// A matrix [out, in] of the files, of which there is no copy in memory between two uses.
class StoredWeight {
 public:
  /// A tensor that is there. `source` must outlive this. `type`: of what read() gives, f32 or bf16.
  StoredWeight(const TensorSource& source, std::string name, at::ScalarType type, at::Device device);
  int64_t out() const { return out_; }
  at::Tensor read() const { return read_weight(source_, name_, type_).to(device_); }
  /// Rows of the files' values, f32 [..., in], by ids [...] int64 on the CPU, each below out.
  at::Tensor rows(const at::Tensor& ids) const;

 private:
  const TensorSource& source_;
  std::string name_;
  at::ScalarType type_;
  at::Device device_;
  int64_t out_;
};

}  // namespace kvcc
