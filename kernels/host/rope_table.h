// The tables of cosines and sines that the kernels take. Host only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/layout/mma_launch.h"
#include "kernels/host/rope_frequencies.h"

namespace kvcc::host {

/// linear-1: table of positions 0 … positions - 1, [positions, rotary_dim / 2] each.
struct RopeTables {
  std::vector<float> cosine, sine;
};

/// Angle position * frequency in f32, as models compute it; its cosine and sine rounded from double. `multiplier` is
/// the attention factor of scalings that have one.
RopeTables rope_tables(std::span<const float> frequencies, int64_t positions, float multiplier = 1.0f);

/// Turns a row x [heads, dim] in place, the pairs of each head by these cosines and sines, [pairs]. `interleaved`:
/// pairs are neighbours (rope kind "interleaved"), else channels i and i + pairs. Channels from 2 pairs on stay as they
/// are.
void rotate_row(float* x, int heads, int dim, int pairs, bool interleaved, const float* cosine, const float* sine);

/// Positions of the relative tables: a tile starts anywhere in a block of 64 and has 64 tokens.
constexpr int64_t kRelativePositions = 2 * KVCC_ROPE_BLOCK;

/// mma-1: the tables that KvccRope points at, and the f32 relative ones of KvccCpuTables.
struct BlockRopeTables {
  std::vector<float> base_cosine, base_sine;                  ///< [blocks, rotary_dim / 2], times the attention factor
  std::vector<uint16_t> relative_cosine, relative_sine;       ///< fp16 [128, rotary_dim / 2]
  std::vector<float> relative_cosine_f32, relative_sine_f32;  ///< the same, [128, rotary_dim / 2]
  int64_t base_rows = 0;
};

/// Base rows that `positions` positions need.
int64_t rope_base_rows(int64_t positions);

/// Angles are products of the model's f32 frequency and the position, exact in double: unlike the model's own f32
/// product, which is off by up to 2^-8 rad at 128K, they lose nothing with the context. Throws Error(failed) for
/// frequencies that are not finite, and for more than 2^24 positions.
BlockRopeTables block_rope_tables(const RopeFrequencies& frequencies, int64_t positions);

}  // namespace kvcc::host
