#include "formats/codec/weight_codec.h"

#include <algorithm>
#include <vector>

#include "formats/codec/element.h"
#include "formats/layout/linear.h"

namespace kvcc {

int64_t weight_row_words(int64_t columns, int bits) {
  return linear::row_words(static_cast<uint32_t>(columns), static_cast<uint32_t>(bits));
}

void decode_matrix(const QuantisedMatrix& m, int bits, std::span<float> out) {
  const size_t codes = size_t{1} << bits, words = static_cast<size_t>(weight_row_words(m.columns, bits));
  std::vector<float> levels(codes);
  size_t entry = 0;
  for (size_t r = 0; r < static_cast<size_t>(m.rows); ++r) {
    std::transform(m.levels.begin() + r * codes, m.levels.begin() + (r + 1) * codes, levels.begin(), half_to_float);
    const uint32_t* row = m.codes.data() + r * words;
    float* to = out.data() + r * m.columns;
    for (uint32_t c = 0; c < m.columns; ++c) to[c] = levels[linear::get_code(row, c, static_cast<uint32_t>(bits))];
    for (const size_t end = m.row_ends.empty() ? 0 : m.row_ends[r]; entry < end; ++entry) {
      to[m.exact_columns[entry]] = m.exact_values[entry];
    }
  }
}

void encode_weights(std::span<const float> row, std::span<const uint8_t> exact, std::span<const float> levels, int bits,
                    std::span<uint32_t> out) {
  std::vector<uint8_t> codes(row.size());
  for (size_t c = 0; c < row.size(); ++c) {
    const uint32_t code = nearest_level(levels.data(), static_cast<int>(levels.size()), row[c]);
    codes[c] = exact[c] ? uint8_t{0} : static_cast<uint8_t>(code);
  }
  for (uint32_t word = 0; word < out.size(); ++word) {
    out[word] = linear::make_word(word, static_cast<uint32_t>(row.size()), static_cast<uint32_t>(bits),
                                  [&](uint32_t i) { return uint32_t{codes[i]}; });
  }
}

}  // namespace kvcc
