// The CPU readers against the reference in double, on every instruction set of the machine.
#include <hwy/targets.h>
#ifndef KVCC_NO_RAPIDCHECK  // test_full_neon.py: Debian has it for the build machine only
#include <rapidcheck.h>
#endif

#include <array>
#include <random>

#include "kernels/reference/attention.h"
#include "tests/kernels/cpu/readers_cases.h"

namespace kvcc::test {
namespace {

constexpr float kMultiplier = 0.17f;
const float kNan = std::nanf("");

reference::Rotation rotation_of(const ReaderBatch& b) {
  return {b.rope.interleaved, b.rope.frequencies, b.rope.factor};
}

/// Runs a unit over its grid in ranges of `step` blocks.
void run(const ReaderBatch& b, int family, const void* params, KvccGrid grid, uint32_t step) {
  const uint32_t blocks = grid.x * grid.y * grid.z;
  for (uint32_t i = 0; i < blocks; i += step) {
    kvcc_cpu_run(family, &b.config, params, &b.tables, i, std::min(blocks, i + step));
  }
}

std::vector<float> rows_of(const std::vector<float>& all, int s, int sequences) {
  const size_t each = all.size() / sequences;
  return {all.begin() + s * each, all.begin() + (s + 1) * each};
}

/// Attention of a case, [S, H * group, Dv].
std::vector<float> attend(ReaderBatch& b, const std::vector<float>& query, uint32_t step = 1) {
  const auto bytes = b.bytes_of(query);
  const size_t rows = static_cast<size_t>(b.sequences()) * b.heads * b.of.group;
  std::vector<float> out(rows * b.of.value_dim, kNan), partial(rows * b.of.splits * (b.of.value_dim + 2), kNan);
  KvccAttentionParams p{};
  p.key = b.key_view;
  p.value = b.value_view;
  p.rope = b.rope_view;
  p.query = bytes.data();
  p.partial = b.of.splits > 1 ? partial.data() : nullptr;
  p.out = out.data();
  p.multiplier = kMultiplier;
  p.group = b.of.group;
  p.splits = b.of.splits;
  p.window = b.of.window;
  run(b, KVCC_CPU_ATTENTION, &p, kvcc_grid_mma_attention(&p), step);
  if (b.of.splits > 1) run(b, KVCC_CPU_ATTENTION_MERGE, &p, kvcc_grid_mma_attention_merge(&p), step);
  return out;
}

double check_attention(const ReaderCase& c, int arithmetic) {
  SCOPED_TRACE(c.name());
  ReaderBatch b(c, arithmetic);
  const auto query = make_rows(static_cast<int64_t>(b.sequences()) * b.heads * c.group, c.head_dim, b.random());
  const auto found = attend(b, query);
  const ReaderErrors errors = stated_errors(c, arithmetic);
  const int dv = c.value_dim;
  Ratio ratio;
  for (int s = 0; s < b.sequences(); ++s) {
    const auto q = rows_of(query, s, b.sequences());
    const reference::AttentionShape shape{b.heads, c.head_dim, dv, c.group, c.window, kMultiplier};
    const auto wanted = reference::attention(b.key.values[s], b.value.values[s], q, shape, rotation_of(b));
    const auto scores =
        reference::key_scores(b.key.values[s], q, b.heads, c.head_dim, c.group, rotation_of(b), kMultiplier);
    const auto bounds = reader_score_bounds(b, s, q, kMultiplier, errors.key);
    const int64_t tokens = c.lengths[s];
    for (int row = 0; row < b.heads * c.group; ++row) {
      if (!c.serves_key && row < c.group) continue;
      for (int ch = 0; ch < dv; ++ch) {
        const size_t i = static_cast<size_t>(row) * dv + ch;
        double bound = 0;
        for (int64_t t = b.first_visible(s); t < tokens; ++t) {
          const int64_t at = (t * b.heads + row / c.group) * dv + ch;
          const double p = std::exp(scores.value[row * tokens + t] - wanted.peak[row]) / wanted.sum[row];
          bound += p * (2 * bounds[row * tokens + t] * std::fabs(b.value.values[s][at] - wanted.value[i]) +
                        2 * errors.value * b.value.spread[s][at]);
        }
        ratio.add(found[static_cast<size_t>(s) * wanted.value.size() + i], wanted.value[i], bound,
                  "sequence " + std::to_string(s) + " row " + std::to_string(row) + " channel " + std::to_string(ch));
      }
    }
  }
  return ratio.greatest;
}

double check_scores(const ReaderCase& c, int arithmetic) {
  SCOPED_TRACE(c.name());
  ReaderBatch b(c, arithmetic);
  const auto query = make_rows(static_cast<int64_t>(b.sequences()) * b.heads * c.group, c.head_dim, b.random());
  const auto bytes = b.bytes_of(query);
  const int64_t stride = *std::max_element(c.lengths.begin(), c.lengths.end()) + 3;
  const int rows = b.heads * c.group;
  std::vector<float> scores(b.sequences() * rows * stride, 12345.0f);
  KvccMmaKeyScoresParams p{b.key_view,  b.rope_view, bytes.data(), scores.data(), stride,
                           kMultiplier, c.group,     c.splits,     c.window};
  run(b, KVCC_CPU_KEY_SCORES, &p, kvcc_grid_mma_key_scores(&p), 2);
  Ratio ratio;
  for (int s = 0; s < b.sequences(); ++s) {
    const auto q = rows_of(query, s, b.sequences());
    const auto wanted =
        reference::key_scores(b.key.values[s], q, b.heads, c.head_dim, c.group, rotation_of(b), kMultiplier);
    const auto bounds = reader_score_bounds(b, s, q, kMultiplier, stated_errors(c, arithmetic).key);
    for (int row = 0; row < rows; ++row) {
      for (int64_t t = 0; t < stride; ++t) {
        const float found = scores[(static_cast<int64_t>(s) * rows + row) * stride + t];
        const bool visible = t >= b.first_visible(s) && t < c.lengths[s] && (c.serves_key || row >= c.group);
        if (!visible) {
          EXPECT_EQ(found, 12345.0f) << "written at " << t;
          continue;
        }
        const int64_t i = row * int64_t{c.lengths[s]} + t;
        ratio.add(found, wanted.value[i], bounds[i], "row " + std::to_string(row) + " token " + std::to_string(t));
      }
    }
  }
  return ratio.greatest;
}

double check_mix(const ReaderCase& c, int arithmetic) {
  SCOPED_TRACE(c.name());
  ReaderBatch b(c, arithmetic);
  const int64_t stride = *std::max_element(c.lengths.begin(), c.lengths.end()) + 3;
  const int rows = b.heads * c.group, dv = c.value_dim;
  auto weights = make_rows(static_cast<int64_t>(b.sequences()) * rows, stride, b.random());
  for (int s = 0; s < b.sequences(); ++s) {  // what is not visible is not read
    for (int row = 0; row < rows; ++row) {
      float* w = weights.data() + (static_cast<int64_t>(s) * rows + row) * stride;
      std::fill(w, w + b.first_visible(s), kNan);
      std::fill(w + c.lengths[s], w + stride, kNan);
    }
  }
  const auto bytes = b.bytes_of(weights);
  std::vector<float> out(static_cast<size_t>(b.sequences()) * rows * dv, kNan), partial(out.size() * c.splits, kNan);
  KvccValueMixParams p{};
  p.cache = b.value_view;
  p.weights = bytes.data();
  p.partial = partial.data();
  p.out = out.data();
  p.weights_stride = stride;
  p.group = c.group;
  p.splits = c.splits;
  p.window = c.window;
  run(b, KVCC_CPU_VALUE_MIX, &p, kvcc_grid_mma_value_mix(&p), 3);
  if (c.splits > 1) run(b, KVCC_CPU_VALUE_MERGE, &p, kvcc_grid_value_merge(&p, dv), 1);
  const double error = stated_errors(c, arithmetic).value;
  Ratio ratio;
  for (int s = 0; s < b.sequences(); ++s) {
    for (int row = 0; row < rows; ++row) {
      const float* w = weights.data() + (static_cast<int64_t>(s) * rows + row) * stride;
      for (int ch = 0; ch < dv; ++ch) {
        double wanted = 0, bound = 0;
        for (int t = b.first_visible(s); t < c.lengths[s]; ++t) {
          const int64_t at = (int64_t{t} * b.heads + row / c.group) * dv + ch;
          wanted += static_cast<double>(w[t]) * b.value.values[s][at];
          bound += error * std::fabs(w[t]) * b.value.spread[s][at];
        }
        ratio.add(out[(static_cast<size_t>(s) * rows + row) * dv + ch], wanted, bound,
                  "row " + std::to_string(row) + " channel " + std::to_string(ch));
      }
    }
  }
  return ratio.greatest;
}

void check_all(const ReaderCase& c) {
  for (const int arithmetic : {KVCC_ARITHMETIC_F32, KVCC_ARITHMETIC_I16}) {
    SCOPED_TRACE(arithmetic == KVCC_ARITHMETIC_F32 ? "f32" : "i16");
    const double scores = check_scores(c, arithmetic), mix = check_mix(c, arithmetic),
                 attention = check_attention(c, arithmetic);
    if (getenv("KVCC_SHOW_RATIOS") != nullptr) {
      printf("%s %s: scores %.3f mix %.3f attention %.3f\n", arithmetic ? "i16" : "f32", c.name().c_str(), scores, mix,
             attention);
    }
  }
  SCOPED_TRACE("f64");
  const double attention = check_attention(c, KVCC_ARITHMETIC_F64);
  if (getenv("KVCC_SHOW_RATIOS") != nullptr) printf("f64 %s: attention %.3f\n", c.name().c_str(), attention);
}

std::vector<ReaderCase> edge_cases() {
  std::vector<ReaderCase> all;
  const auto add = [&](auto change) {
    ReaderCase c;
    change(c);
    c.seed = static_cast<uint32_t>(all.size() + 1);
    all.push_back(c);
  };
  for (const int bits : {2, 3, 4, 8}) {
    for (const int d : {16, 48, 64, 80, 96, 128, 192, 256}) {
      add([&](ReaderCase& c) {
        c.head_dim = c.value_dim = c.rotary = d;
        c.key_bits = c.value_bits = {static_cast<uint8_t>(bits)};
        c.rope = d % 64 == 0 ? KVCC_ROPE_HALF : KVCC_ROPE_INTERLEAVED;
      });
    }
  }
  for (const int bits : {2, 3, 4}) {  // i16 without a tile of levels, all of the channels turned, part of them or none
    for (const int d : {32, 64, 96, 128, 256}) {
      add([&](ReaderCase& c) {
        c.head_dim = c.value_dim = d;
        c.rotary = d < 64 ? 0 : d < 256 ? 64 : 256;
        c.rope = c.rotary == 0 ? KVCC_ROPE_NONE : KVCC_ROPE_HALF;
        c.key_bits = c.value_bits = {static_cast<uint8_t>(bits)};
        c.group = d == 128 ? 5 : 3;
        c.outliers = 0;
      });
    }
  }
  for (const double outliers : {0.0, 0.05, 0.9}) {
    for (const int rope : {KVCC_ROPE_NONE, KVCC_ROPE_HALF, KVCC_ROPE_INTERLEAVED}) {
      add([&](ReaderCase& c) {
        c.outliers = outliers;
        c.rope = rope;
        c.rotary = rope == KVCC_ROPE_NONE ? 0 : 32;  // part of the channels
        c.key_bits = {3, 2};
      });
    }
  }
  for (const int group : {1, 2, 4, 5, 8, 16, 19}) add([&](ReaderCase& c) { c.group = group; });
  for (const int axis : {KVCC_AXIS_CHANNEL, KVCC_AXIS_TOKEN}) {
    for (const double outliers : {0.0, 0.01}) {
      add([&](ReaderCase& c) {
        c.key_axis = axis;
        c.value_axis = 1 - axis;
        c.outliers = outliers;
        c.sink = 5;
      });
    }
  }
  for (const int dtype : {KVCC_DTYPE_F16, KVCC_DTYPE_BF16}) add([&](ReaderCase& c) { c.dtype = dtype; });
  add([](ReaderCase& c) { c.lengths = {0}; });
  add([](ReaderCase& c) { c.lengths = {0, 1, 130, 70}, c.splits = 3, c.sink = 2; });
  add([](ReaderCase& c) { c.lengths = {70, 0, 130}, c.contiguous = true, c.sink = 2; });
  add([](ReaderCase& c) { c.lengths = {75, 140, 66}, c.sink = 70, c.residual = 9; });
  add([](ReaderCase& c) { c.lengths = {150, 40, 61, 12}, c.residual = 37, c.splits = 2; });
  add([](ReaderCase& c) { c.lengths = {150, 20}, c.residual = 10, c.window = 50; });
  add([](ReaderCase& c) { c.lengths = {100}, c.sink = 3, c.residual = 20, c.window = 5; });
  add([](ReaderCase& c) { c.lengths = {192}, c.sink = 0, c.window = 128; });
  add([](ReaderCase& c) { c.lengths = {337}, c.splits = 7, c.window = 300; });
  add([](ReaderCase& c) { c.head_dim = 64, c.value_dim = 128; });
  add([](ReaderCase& c) { c.serves_key = false; });
  return all;
}

TEST(CpuReaders, AreWithinTheirBounds) {
  for (const ReaderCase& c : edge_cases()) check_all(c);
}

TEST(CpuReaders, AreWithinTheirBoundsOnEveryTarget) {
  const auto cases = edge_cases();
  int64_t targets = hwy::SupportedTargets();
  for (int64_t left = targets; left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(left & -left));
    for (size_t i = 0; i < cases.size(); i += 3) check_all(cases[i]);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

/// A case of numbers any(low, high).
template <class Any>
ReaderCase any_case(const Any& any) {
  const auto bits = [&] { return static_cast<uint8_t>(std::array{2, 3, 4, 8}[any(0, 3)]); };
  ReaderCase c;
  c.head_dim = 16 * any(1, 8);
  c.value_dim = 16 * any(1, 8);
  const int heads = any(1, 2);
  c.key_bits.clear();
  c.value_bits.clear();
  for (int h = 0; h < heads; ++h) {
    c.key_bits.push_back(bits());
    c.value_bits.push_back(bits());
  }
  c.key_axis = any(0, 1);
  c.value_axis = any(0, 1);
  c.outliers = std::array{0.0, 0.01, 0.05, 0.9}[any(0, 3)];
  c.rope = any(0, 2);
  c.rotary = c.rope == KVCC_ROPE_NONE ? 0 : 16 * any(1, c.head_dim / 16);
  c.group = any(1, 18);
  c.splits = any(1, 4);
  c.sink = any(0, 70);
  c.residual = any(0, 70);
  c.window = any(0, 3) == 0 ? any(1, 200) : 0;
  c.dtype = any(0, 2);
  c.contiguous = any(0, 1) == 1;
  c.lengths.clear();
  for (int s = any(1, 2); s > 0; --s) c.lengths.push_back(any(0, 260));
  c.seed = static_cast<uint32_t>(any(1, 1 << 20));
  return c;
}

TEST(CpuReaders, AreWithinTheirBoundsWhateverTheConfiguration) {
#ifdef KVCC_NO_RAPIDCHECK
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    check_all(any_case([&](int low, int high) { return std::uniform_int_distribution(low, high)(random); }));
  }
#else
  EXPECT_TRUE(rc::check([] {
    check_all(any_case([](int low, int high) { return *rc::gen::inRange(low, high + 1); }));
    RC_ASSERT(!testing::Test::HasFailure());
  }));
#endif
}

TEST(CpuReaders, DoNotDependOnTheDivisionIntoBlockRanges) {
  for (const int arithmetic : {KVCC_ARITHMETIC_F32, KVCC_ARITHMETIC_I16}) {
    ReaderCase c;
    c.lengths = {337, 12, 200};
    c.splits = 3;
    c.group = 19;
    ReaderBatch b(c, arithmetic);
    const auto query = make_rows(3 * b.heads * c.group, c.head_dim, b.random());
    const auto one = attend(b, query, 1);
    for (const uint32_t step : {2u, 5u, 1000u}) EXPECT_EQ(attend(b, query, step), one) << step;
  }
}

}  // namespace
}  // namespace kvcc::test
