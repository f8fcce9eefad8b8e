// What a quantised weight means, and how one row's are encoded.
#pragma once

#include <cstdint>
#include <span>

#include "formats/core/quantised_matrix.h"

namespace kvcc {

/// Weights [rows, columns] in f32: the level of the code, or the exact value.
void decode_matrix(const QuantisedMatrix& matrix, int bits, std::span<float> out);

/// Codes of one row: of each weight the nearest level (a tie goes to the lower), 0 where `exact` [columns] is set.
/// levels [2^bits], non-decreasing; out [words of a row] of zeros or codes before.
void encode_weights(std::span<const float> row, std::span<const uint8_t> exact, std::span<const float> levels, int bits,
                    std::span<uint32_t> out);

/// 32-bit words of a row of `columns` codes.
int64_t weight_row_words(int64_t columns, int bits);

}  // namespace kvcc
