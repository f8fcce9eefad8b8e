// Matrices that safetensors hold as several tensors: FP8 with a scale a block (DeepSeek-V3), and 4-bit integers with
// scales and zero-points of groups (GPTQ, AWQ). Nothing in the files is trusted.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/weights/architecture.h"
#include "formats/weights/safetensors_file.h"

namespace kvcc {

/// How a model's weights are packed: quantization_config of config.json.
struct WeightPacking {
  enum class Kind { none, fp8, gptq, awq };
  Kind kind = Kind::none;
  int64_t block_rows = 0, block_columns = 0;  ///< of FP8: outputs and inputs that share a scale
  int64_t group = 0;                          ///< inputs that share scale and zero-point; 0: all of them
  int zero_offset = 0;                        ///< GPTQ's first format stores zero-points less one
};

/// Throws Error(bad_input) for a method or a form of it that kvcc does not read, by name.
WeightPacking read_packing(const std::string& config_path);

/// A matrix [outputs, inputs] and the tensors that it is made of, in files that must outlive it.
struct PackedTensor {
  WeightType type = WeightType::fp8_block;
  std::vector<int64_t> shape;
  WeightPacking packing;
  const SafeTensor* values = nullptr;
  const SafeTensor* scales = nullptr;
  const SafeTensor* zeros = nullptr;  ///< of GPTQ and AWQ
  const SafeTensor* order = nullptr;  ///< of GPTQ: the group of each input; may be null
  /// Values as f32: one multiplication each, of the value less its zero-point with the scale as f32. Throws
  /// Error(bad_input) at `place`.
  void read(const std::string& place, std::span<float> out) const;
};

/// Of the expected matrices those that are packed, by name ("…q_proj.weight"); `tensors` by their names in the files.
/// Throws Error(bad_input) that lists parts that are missing or misshaped.
std::map<std::string, PackedTensor> find_packed(const std::string& place, const WeightPacking& packing,
                                                const std::vector<ExpectedTensor>& expected,
                                                const std::map<std::string, const SafeTensor*>& tensors);

}  // namespace kvcc
