// First half of pack, token axis: a block a token, the outliers and the range of all its heads.
//   grid   (count, 1, sequence); kvcc_grid_mma_pack_select; runs before pack
//   tails  The `tail` first and last elements in the order (value, column). Bit by bit, a search over the values'
//          order-preserving bits counts how many lie beyond, until a bound parts exactly `tail` of them from the rest;
//          where equal values straddle the bound, columns decide. The work does not depend on how large `tail` is.
#if defined(KVCC_KERNELS_CPU_SELECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_SELECT_INL_H_
#undef KVCC_KERNELS_CPU_SELECT_INL_H_
#else
#define KVCC_KERNELS_CPU_SELECT_INL_H_
#endif

#include <algorithm>
#include <limits>
#include <vector>

#include "formats/codec/element.h"
#include "kernels/cpu/page.h"
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

/// A token's values as whole numbers of the same order; zeros of either sign are one value.
HWY_INLINE void OrderKeys(const float* x, int32_t count, int32_t* keys) {
  const RowFloats d;
  const RowInts di;
  for (int32_t i = 0; i < count; i += kRowLanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto bits = hn::BitCast(di, hn::IfThenZeroElse(hn::Eq(v, hn::Zero(d)), v));
    const auto flip = hn::And(hn::ShiftRight<31>(bits), hn::Set(di, 0x7fffffff));
    hn::StoreU(hn::Xor(bits, flip), di, keys + i);
  }
}
inline float key_value(int32_t key) { return bits_float(static_cast<uint32_t>(key < 0 ? key ^ 0x7fffffff : key)); }

/// A tail: all keys beyond `bound`, and `equal` of those that equal it.
struct Tail {
  int32_t bound;
  uint32_t equal;
};

/// The search for one tail's bound, in the unsigned order of keys ^ kSign (the lower tail), ~keys ^ kSign (the upper).
class TailSearch {
 public:
  static constexpr uint32_t kSign = 0x80000000u;
  /// least: of the keys, in the search's order; bits: how many low bits the keys differ in.
  TailSearch(uint32_t tail, uint32_t least, int bits)
      : tail_(tail), found_(bits < 32 ? least >> bits << bits : 0u), bit_(bits) {}
  bool done() const { return exact_ || bit_ == 0; }
  /// The next number to count keys below.
  uint32_t candidate() const { return found_ + (1u << (bit_ - 1)); }
  void counted(uint32_t below) {
    if (done()) return;
    if (below <= tail_) {
      found_ = candidate();
      below_ = below;
      exact_ = below == tail_;
    }
    --bit_;
  }
  uint32_t bound() const { return found_; }
  uint32_t equal() const { return tail_ - below_; }

 private:
  uint32_t tail_, found_, below_ = 0;
  int bit_;
  bool exact_ = false;
};

struct Tails {
  Tail lower, upper;
};
/// 2 * tail < count. least, greatest: of the keys.
inline Tails FindTails(const int32_t* keys, int32_t count, uint32_t tail, int32_t least, int32_t greatest) {
  const RowInts di;
  const uint32_t differ = static_cast<uint32_t>(least) ^ static_cast<uint32_t>(greatest);
  const int bits = differ == 0 ? 0 : 32 - __builtin_clz(differ);
  TailSearch lower(tail, static_cast<uint32_t>(least) ^ TailSearch::kSign, bits);
  TailSearch upper(tail, ~static_cast<uint32_t>(greatest) ^ TailSearch::kSign, bits);
  while (!lower.done() || !upper.done()) {
    const auto low = hn::Set(di, static_cast<int32_t>((lower.done() ? 0u : lower.candidate()) ^ TailSearch::kSign));
    const auto high = hn::Set(di, static_cast<int32_t>(~((upper.done() ? 0u : upper.candidate()) ^ TailSearch::kSign)));
    auto below = hn::Zero(di), above = hn::Zero(di);
    for (int32_t i = 0; i < count; i += kRowLanes) {
      const auto key = hn::LoadU(di, keys + i);
      below = hn::Sub(below, hn::VecFromMask(di, hn::Lt(key, low)));
      above = hn::Sub(above, hn::VecFromMask(di, hn::Gt(key, high)));
    }
    lower.counted(static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(di, below))));
    upper.counted(static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(di, above))));
  }
  return {{static_cast<int32_t>(lower.bound() ^ TailSearch::kSign), lower.equal()},
          {static_cast<int32_t>(~(upper.bound() ^ TailSearch::kSign)), upper.equal()}};
}

struct Extremes {
  int32_t least, greatest;
};
HWY_INLINE Extremes KeyExtremes(const int32_t* keys, int32_t count) {
  const RowInts di;
  auto least = hn::Set(di, keys[0]), greatest = least;
  for (int32_t i = 0; i < count; i += kRowLanes) {
    const auto key = hn::LoadU(di, keys + i);
    least = hn::Min(least, key);
    greatest = hn::Max(greatest, key);
  }
  return {hn::GetLane(hn::MinOfLanes(di, least)), hn::GetLane(hn::MaxOfLanes(di, greatest))};
}

/// What lies between the tails, and how many keys equal their bounds.
struct Between {
  Extremes inliers;
  uint32_t at_lower, at_upper;
};
HWY_INLINE Between FindInliers(const int32_t* keys, int32_t count, const Tails& tails) {
  const RowInts di;
  const auto lower = hn::Set(di, tails.lower.bound), upper = hn::Set(di, tails.upper.bound);
  const auto most = hn::Set(di, std::numeric_limits<int32_t>::max()), least = hn::Not(most);
  auto low = most, high = least, at_lower = hn::Zero(di), at_upper = hn::Zero(di);
  for (int32_t i = 0; i < count; i += kRowLanes) {
    const auto key = hn::LoadU(di, keys + i);
    low = hn::Min(low, hn::IfThenElse(hn::Gt(key, lower), key, most));
    high = hn::Max(high, hn::IfThenElse(hn::Lt(key, upper), key, least));
    at_lower = hn::Sub(at_lower, hn::VecFromMask(di, hn::Eq(key, lower)));
    at_upper = hn::Sub(at_upper, hn::VecFromMask(di, hn::Eq(key, upper)));
  }
  Between found{{hn::GetLane(hn::MinOfLanes(di, low)), hn::GetLane(hn::MaxOfLanes(di, high))},
                static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(di, at_lower))),
                static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(di, at_upper)))};
  if (found.at_lower > tails.lower.equal) found.inliers.least = tails.lower.bound;
  if (found.at_upper > tails.upper.equal) found.inliers.greatest = tails.upper.bound;
  return found;
}

/// The outliers' columns, ascending. The lower tail takes equal values from the first column on, the upper tail from
/// the last one back. Returns how many.
HWY_INLINE uint32_t ListOutliers(const int32_t* keys, int32_t count, const Tails& tails, const Between& between,
                                 uint32_t* columns) {
  const RowInts di;
  uint32_t lower_left = tails.lower.equal, upper_skip = between.at_upper - tails.upper.equal, n = 0;
  const auto lower = hn::Set(di, tails.lower.bound), upper = hn::Set(di, tails.upper.bound);
  for (int32_t i = 0; i < count; i += kRowLanes) {
    const auto key = hn::LoadU(di, keys + i);
    if (hn::AllTrue(di, hn::And(hn::Gt(key, lower), hn::Lt(key, upper)))) continue;
    for (int32_t j = i; j < i + kRowLanes; ++j) {
      bool outlier = keys[j] < tails.lower.bound || keys[j] > tails.upper.bound;
      if (keys[j] == tails.lower.bound && lower_left > 0) {
        --lower_left;
        outlier = true;
      }
      if (keys[j] == tails.upper.bound) {
        outlier |= upper_skip == 0;
        upper_skip -= upper_skip > 0;
      }
      if (outlier) columns[n++] = static_cast<uint32_t>(j);
    }
  }
  return n;
}

/// One token's row: its outliers to selected [2 * tail], its inliers' ends to inliers [2]. Returns its range; raises
/// the status for values that are not finite and for ends or outliers that fp16 can't hold.
template <class Tensor>
TokenRange SelectRow(const Tensor& tensor, int32_t dtype, const KvccPackParams& p, int64_t token, int32_t* keys) {
  const int32_t dim = tensor.head_dim(), count = p.cache.heads * dim;
  const bool sparse = tensor.sparse() != KVCC_SPARSE_NONE;
  alignas(64) float scratch[256];
  for (int32_t i = 0; i < count; i += dim) {
    OrderKeys(Floats(dtype, p.x, token * count + i, dim, scratch), dim, keys + i);
  }
  Extremes ends = KeyExtremes(keys, count);
  const uint32_t tail = sparse ? static_cast<uint32_t>(p.cache.tail) : 0u;
  if (tail > 0) {
    const Tails tails = FindTails(keys, count, tail, ends.least, ends.greatest);
    const Between between = FindInliers(keys, count, tails);
    uint32_t* const selected = p.selected + token * 2 * tail;
    const uint32_t n = ListOutliers(keys, count, tails, between, selected);
    for (uint32_t i = 0; i < n; ++i) {
      const float x = load_element(dtype, p.x, token * count + selected[i]);
      selected[i] |= static_cast<uint32_t>(record_half(x, p.status)) << 16;
    }
    ends = between.inliers;
  }
  const float low = key_value(ends.least), high = key_value(ends.greatest);
  p.inliers[token * 2] = low;
  p.inliers[token * 2 + 1] = high;
  const TokenRange range = token_range(low, high);
  if ((range.scale & 0x7c00u) == 0x7c00u || (range.zero & 0x7c00u) == 0x7c00u) {
    raise_status(p.status, KVCC_STATUS_RANGE);
  }
  return range;
}

/// Blocks [first, last) of kvcc_grid_mma_pack_select. Every unit of a mixed artifact finds the same; that of head 0's
/// width writes the ranges.
template <mma::Tensor kTensor, class Config>
void PackSelect(const Config& config, const KvccPackParams& p, const KvccCpuTables&, uint32_t first, uint32_t last) {
  const auto& tensor = tensor_of<kTensor>(config);
  const KvccGrid grid = kvcc_grid_mma_pack_select(&p);
  std::vector<int32_t> keys(static_cast<size_t>(p.cache.heads) * static_cast<size_t>(tensor.head_dim()));
  const int32_t bits = tensor.bits(p.cache.layer, 0);
  for (uint32_t i = first; i < last; ++i) {
    const Block b = block_of(grid, i);
    const int32_t packed = p.first[b.z] + static_cast<int32_t>(b.x) - p.cache.sink;
    if (packed < 0) continue;
    const int64_t token = static_cast<int64_t>(b.z) * p.count + b.x;
    const TokenRange range = SelectRow(tensor, config.dtype(), p, token, keys.data());
    if (bits == 0) continue;
    const PageParts page = HeadPages(tensor, p.cache, b.z, 0, bits).at(packed / KVCC_PAGE_TOKENS);
    page.ranges[packed % KVCC_PAGE_TOKENS] = {range.scale, range.zero};
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVCC_KERNELS_CPU_SELECT_INL_H_
