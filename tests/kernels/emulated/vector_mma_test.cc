// Vector codebooks on tensor cores (key_scores, attention), of every shipped row and of groups of odd widths, in the
// emulator: results within the bounds that the device files state, and the same bits under every schedule.
#include <algorithm>
#include <cmath>

#include "formats/codec/vector_fragments.h"
#include "formats/codec/vector_tables.h"
#include "kernels/device/vector_attention.cuh"
#include "kernels/device/vector_mma_key_scores.cuh"
#include "kernels/reference/attention.h"
#include "tests/kernels/emulated/schedules.h"
#include "tests/kernels/mma_cases.h"
#include "tests/kernels/vector_cases.h"

namespace kvcc::test {
namespace {

using device::Dtype;
using device::Rope;

constexpr int kHeads = 2;

template <bool transform, int dim, int steps, int token_bits, int table_kib, Rope rope, int rotary, int tile,
          Dtype dtype>
struct Config {
  static constexpr bool kTransform = transform, kMixed = false;
  static constexpr int kHeadDim = dim, kRotaryDim = rotary, kGroupTile = tile;
  static constexpr int kSteps = steps, kTokenBits = token_bits;
  static constexpr uint32_t kTableBytes = table_kib * 1024;
  static constexpr Rope kRope = rope;
  static constexpr Dtype kDtype = dtype;
};
template <class K, class V>
struct Both {
  using Key = K;
  using Value = V;
  static constexpr int kRotaryDim = K::kRotaryDim, kGroupTile = K::kGroupTile;
  static constexpr Rope kRope = K::kRope;
  static constexpr Dtype kDtype = K::kDtype;
};

/// Groups as a fit makes them: pairs for a quarter of the coordinates, then fours, of 0 to 6 bits.
VectorQuantiser fitted_like(int dim, bool transform, std::mt19937& random) {
  VectorQuantiser q = make_vector_quantiser({kHeads, dim, transform, 0, 1}, random);
  q.vectors.clear();
  std::normal_distribution<float> normal;
  for (int i = 0, at = 0; i < kHeads * dim; ++i) {
    const int first = i % dim, width = first < dim / 4 ? 2 : 4;
    if (first == 0) at = 0;
    q.width[i] = q.bits[i] = 0;
    if (first != at) continue;
    const int of_group = std::min(width, dim - first), bits = static_cast<int>(random() % 7);
    q.width[i] = static_cast<uint8_t>(of_group);
    q.bits[i] = static_cast<uint8_t>(bits);
    for (int k = 0; k < of_group << bits; ++k) q.vectors.push_back(normal(random) * std::ldexp(1.0f, -first % 9));
    at = first + of_group;
  }
  return q;
}

/// One tensor of two sequences, and what kernels take of it.
struct Side {
  Side(VectorQuantiser quantiser, FragmentsOf of, int steps, const std::vector<int>& lengths, int sink, int residual,
       std::mt19937& random)
      : q(std::move(quantiser)), tables(q), fragments(make_fragments(tables.tensor(), kHeads, of, steps)) {
    std::vector<reference::VectorCache> caches;
    for (const int tokens : lengths) {
      caches.push_back(reference::pack_vector(q, make_rows(tokens, kHeads * q.dim, random), {sink, residual, 0}));
      rows.push_back(reference::unpack(q, caches.back()));
      most.push_back(magnitudes(q, caches.back()));
    }
    std::mt19937 order(3);  // keys and values share their page table
    batch = std::make_unique<VectorBatch>(caches, order);
    tensor = tables.tensor();
    tensor.heads = fragments.heads.data();
    tensor.slots = fragments.slots.data();
    tensor.rows = fragments.rows.data();
    tensor.fragments = fragments.fragments.data();
    tensor.fragment_mean = fragments.mean.data();
    tensor.back = fragments.back.data();
    EXPECT_LE(fragment_steps(tensor, kHeads, of), steps);
  }
  VectorQuantiser q;
  VectorTables tables;
  VectorFragments fragments;
  std::unique_ptr<VectorBatch> batch;
  KvccVectorTensor tensor{};
  std::vector<std::vector<float>> rows, most;  ///< of each sequence: decoded, and magnitudes behind them
};

template <class C>
Side make_side(FragmentsOf of, bool odd, const std::vector<int>& lengths, int residual, std::mt19937& random) {
  VectorQuantiser q = odd ? make_vector_quantiser({kHeads, C::kHeadDim, C::kTransform, 5, 4}, random)
                          : fitted_like(C::kHeadDim, C::kTransform, random);
  Side side(std::move(q), of, C::kSteps, lengths, 1, residual, random);
  EXPECT_LE(side.fragments.table_bytes, C::kTableBytes);
  for (int h = 0; h < kHeads; ++h) EXPECT_LE(side.tensor.token_bits[h], C::kTokenBits);
  return side;
}

/// Bounds of a query's scores: 2^-8 of what vector_mma.cuh states.
template <class C>
std::vector<double> score_bounds(const std::vector<float>& most, const float* q, int head, int tokens,
                                 double multiplier) {
  constexpr int D = C::kHeadDim, R = C::kRotaryDim;
  std::vector<double> bounds(tokens);
  for (int t = 0; t < tokens; ++t) {
    const auto k = [&](int c) { return std::max<double>(most[(size_t(t) * kHeads + head) * D + c], 0x1p-14); };
    double sum = 0;
    for (int i = 0; i < R / 2; ++i) {
      const bool interleaved = C::kRope == Rope::interleaved;
      const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + R / 2;
      sum += std::hypot(q[a], q[b]) * std::hypot(k(a), k(b));
    }
    for (int c = R; c < D; ++c) sum += std::fabs(q[c]) * k(c);
    bounds[t] = 0x1p-8 * multiplier * sum;
  }
  return bounds;
}

template <class C>
std::vector<float> make_queries(int sequences, int group, std::vector<uint8_t>& bytes, std::mt19937& random) {
  const auto query = make_rows(sequences * kHeads * group, C::kHeadDim, random);
  bytes = as_dtype(query, C::kDtype);
  return query;
}

const std::vector<int> kLengths = kSmall ? std::vector<int>{70, 5} : std::vector<int>{333, 70};
constexpr int kStride = 340;
constexpr float kMultiplier = 0.125f;

template <class C>
void check_keys(uint32_t seed, bool odd = false) {
  constexpr int D = C::kHeadDim;
  std::mt19937 random(seed);
  for (const int window : kSmall ? std::vector<int>{0} : std::vector<int>{0, 90}) {
    Side side = make_side<C>(FragmentsOf::keys, odd, kLengths, 20, random);
    const int group = C::kGroupTile == 8 ? 3 : 11, sequences = static_cast<int>(kLengths.size());
    const MmaRope rope = make_mma_rope(C::kRotaryDim, C::kRope == Rope::interleaved, kStride);
    std::vector<uint8_t> bytes;
    const auto query = make_queries<C>(sequences, group, bytes, random);
    const auto found = under_all_schedules([&](const emulator::Options& options) {
      std::vector<float> scores(size_t(sequences) * kHeads * group * kStride, -1.0f);
      KvccVectorMmaKeyScoresParams p{};
      p.scores.cache = side.batch->view();
      p.scores.rope = rope.view();
      p.scores.query = bytes.data();
      p.scores.scores = scores.data();
      p.scores.scores_stride = kStride;
      p.scores.multiplier = kMultiplier;
      p.scores.group = group;
      p.scores.splits = 2;
      p.scores.window = window;
      p.tensor = side.tensor;
      emulator::run<device::VectorMmaKeyScores<C>>(p, kvcc_grid_mma_key_scores(&p.scores), options,
                                                   "vector key_scores");
      return bits_of(scores);
    });
    double squares = 0, bounds_squares = 0;
    for (int s = 0; s < sequences; ++s) {
      const int tokens = kLengths[s];
      const std::vector<float> of_sequence(query.begin() + size_t(s) * kHeads * group * D,
                                           query.begin() + size_t(s + 1) * kHeads * group * D);
      const auto wanted = reference::key_scores(side.rows[s], of_sequence, kHeads, D, group,
                                                {C::kRope == Rope::interleaved, rope.frequencies, 1}, kMultiplier);
      for (int row = 0; row < kHeads * group; ++row) {
        const auto bounds =
            score_bounds<C>(side.most[s], of_sequence.data() + size_t(row) * D, row / group, tokens, kMultiplier);
        for (int t = 0; t < kStride; ++t) {
          const float score = bits_float(found[(size_t(s) * kHeads * group + row) * kStride + t]);
          if (t >= tokens || (window > 0 && t < tokens - window)) {
            ASSERT_EQ(score, -1.0f) << s << " " << row << " " << t;
            continue;
          }
          const double error = score - wanted.value[size_t(row) * tokens + t];
          ASSERT_LE(std::fabs(error), bounds[t]) << s << " " << row << " " << t;
          squares += error * error;
          bounds_squares += bounds[t] * bounds[t];
        }
      }
    }
    EXPECT_LT(std::sqrt(squares / bounds_squares), 0.125) << "on the whole far below the bounds";
  }
}

template <class C>
void check_attention(uint32_t seed, bool odd = false) {
  using K = typename C::Key;
  using V = typename C::Value;
  constexpr int D = K::kHeadDim;
  std::mt19937 random(seed);
  for (const int splits : kSmall ? std::vector<int>{2} : std::vector<int>{1, 3}) {
    Side key = make_side<K>(FragmentsOf::keys, odd, kLengths, 20, random);
    Side value = make_side<V>(FragmentsOf::values, odd, kLengths, 20, random);
    const int group = C::kGroupTile == 8 ? 3 : 11, sequences = static_cast<int>(kLengths.size());
    const int window = splits == 3 ? 200 : 0;
    const MmaRope rope = make_mma_rope(C::kRotaryDim, C::kRope == Rope::interleaved, kStride);
    std::vector<uint8_t> bytes;
    const auto query = make_queries<K>(sequences, group, bytes, random);
    const auto found = under_all_schedules([&](const emulator::Options& options) {
      std::vector<float> out(size_t(sequences) * kHeads * group * D, -1.0f);
      std::vector<float> partial(size_t(sequences) * splits * kHeads * group * (D + 2), -1.0f);
      KvccVectorAttentionParams p{};
      p.attention.key = key.batch->view();
      p.attention.value = value.batch->view();
      p.attention.rope = rope.view();
      p.attention.query = bytes.data();
      p.attention.partial = partial.data();
      p.attention.out = out.data();
      p.attention.multiplier = kMultiplier;
      p.attention.group = group;
      p.attention.splits = splits;
      p.attention.window = window;
      p.key = key.tensor;
      p.value = value.tensor;
      emulator::run<device::VectorAttention<C>>(p, kvcc_grid_mma_attention(&p.attention), options, "vector attention");
      if (splits > 1) {
        emulator::run<device::VectorAttentionMerge<C>>(p, kvcc_grid_mma_attention_merge(&p.attention), options,
                                                       "vector attention_merge");
      }
      return bits_of(out);
    });
    double squares = 0, bounds_squares = 0;
    for (int s = 0; s < sequences; ++s) {
      const int tokens = kLengths[s], first = window > 0 ? std::max(0, tokens - window) : 0;
      const std::vector<float> of_sequence(query.begin() + size_t(s) * kHeads * group * D,
                                           query.begin() + size_t(s + 1) * kHeads * group * D);
      const auto scores = reference::key_scores(key.rows[s], of_sequence, kHeads, D, group,
                                                {C::kRope == Rope::interleaved, rope.frequencies, 1}, kMultiplier);
      for (int row = 0; row < kHeads * group; ++row) {
        const int head = row / group;
        const auto bounds =
            score_bounds<K>(key.most[s], of_sequence.data() + size_t(row) * D, head, tokens, kMultiplier);
        double peak = -1e30, total = 0;
        for (int t = first; t < tokens; ++t) peak = std::max(peak, scores.value[size_t(row) * tokens + t]);
        std::vector<double> p(tokens);
        for (int t = first; t < tokens; ++t) total += p[t] = std::exp(scores.value[size_t(row) * tokens + t] - peak);
        for (int d = 0; d < D; ++d) {
          const auto v = [&](const std::vector<float>& of, int t) {
            return double{of[(size_t(t) * kHeads + head) * D + d]};
          };
          double wanted = 0, bound = 0, greatest = 0x1p-14;
          for (int t = first; t < tokens; ++t) wanted += p[t] / total * v(value.rows[s], t);
          for (int t = first; t < tokens; ++t) {
            bound += p[t] / total * bounds[t] * std::fabs(v(value.rows[s], t) - wanted);
            greatest = std::max(greatest, v(value.most[s], t));
          }
          bound += 0x1p-8 * greatest;
          const double error = bits_float(found[(size_t(s) * kHeads * group + row) * D + d]) - wanted;
          ASSERT_LE(std::fabs(error), bound) << s << " " << row << " " << d;
          squares += error * error;
          bounds_squares += bound * bound;
        }
      }
    }
    EXPECT_LT(std::sqrt(squares / bounds_squares), 0.125) << "on the whole far below the bounds";
  }
}

// Groups of 1 to 4 coordinates in any order, which take more steps.
TEST(EmulatedVectorMma, KeysOfOddGroups) {
  check_keys<Config<true, 64, 8, 192, 16, Rope::half, 32, 8, Dtype::f16>>(1, true);
}
TEST(EmulatedVectorMma, AttentionOfOddGroups) {
  check_attention<Both<Config<true, 64, 8, 192, 16, Rope::half, 64, 8, Dtype::f16>,
                       Config<true, 64, 8, 192, 16, Rope::none, 0, 8, Dtype::f16>>>(2, true);
}
// Tables that no block has room for are read from global memory.
TEST(EmulatedVectorMma, KeysWithTablesInGlobalMemory) {
  check_keys<Config<true, 64, 4, 128, 128, Rope::half, 64, 8, Dtype::f16>>(3);
}

// The shipped rows.
#define KVCC_FORM(name)
#define KVCC_HEAD_DIM(head_dim)
#define KVCC_ROPE(rope)
#define KVCC_DTYPE(dtype)
constexpr bool head = true, channels = false;
#define KVCC_SHIP_VECTOR_MMA(form, head_dim, steps, token_bits, table_kib, rope, rotary_dim, group_tile, dtype,    \
                             registers, shared_bytes)                                                              \
  TEST(EmulatedVectorMmaKeyScores, form##_d##head_dim##_s##steps##_##rope##rotary_dim##_g##group_tile##_##dtype) { \
    if (kSmall && head_dim > 80) GTEST_SKIP() << "the same accesses as narrow heads";                              \
    check_keys<                                                                                                    \
        Config<form, head_dim, steps, token_bits, table_kib, Rope::rope, rotary_dim, group_tile, Dtype::dtype>>(   \
        head_dim);                                                                                                 \
  }
#include "kernels/list/vector_mma_key_scores.inc"
#define KVCC_SHIP_VECTOR_ATTENTION(key_form, key_steps, key_bits, key_kib, value_form, value_steps, value_bits,       \
                                   value_kib, head_dim, rope, rotary_dim, group_tile, dtype, registers, shared_bytes) \
  TEST(EmulatedVectorAttention,                                                                                       \
       key_form##_v_##value_form##_d##head_dim##_##rope##rotary_dim##_g##group_tile##_##dtype) {                      \
    if (kSmall && head_dim > 80) GTEST_SKIP() << "the same accesses as narrow heads";                                 \
    check_attention<Both<                                                                                             \
        Config<key_form, head_dim, key_steps, key_bits, key_kib, Rope::rope, rotary_dim, group_tile, Dtype::dtype>,   \
        Config<value_form, head_dim, value_steps, value_bits, value_kib, Rope::none, 0, group_tile, Dtype::dtype>>>(  \
        head_dim);                                                                                                    \
  }
#include "kernels/list/vector_attention.inc"

}  // namespace
}  // namespace kvcc::test
