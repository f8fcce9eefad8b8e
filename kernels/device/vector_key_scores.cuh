// key_scores, vector codebooks: one block decodes a tile of keys of one KV head, undoes the transform before it turns
// each by its position, and takes the dot products with up to kGroupTile queries of the head's group, so that a key is
// decoded, transformed and rotated once for all of them.
//   grid  kvcc_grid_key_scores
//   bound the inverse transform: D multiply-adds an element in f32, read through the cache; shared memory holds the
//   tile
//         twice (<= 33 KiB), queries and partial sums
//   order thread (token, part) sums the channel pairs part, part + kParts, …; parts are added in ascending order
#pragma once

#include "kernels/device/vector_tile.cuh"

namespace kvcc::device {

template <class Config>
struct VectorKeyScores {
  using Params = KvccVectorKeyScoresParams;
  using TileType = VectorTile<Config>;
  static constexpr int kThreads = KVCC_THREADS;
  static constexpr int D = Config::kHeadDim, R = Config::kRotaryDim, G = Config::kGroupTile;
  static constexpr int kTokens = TileType::kTokens, kParts = kThreads / kTokens;
  static_assert(D % 2 == 0 && R % 2 == 0 && R <= D);
  static_assert(Config::kRope == Rope::none ? R == 0 : R > 0);

  struct Shared {
    TileType tile;
    float partial[kParts * G * kTokens];
  };
  struct Place : QueryTile {
    int32_t length, first;
  };
  static KVCC_HD Place place(const Params& p, const Block& b) {
    return {query_tile(b.y, p.scores.group, G), p.scores.cache.lengths[b.z], static_cast<int32_t>(b.x) * kTokens};
  }
  static KVCC_HD int phases(const Params& p, const Block& b) {
    const Place at = place(p, b);
    return at.first < at.length ? 4 : 0;
  }

  static KVCC_HD void phase(int k, const Params& p, const Block& b, int thread, Shared& shared) {
    const Place at = place(p, b);
    const KvccCache& c = p.scores.cache;
    switch (k) {
      case 0:
        decode_vectors(c, p.tensor, b.z, at.head, at.first, at.length, thread, shared.tile);
        break;
      case 1:
        transform_vectors<Config>(c, p.tensor, at.head, at.first, at.length, thread, shared.tile);
        break;
      case 2:
        dot(p, b, at, thread, shared);
        break;
      default:
        store(p, b, at, thread, shared);
    }
  }

 private:
  static KVCC_HD int64_t query_row(const Params& p, const Block& b, const Place& at, int g) {
    return at.row(b.z, p.scores.cache.heads, p.scores.group) + g;
  }

  static KVCC_HD void dot(const Params& p, const Block& b, const Place& at, int thread, Shared& shared) {
    const int token = thread % kTokens, part = thread / kTokens;
    const int32_t position = at.first + token;
    if (position >= at.length) return;
    const float* const key = shared.tile.value + token * TileType::kStride;
    float sum[G];
    KVCC_UNROLL
    for (int g = 0; g < G; ++g) sum[g] = 0.0f;
    for (int pair = part; pair < D / 2; pair += kParts) {
      int x_at = 2 * pair, y_at = 2 * pair + 1;  // also of the channels past R, which are not turned
      if (Config::kRope == Rope::half && pair < R / 2) {
        x_at = pair;
        y_at = pair + R / 2;
      }
      float x = key[x_at], y = key[y_at];
      if (Config::kRope != Rope::none && pair < R / 2) {
        const int64_t angle = static_cast<int64_t>(position) * (R / 2) + pair;
        const float cosine = p.scores.cosine[angle], sine = p.scores.sine[angle];
        const float turned = fused_multiply_add(x, cosine, -multiply(y, sine));
        y = fused_multiply_add(y, cosine, multiply(x, sine));
        x = turned;
      }
      KVCC_UNROLL
      for (int g = 0; g < G; ++g) {
        if (g >= at.queries) continue;
        const int64_t row = query_row(p, b, at, g) * D;
        sum[g] = fused_multiply_add(load<Config::kDtype>(p.scores.query, row + x_at), x, sum[g]);
        sum[g] = fused_multiply_add(load<Config::kDtype>(p.scores.query, row + y_at), y, sum[g]);
      }
    }
    KVCC_UNROLL
    for (int g = 0; g < G; ++g) shared.partial[(part * G + g) * kTokens + token] = sum[g];
  }

  static KVCC_HD void store(const Params& p, const Block& b, const Place& at, int thread, Shared& shared) {
    for (int i = thread; i < at.queries * kTokens; i += kThreads) {
      const int g = i / kTokens, token = i % kTokens;
      if (at.first + token >= at.length) continue;
      float sum = shared.partial[g * kTokens + token];
      for (int part = 1; part < kParts; ++part) sum = add(sum, shared.partial[(part * G + g) * kTokens + token]);
      p.scores.scores[query_row(p, b, at, g) * p.scores.scores_stride + at.first + token] =
          multiply(sum, p.scores.multiplier);
    }
  }
};

}  // namespace kvcc::device
