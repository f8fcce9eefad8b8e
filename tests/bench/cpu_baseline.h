// What the packed cache is compared with: decode attention over plain rows, written as well as we can. Rows are fp16 or
// f32, keys turned already, contiguous by head; each row is loaded and converted once for all queries of its group.
// Blocked by tiles of 64 or 16 tokens (the fewer are faster from memory when rows are long, the more in the caches)
// with an online softmax, split over the context as the packed units are, SSE4, AVX2 with F16C, AVX-512 or NEON chosen
// at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcc::bench {

/// Letters: H key/value heads, D head dimension, T tokens.
struct RowsParams {
  const void* key;     ///< [H, T, D]
  const void* value;   ///< [H, T, D]
  const float* query;  ///< [H * group, D]
  float* partial;      ///< [splits, H * group, D + 2]: sum of values, maximum (log2), sum; null when splits is 1
  float* out;          ///< [H * group, D]
  int64_t tokens;
  int32_t heads, head_dim;
  int32_t group;     ///< queries of a head: 3 with D 64, or 4 with D 128
  int32_t splits;    ///< parts of the context, in whole tiles
  float multiplier;  ///< of the softmax
  int32_t tile;      ///< tokens of a tile, 16 or 64
};

/// Blocks [first, last) of splits x H, splits fastest. rows_merge() after all of them when splits > 1. Throws
/// Error(usage) for a shape that is not served.
void rows_attention_f16(const RowsParams& params, uint32_t first, uint32_t last);
void rows_attention_f32(const RowsParams& params, uint32_t first, uint32_t last);
void rows_merge(const RowsParams& params);

/// Reads `bytes` (a multiple of 1024), 64-byte aligned, as fast as it can; the result keeps the compiler honest.
uint64_t read_memory(const void* data, size_t bytes);

/// Instruction set that was chosen.
const char* baseline_target();

}  // namespace kvcc::bench
