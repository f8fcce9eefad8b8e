// pack, of both axes: a block makes the whole tile of one page and head, what the page's earlier tokens have there and
// those that x brings. Bit-equal to the reference (kernels/reference/mma_cache.h) and to the CUDA kernels, and so
// whatever the blocks' order and the division of tokens into calls.
//   grid   (2 + pages, head, sequence); kvcc_grid_mma_pack. Block 0 writes sink rows, block 1 + i page i of the range.
//          On the token axis PackSelect (select-inl.h) goes before
#if defined(KVCC_KERNELS_CPU_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_PACK_INL_H_
#undef KVCC_KERNELS_CPU_PACK_INL_H_
#else
#define KVCC_KERNELS_CPU_PACK_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/cpu/page.h"
#include "kernels/cpu/rows-inl.h"
#include "kernels/cpu/select-inl.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

/// Tokens [low, high) of page `page` are new.
struct NewTokens {
  int32_t page, low, high;
};
inline NewTokens new_tokens(const KvccPackParams& p, const Block& b) {
  const int32_t first = p.first[b.z] - p.cache.sink;  // packed number of x's first token, negative inside the sink
  const int32_t begin = std::max(first, 0), end = first + p.count;
  const int32_t page = begin / KVCC_PAGE_TOKENS + static_cast<int32_t>(b.x) - 1;
  return {page, std::max(begin - page * KVCC_PAGE_TOKENS, 0),
          std::min(end - page * KVCC_PAGE_TOKENS, +KVCC_PAGE_TOKENS)};
}

/// Which of a row's channels are outliers, a bit each.
struct OutlierBits {
  uint64_t word[4];
};

/// One row of a head: codes [dim] and outliers from x [dim] and static constants [dim]; thresholds null without sparse
/// part. Returns whether all of x is finite.
template <int kBits>
HWY_INLINE bool EncodeByChannel(const Cells<kBits>& cells, const float* x, int32_t dim, const float* scale,
                                const float* zero, const float* lower, const float* upper, uint8_t* codes,
                                OutlierBits& outliers) {
  const RowFloats d;
  const RowInts di;
  auto greatest = hn::Zero(di);
  uint8_t mask[32] = {};
  for (int32_t i = 0; i < dim; i += kRowLanes) {
    auto v = hn::LoadU(d, x + i);
    greatest = hn::Max(greatest, hn::And(hn::BitCast(di, v), hn::Set(di, 0x7fffffff)));
    if (lower != nullptr) {
      const auto low = hn::LoadU(d, lower + i), high = hn::LoadU(d, upper + i);
      const auto below = hn::Lt(v, low), above = hn::Gt(v, high);
      uint8_t bits[8] = {};
      hn::StoreMaskBits(d, hn::Or(below, above), bits);
      if constexpr (kRowLanes < 8) {
        mask[i / 8] = static_cast<uint8_t>(mask[i / 8] | bits[0] << i % 8);
      } else {
        std::memcpy(mask + i / 8, bits, kRowLanes / 8);
      }
      v = hn::IfThenElse(below, low, hn::IfThenElse(above, high, v));
    }
    const auto y = hn::Div(hn::Sub(v, hn::LoadU(d, zero + i)), hn::LoadU(d, scale + i));
    hn::StoreU(hn::DemoteTo(RowBytes(), cells.Nearest(y)), RowBytes(), codes + i);
  }
  std::memcpy(&outliers, mask, sizeof outliers);
  return hn::GetLane(hn::MaxOfLanes(di, greatest)) < 0x7f800000;
}

/// Likewise with one online range; low, high: the token's inliers.
template <int kBits>
HWY_INLINE void EncodeByToken(const Cells<kBits>& cells, const float* x, int32_t dim, float low, float high,
                              uint8_t* codes) {
  const RowFloats d;
  const TokenRange range = token_range(low, high);
  const auto scale = hn::Set(d, half_to_float(range.scale)), zero = hn::Set(d, half_to_float(range.zero));
  const auto least = hn::Set(d, low), greatest = hn::Set(d, high);
  for (int32_t i = 0; i < dim; i += kRowLanes) {
    auto v = hn::LoadU(d, x + i);
    v = hn::IfThenElse(hn::Lt(v, least), least, hn::IfThenElse(hn::Gt(v, greatest), greatest, v));
    const auto y = hn::Div(hn::Sub(v, zero), scale);
    hn::StoreU(hn::DemoteTo(RowBytes(), cells.Nearest(y)), RowBytes(), codes + i);
  }
}

/// One block's tile.
template <mma::Tensor kTensor, int kBits, class Tensor>
class TilePacker {
 public:
  TilePacker(const Tensor& tensor, int32_t dtype, const KvccPackParams& p, const Block& b, const NewTokens& at)
      : tensor_(tensor),
        dtype_(dtype),
        p_(p),
        at_(at),
        head_(static_cast<int32_t>(b.y)),
        dim_(tensor.head_dim()),
        token_(static_cast<int64_t>(b.z) * p.count + at.page * KVCC_PAGE_TOKENS + p.cache.sink - p.first[b.z]),
        parts_(HeadPages(tensor, p.cache, b.z, head_, kBits).at(at.page)),
        tile_number_((static_cast<int64_t>(b.z) * p.cache.max_pages + at.page) * p.cache.heads + head_) {}

  void Run() {
    const bool sparse = tensor_.sparse() != KVCC_SPARSE_NONE;
    if (sparse && p_.repeat_above > 0 && p_.cache.needed[tile_number_] <= static_cast<uint32_t>(p_.repeat_above))
      return;
    const uint32_t band = static_cast<uint32_t>(at_.low) / 8u, end = (static_cast<uint32_t>(at_.high) + 7u) / 8u;
    TileCodes<kTensor, kBits> tile(static_cast<uint32_t>(dim_), scratch_);
    if (at_.low > 0) {
      tile.ReadPairs(parts_.codes, band, band + 1u);
      tile.PairsToRows(band, rows_);
    }
    std::memset(rows_ + at_.high * dim_, 0, (end * 8u - static_cast<size_t>(at_.high)) * static_cast<size_t>(dim_));
    Encode();
    tile.ClearPairs(end);
    for (uint32_t i = band; i < end; ++i) tile.RowsToPairs(i, rows_);
    tile.WritePairs(parts_.codes, band);
    if (sparse) WriteRecords();
  }

 private:
  int64_t x_row(int32_t token) const { return ((token_ + token) * p_.cache.heads + head_) * dim_; }

  void Encode() {
    const Cells<kBits> cells(tensor_.levels(p_.cache.layer, head_));
    const bool sparse = tensor_.sparse() != KVCC_SPARSE_NONE;
    alignas(64) float scratch[256];
    bool finite = true;
    for (int32_t token = at_.low; token < at_.high; ++token) {
      const float* const x = Floats(dtype_, p_.x, x_row(token), dim_, scratch);
      uint8_t* const codes = rows_ + token * dim_;
      if (tensor_.axis() == KVCC_AXIS_TOKEN) {
        const float* const ends = p_.inliers + (token_ + token) * 2;
        EncodeByToken(cells, x, dim_, ends[0], ends[1], codes);
        outliers_[token] = sparse ? Selected(token) : OutlierBits{};
      } else {
        const KvccCache& c = p_.cache;
        const int64_t column = int64_t{head_} * dim_;
        finite &=
            EncodeByChannel(cells, x, dim_, c.scale + column, c.zero + column, sparse ? c.lower + column : nullptr,
                            sparse ? c.upper + column : nullptr, codes, outliers_[token]);
      }
    }
    if (!finite) raise_status(p_.status, KVCC_STATUS_RANGE);
  }

  /// The head's part of what PackSelect found.
  OutlierBits Selected(int32_t token) const {
    OutlierBits bits{};
    const int32_t each = 2 * p_.cache.tail;
    const uint32_t* const selected = p_.selected + (token_ + token) * each;
    for (int32_t i = 0; i < each; ++i) {
      const uint32_t channel = (selected[i] & 0xffffu) - static_cast<uint32_t>(head_ * dim_);
      if (channel < static_cast<uint32_t>(dim_)) bits.word[channel / 64u] |= uint64_t{1} << channel % 64u;
    }
    return bits;
  }

  /// Records and class ends: those of the earlier tokens alone when the list would be too short. A tile lists its
  /// records by token, so new ones go to its end.
  void WriteRecords() {
    uint32_t earlier[mma::kClasses] = {}, added[mma::kClasses] = {}, all = 0;
    for (uint32_t k = 0; k < mma::kClasses && at_.low > 0; ++k) all = earlier[k] = parts_.ends[k];
    uint32_t place = all;
    for (int32_t token = at_.low; token < at_.high; ++token) {
      for (const uint64_t word : outliers_[token].word) {
        const uint32_t count = static_cast<uint32_t>(__builtin_popcountll(word));
        added[mma::record_class(static_cast<uint32_t>(token))] += count;
        all += count;
      }
    }
    p_.cache.needed[tile_number_] = all;
    const bool fits = all <= static_cast<uint32_t>(p_.cache.sparse_capacity);
    for (uint32_t k = 0, sum = 0; k < mma::kClasses; ++k) {
      sum += added[k];
      parts_.ends[k] = static_cast<uint16_t>(earlier[k] + (fits ? sum : 0u));
    }
    for (int32_t token = at_.low; token < at_.high && fits; ++token) {
      for (uint32_t w = 0; w < 4u; ++w) {
        for (uint64_t bits = outliers_[token].word[w]; bits != 0; bits &= bits - 1u) {
          const uint32_t channel = 64u * w + static_cast<uint32_t>(__builtin_ctzll(bits));
          const uint32_t code = rows_[token * dim_ + static_cast<int32_t>(channel)];
          const float x = load_element(dtype_, p_.x, x_row(token) + channel);
          parts_.records[place++] = {mma::record_place(static_cast<uint32_t>(token), channel, code, kBits),
                                     record_half(x, p_.status)};
        }
      }
    }
  }

  const Tensor& tensor_;
  int32_t dtype_;
  const KvccPackParams& p_;
  NewTokens at_;
  int32_t head_, dim_;
  int64_t token_;  ///< of x, over all sequences, of the page's first slot
  PageParts parts_;
  int64_t tile_number_;  ///< of `needed`
  CodeScratch scratch_;
  OutlierBits outliers_[KVCC_PAGE_TOKENS];  ///< of the new tokens
  alignas(64) uint8_t rows_[KVCC_PAGE_TOKENS * 256];
};

template <mma::Tensor kTensor, int kBits, class Tensor>
void PackTile(const Tensor& tensor, int32_t dtype, const KvccPackParams& p, const Block& b) {
  const NewTokens at = new_tokens(p, b);
  if (at.low < at.high) TilePacker<kTensor, kBits, Tensor>(tensor, dtype, p, b, at).Run();
}

inline void WriteSinks(const KvccPackParams& p, int32_t dtype, int32_t dim, const Block& b) {
  const int32_t tokens = std::min(p.cache.sink - p.first[b.z], p.count);
  for (int32_t t = 0; t < tokens; ++t) {
    const int64_t token = static_cast<int64_t>(b.z) * p.count + t;
    uint16_t* const row = exact_row(p.cache, b.z, b.y, dim, p.first[b.z] + t);
    for (int32_t c = 0; c < dim; ++c) {
      const float x = load_element(dtype, p.x, (token * p.cache.heads + b.y) * dim + c);
      row[c] = record_half(x, p.status);
    }
  }
}

/// Blocks [first, last) of kvcc_grid_mma_pack; on the token axis after all blocks of PackSelect.
template <mma::Tensor kTensor, class Config>
void Pack(const Config& config, const KvccPackParams& p, const KvccCpuTables&, uint32_t first, uint32_t last) {
  const auto& tensor = tensor_of<kTensor>(config);
  const KvccGrid grid = kvcc_grid_mma_pack(&p);
  for (uint32_t i = first; i < last; ++i) {
    const Block b = block_of(grid, i);
    const int32_t bits = tensor.bits(p.cache.layer, static_cast<int32_t>(b.y));
    if (bits == 0) continue;
    if (b.x == 0) {
      WriteSinks(p, config.dtype(), tensor.head_dim(), b);
      continue;
    }
    if (bits == 2) PackTile<kTensor, 2>(tensor, config.dtype(), p, b);
    if (bits == 3) PackTile<kTensor, 3>(tensor, config.dtype(), p, b);
    if (bits == 4) PackTile<kTensor, 4>(tensor, config.dtype(), p, b);
    if (bits == 8) PackTile<kTensor, 8>(tensor, config.dtype(), p, b);
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVCC_KERNELS_CPU_PACK_INL_H_
