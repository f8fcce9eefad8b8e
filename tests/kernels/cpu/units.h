// What the tests of the CPU units share: a layer's tensor whose configuration is known at run time, the built-in units
// on every instruction set of the machine, blocks in any order and in several threads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "hwy/targets.h"
#include "kernels/cpu/units.h"
#include "tests/kernels/mma_append.h"

namespace kvcc::test {

/// Calls check() with each instruction set that the units are built for and the machine has; dispatch is restored.
template <class Check>
void on_every_target(const Check& check) {
  hwy::SetSupportedTargetsForTest(0);
  const int64_t all = hwy::SupportedTargets() & (HWY_SSE4 | HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL | HWY_NEON);
  ASSERT_NE(all, 0);
  for (int64_t left = all; left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    EXPECT_STREQ(kvcc_cpu_target(), hwy::TargetName(left & -left));
    SCOPED_TRACE(kvcc_cpu_target());
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

/// One layer's keys or values.
struct Layer {
  Tensor tensor = Tensor::key;
  int dim = 64;
  std::vector<uint8_t> bits{3, 3, 3};  ///< of the heads
  Axis axis = Axis::channel;
  bool sparse = true;
  int tail = 0;  ///< of the token axis
  Dtype dtype = Dtype::f32;
  int heads() const { return static_cast<int>(bits.size()); }
  int columns() const { return heads() * dim; }
};

/// A layer with made-up levels, scales and thresholds, as the units take it.
class Quantised {
 public:
  Quantised(const Layer& layer, std::mt19937& random) : layer(layer) {
    if (layer.axis == Axis::channel) {
      q_ = make_channel_quantiser(layer.heads(), layer.dim, layer.bits, layer.sparse, random);
    } else {
      q_ = make_token_quantiser(layer.heads(), layer.dim, layer.bits, layer.sparse ? layer.tail : 0, random);
    }
    // Levels reach beyond [-1, 1], so that it shows whether an outlier's code is that of its clamped value.
    for (float& level : table().levels) level *= 1.5f;
  }
  LevelTable& table() {
    return std::visit([](auto& q) -> LevelTable& { return q.table; }, q_);
  }
  MmaCache pack(std::span<const float> x, const reference::CacheOptions& options) const {
    return std::visit([&](const auto& q) { return reference::pack_mma(q, layer.tensor, x, options); }, q_);
  }
  std::vector<float> unpack(const MmaCache& cache) const {
    return std::visit([&](const auto& q) { return reference::unpack(q, cache); }, q_);
  }
  /// Bytes that no part of the layout may leave alone show.
  MmaCache untouched(int64_t tokens, const reference::CacheOptions& options) const {
    return std::visit([&](const auto& q) { return untouched_cache(q, layer.tensor, tokens, options); }, q_);
  }
  void set_constants(KvccCache& c) const {
    std::visit([&](const auto& q) { test::set_constants(c, q); }, q_);
  }
  KvccCpuConfig config() const {
    const KvccCpuTensor tensor = {layer.dim, layer.axis == Axis::token ? KVCC_AXIS_TOKEN : KVCC_AXIS_CHANNEL,
                                  layer.sparse ? KVCC_SPARSE_LISTED : KVCC_SPARSE_NONE};
    const int dtype = layer.dtype == Dtype::f32   ? KVCC_DTYPE_F32
                      : layer.dtype == Dtype::f16 ? KVCC_DTYPE_F16
                                                  : KVCC_DTYPE_BF16;
    KvccCpuConfig config{{16, 7, 7}, {16, 7, 7}, KVCC_ROPE_NONE, 0, dtype};  // the other tensor's is not read
    (layer.tensor == Tensor::key ? config.key : config.value) = tensor;
    return config;
  }
  KvccCpuTables tables() {
    KvccCpuTables t{};
    const bool key = layer.tensor == Tensor::key;
    (key ? t.key_levels : t.value_levels) = table().levels.data();
    (key ? t.key_bits : t.value_bits) = table().bits.data();
    (key ? t.key_codes : t.value_codes) = table().stride;
    return t;
  }
  int family(int of_key, int of_value) const { return layer.tensor == Tensor::key ? of_key : of_value; }

  Layer layer;

 private:
  std::variant<ChannelQuantiser, TokenQuantiser> q_;
};

/// All blocks of a grid, in runs of random lengths and in a random order, in `threads` threads.
inline void run_blocks(int family, const KvccCpuConfig& config, const void* params, const KvccCpuTables& tables,
                       const KvccGrid& grid, uint32_t seed, int threads = 1) {
  std::mt19937 random(seed);
  const uint32_t count = grid.x * grid.y * grid.z;
  std::vector<std::pair<uint32_t, uint32_t>> runs;
  for (uint32_t first = 0; first < count;) {
    const uint32_t last = std::min<uint32_t>(count, first + 1 + random() % (seed == 0 ? count : 5));
    runs.emplace_back(first, last);
    first = last;
  }
  if (seed != 0) std::shuffle(runs.begin(), runs.end(), random);
  const auto work = [&](size_t thread) {
    for (size_t i = thread; i < runs.size(); i += static_cast<size_t>(threads)) {
      kvcc_cpu_run(family, &config, params, &tables, runs[i].first, runs[i].second);
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work, static_cast<size_t>(t));
  work(0);
  for (std::thread& other : others) other.join();
}

/// One call of pack: select where the axis has one, then pack. p.cache, x, first, count and status are set.
inline void pack_call(Quantised& q, KvccPackParams p, uint32_t seed, int threads = 1) {
  const size_t tokens = static_cast<size_t>(p.cache.sequences) * p.count;
  std::vector<uint32_t> selected(tokens * 2 * p.cache.tail, 0xabababab);
  std::vector<float> inliers(tokens * 2, bits_float(0x7fc00000u));
  if (q.layer.axis == Axis::token) {
    p.selected = selected.data();
    p.inliers = inliers.data();
    run_blocks(q.family(KVCC_CPU_PACK_KEY_SELECT, KVCC_CPU_PACK_VALUE_SELECT), q.config(), &p, q.tables(),
               kvcc_grid_mma_pack_select(&p), seed, threads);
  }
  run_blocks(q.family(KVCC_CPU_PACK_KEY, KVCC_CPU_PACK_VALUE), q.config(), &p, q.tables(), kvcc_grid_mma_pack(&p), seed,
             threads);
}

/// Appends rows of x [T, H, D] to a cache of one sequence that has `first` tokens, in calls of the given lengths.
/// Returns the status.
inline uint32_t append(Quantised& q, const std::vector<float>& x, int32_t first, const std::vector<int>& calls,
                       uint32_t seed, KvccCache cache, int32_t repeat_above = 0) {
  uint32_t status = 0;
  q.set_constants(cache);
  for (const int count : calls) {
    const std::vector<float> part(x.begin() + first * q.layer.columns(),
                                  x.begin() + (first + count) * q.layer.columns());
    const std::vector<uint8_t> bytes = as_dtype(part, q.layer.dtype);
    KvccPackParams p{};
    p.cache = cache;
    p.x = bytes.data();
    p.first = &first;
    p.count = count;
    p.status = &status;
    p.repeat_above = repeat_above;
    pack_call(q, p, seed);
    first += count;
  }
  return status;
}

/// Positions [first, first + count) of every sequence; what is not written stays 12345.
inline std::vector<float> dequantise(Quantised& q, KvccCache cache, const std::vector<int32_t>& first, int32_t count,
                                     uint32_t seed) {
  std::vector<float> out(first.size() * count * q.layer.columns(), 12345.0f);
  q.set_constants(cache);
  KvccDequantiseParams p{};
  p.cache = cache;
  p.out = out.data();
  p.first = first.data();
  p.count = count;
  run_blocks(q.family(KVCC_CPU_DEQUANTISE_KEY, KVCC_CPU_DEQUANTISE_VALUE), q.config(), &p, q.tables(),
             kvcc_grid_mma_dequantise(&p), seed);
  return out;
}

/// A random division of `total` tokens into calls.
inline std::vector<int> random_calls(int total, std::mt19937& random) {
  std::vector<int> calls;
  for (int left = total; left > 0; left -= calls.back()) {
    const int most = random() % 3 == 0 ? 100 : 7;
    calls.push_back(std::min<int>(left, 1 + static_cast<int>(random() % most)));
  }
  return calls;
}

}  // namespace kvcc::test
