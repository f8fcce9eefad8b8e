// A weight matrix as dense codes and exact values beside them (SqueezeLLM, arXiv 2306.07629, sections 4.1 and 4.2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcc {

/// y = W x of `rows` outputs and `columns` inputs: every row has a codebook of its own, and some of its weights are
/// kept as they were. C is 2^bits, S the number of those. Decoded by formats/codec/weight_codec.h.
struct QuantisedMatrix {
  std::string name;                ///< of the tensor in a Hugging Face model
  int layer = 0;                   ///< the model's number
  int64_t rows = 0, columns = 0;   ///< columns at most kMostWeightColumns
  std::vector<uint32_t> codes;     ///< [rows, words of a row], packed as rows of linear-1; 0 where the weight is exact
  std::vector<uint16_t> levels;    ///< [rows, C] fp16, finite, a row's do not decrease
  std::vector<uint32_t> row_ends;  ///< [rows] end of the row's exact weights; empty when there are none
  std::vector<uint16_t> exact_columns;  ///< [S] ascending within a row
  std::vector<float> exact_values;      ///< [S]
  double fisher_mass = 0;               ///< sum of F over all weights
  double fisher_error = 0;              ///< sum of F (w - w^)^2
  double squared_error = 0;             ///< sum of (w - w^)^2
  double squared_weight = 0;            ///< sum of w^2
  bool operator==(const QuantisedMatrix&) const = default;
};

/// Columns are 16-bit numbers.
constexpr int64_t kMostWeightColumns = 65536;

/// Bits a weight and their parts: codes as they are packed, levels in fp16, exact weights with a 32-bit value and a
/// 16-bit column (48 bits, as SqueezeLLM's fp16 value and 32-bit index) and a 32-bit end of each row.
struct WeightBits {
  int64_t weights = 0, exact = 0;
  double codes = 0, levels = 0, sparse = 0;
  double total() const { return codes + levels + sparse; }
};

/// Of all matrices together.
inline WeightBits weight_bits(const std::vector<QuantisedMatrix>& matrices) {
  WeightBits bits;
  double codes = 0, levels = 0, sparse = 0;
  for (const QuantisedMatrix& m : matrices) {
    bits.weights += m.rows * m.columns;
    bits.exact += static_cast<int64_t>(m.exact_values.size());
    codes += 32.0 * static_cast<double>(m.codes.size());
    levels += 16.0 * static_cast<double>(m.levels.size());
    sparse += 48.0 * static_cast<double>(m.exact_values.size()) + 32.0 * static_cast<double>(m.row_ends.size());
  }
  if (bits.weights == 0) return bits;
  const auto each = static_cast<double>(bits.weights);
  bits.codes = codes / each;
  bits.levels = levels / each;
  bits.sparse = sparse / each;
  return bits;
}

}  // namespace kvcc
