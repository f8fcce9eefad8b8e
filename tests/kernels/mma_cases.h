// What the tests of the mma-1 kernels share beside cases.h: Configs, caches as kernels take them (one sequence, or a
// ragged batch with a page table), rotary tables. Everything follows from the seed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "formats/layout/mma.h"
#include "formats/layout/mma_launch.h"
#include "kernels/reference/mma_cache.h"
#include "tests/kernels/cases.h"

namespace kvcc::test {

/// Levels that Configs of a tensor serve; keys and values have their own, as attention needs both.
template <mma::Tensor tensor>
Levels& mma_levels() {
  static Levels levels;
  return levels;
}
template <mma::Tensor tensor>
void use_levels(const LevelTable& table) {
  mma_levels<tensor>() = {table.levels, table.bits, table.stride};
}

/// A Config of one tensor for the device bodies; the generated units have the same members. use_levels() first.
template <mma::Tensor tensor, int bits_, int head_dim, device::Axis axis, linear::Sparse sparse,
          device::Rope rope = device::Rope::none, int rotary = 0, int group_tile = 8,
          device::Dtype dtype = device::Dtype::f16, bool mixed = false>
struct MmaConfig : Config<bits_, head_dim, axis, sparse, rope, rotary, group_tile, dtype, mixed> {
  static constexpr mma::Tensor kTensor = tensor;
  static const float* levels(int, int head) {
    return mma_levels<tensor>().table.data() + static_cast<size_t>(head) * mma_levels<tensor>().stride;
  }
  static int bits(int, int head) { return mma_levels<tensor>().bits[head]; }
};

/// A Config of attention, from those of its keys and values.
template <class Key_, class Value_>
struct AttentionConfig {
  struct Key : Key_ {};
  struct Value : Value_ {};
  static constexpr device::Rope kRope = Key_::kRope;
  static constexpr int kRotaryDim = Key_::kRotaryDim, kGroupTile = Key_::kGroupTile;
  static constexpr device::Dtype kDtype = Key_::kDtype;
};

/// The cache as kernels take it, of one sequence. The pointers live as long as cache, quantiser and length. Constants
/// of the channel axis: set_constants() of cases.h.
inline KvccCache view(reference::MmaCache& cache, const int32_t* length) {
  KvccCache c = view_of_any(cache, length);
  c.exact = cache.exact.empty() ? nullptr : cache.exact.data();
  c.needed = cache.shape.classes > 0 ? cache.needed.data() : nullptr;
  c.page_bytes = static_cast<int64_t>(mma::page_bytes(cache.shape));
  c.sparse_capacity = static_cast<int32_t>(cache.shape.capacity);
  return c;
}

/// Several sequences in one pool: pages in a shuffled order behind a page table, pool pages and table entries that no
/// sequence uses filled with ones. The caches must agree in shape, sink and residual (give them one capacity).
struct MmaBatch {
  reference::MmaCache shape;  ///< of one of the sequences: everything that they have in common
  std::vector<uint8_t> pages;
  std::vector<int32_t> page_table, lengths;
  std::vector<uint16_t> exact;
  std::vector<uint32_t> needed;

  KvccCache view() {
    KvccCache c = test::view(shape, lengths.data());
    c.pages = pages.data();
    c.page_table = page_table.data();
    c.exact = exact.empty() ? nullptr : exact.data();
    c.needed = shape.shape.classes > 0 ? needed.data() : nullptr;
    c.sequences = static_cast<int32_t>(lengths.size());
    c.max_pages = lengths.empty() ? 0 : static_cast<int32_t>(page_table.size() / lengths.size());
    return c;
  }
  /// Bytes of page `i` of sequence `s`.
  const uint8_t* page(size_t s, size_t i) const {
    const size_t most = page_table.size() / lengths.size();
    return pages.data() + page_table[s * most + i] * mma::page_bytes(shape.shape);
  }
};
inline MmaBatch make_batch(const std::vector<reference::MmaCache>& caches, std::mt19937& random) {
  MmaBatch batch;
  batch.shape = caches.at(0);
  const size_t page_bytes = mma::page_bytes(batch.shape.shape), heads = batch.shape.heads;
  int64_t most = 0, total = 0;
  for (const auto& cache : caches) {
    if (mma::page_bytes(cache.shape) != page_bytes || cache.shape.capacity != batch.shape.shape.capacity ||
        cache.sink != batch.shape.sink || cache.residual != batch.shape.residual) {
      throw std::logic_error("make_batch: caches of one shape");
    }
    most = std::max<int64_t>(most, cache.page_count());
    total += cache.page_count();
  }
  std::vector<int32_t> free(total + 2);
  for (size_t i = 0; i < free.size(); ++i) free[i] = static_cast<int32_t>(i);
  std::shuffle(free.begin(), free.end(), random);
  batch.pages.assign(free.size() * page_bytes, 0xff);
  batch.page_table.assign(caches.size() * most, -1);
  batch.needed.assign(caches.size() * most * heads, 0);
  for (size_t s = 0; s < caches.size(); ++s) {
    const auto& cache = caches[s];
    batch.lengths.push_back(static_cast<int32_t>(cache.tokens));
    batch.exact.insert(batch.exact.end(), cache.exact.begin(), cache.exact.end());
    std::copy(cache.needed.begin(), cache.needed.end(), batch.needed.begin() + s * most * heads);
    for (int64_t i = 0; i < cache.page_count(); ++i) {
      batch.page_table[s * most + i] = free.back();
      std::memcpy(batch.pages.data() + free.back() * page_bytes, cache.page(i), page_bytes);
      free.pop_back();
    }
  }
  return batch;
}

/// Rotary tables as the mma kernels take them, and what they are made from (see reference::Rotation).
struct MmaRope {
  std::vector<double> frequencies;  ///< [R / 2]
  double factor = 1;                ///< of scalings that have one
  bool interleaved = false;
  std::vector<float> base_cosine, base_sine;
  std::vector<uint16_t> relative_cosine, relative_sine;

  KvccRope view() const {
    if (frequencies.empty()) return {};
    return {base_cosine.data(), base_sine.data(), relative_cosine.data(), relative_sine.data()};
  }
};
/// Tables for positions 0 to positions - 1; rotary 0: none.
inline MmaRope make_mma_rope(int rotary, bool interleaved, int64_t positions, double factor = 1,
                             double theta = 10000.0) {
  MmaRope rope;
  rope.factor = factor;
  rope.interleaved = interleaved;
  for (int i = 0; i < rotary / 2; ++i) rope.frequencies.push_back(std::pow(theta, -2.0 * i / rotary));
  for (int64_t row = 0; row * KVCC_ROPE_BLOCK < std::max<int64_t>(positions, 1); ++row) {
    for (const double frequency : rope.frequencies) {
      const double angle = static_cast<double>(row * KVCC_ROPE_BLOCK) * frequency;
      rope.base_cosine.push_back(static_cast<float>(std::cos(angle) * factor));
      rope.base_sine.push_back(static_cast<float>(std::sin(angle) * factor));
    }
  }
  for (int r = 0; r < 2 * KVCC_ROPE_BLOCK; ++r) {
    for (const double frequency : rope.frequencies) {
      rope.relative_cosine.push_back(float_to_half(static_cast<float>(std::cos(r * frequency))));
      rope.relative_sine.push_back(float_to_half(static_cast<float>(std::sin(r * frequency))));
    }
  }
  return rope;
}

}  // namespace kvcc::test
