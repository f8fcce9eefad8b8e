// How the weight types are stored: block sizes and dequantisation, bit-equal to PyPI gguf (gguf.quants.dequantize).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/weights/model_files.h"

namespace kvcc {

/// Storage of a weight type: `bytes` hold `values` consecutive values of a row.
struct BlockFormat {
  WeightType type;
  const char* name;  ///< "Q4_1"
  uint32_t ggml_id;  ///< number in GGUF files
  int64_t values, bytes;
};

const BlockFormat& block_format(WeightType type);
/// nullptr when kvcc does not read that type.
const BlockFormat* block_format_of_ggml(uint32_t ggml_id);
/// Name of any ggml type, also of those kvcc does not read; "number 77" when the number is unknown.
std::string ggml_type_name(uint32_t ggml_id);
/// "F32, F16, …": the types kvcc reads in GGUF files, for messages.
std::string known_weight_types();
/// Names of the types that files of the kind may have.
std::vector<std::string> weight_types(bool gguf);

/// Dequantises whole blocks. out.size() is a multiple of format.values; `in` need not be aligned and holds
/// out.size() / values * bytes bytes. float32 arithmetic, one multiplication then one addition, never fused.
void dequantize(WeightType type, std::span<const std::byte> in, std::span<float> out);

}  // namespace kvcc
