// dequantise: positions [first, first + count) to f32 rows, for prefill over a packed prefix and for checks. Bit-equal
// to the reference and to the CUDA kernels.
//   grid   (64 positions of the range, head, sequence); kvcc_grid_mma_dequantise
#if defined(KVCC_KERNELS_CPU_DEQUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_DEQUANTISE_INL_H_
#undef KVCC_KERNELS_CPU_DEQUANTISE_INL_H_
#else
#define KVCC_KERNELS_CPU_DEQUANTISE_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/page.h"
#include "kernels/cpu/rows-inl.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

/// Slots [begin, end) of one page of a head to rows of f32, the first at `out`, `stride` floats apart.
template <mma::Tensor kTensor, int kBits, class Tensor>
void DequantiseTile(const Tensor& tensor, const KvccCache& c, const Block& b, int32_t page, int32_t begin, int32_t end,
                    float* out, int64_t stride) {
  const int32_t head = static_cast<int32_t>(b.y), dim = tensor.head_dim();
  const PageParts parts = HeadPages(tensor, c, b.z, head, kBits).at(page);
  CodeScratch scratch;
  alignas(64) uint8_t rows[KVCC_PAGE_TOKENS * 256];
  TileCodes<kTensor, kBits> tile(static_cast<uint32_t>(dim), scratch);
  const uint32_t first_band = static_cast<uint32_t>(begin) / 8u, bands = (static_cast<uint32_t>(end) + 7u) / 8u;
  tile.ReadPairs(parts.codes, first_band, bands);
  for (uint32_t band = first_band; band < bands; ++band) tile.PairsToRows(band, rows);

  const RowFloats d;
  const RowInts di;
  const Lookup<kBits> levels(tensor.levels(c.layer, head));
  const bool by_token = tensor.axis() == KVCC_AXIS_TOKEN;
  const float* const scales = by_token ? nullptr : c.scale + int64_t{head} * dim;
  const float* const zeros = by_token ? nullptr : c.zero + int64_t{head} * dim;
  for (int32_t slot = begin; slot < end; ++slot) {
    float* const to = out + (slot - begin) * stride;
    const uint8_t* const codes = rows + slot * dim;
    auto scale = hn::Zero(d), zero = hn::Zero(d);
    if (by_token) {
      scale = hn::Set(d, half_to_float(parts.ranges[slot].scale));
      zero = hn::Set(d, half_to_float(parts.ranges[slot].zero));
    }
    for (int32_t i = 0; i < dim; i += kRowLanes) {
      if (!by_token) {
        scale = hn::LoadU(d, scales + i);
        zero = hn::LoadU(d, zeros + i);
      }
      const auto level = levels.At(hn::PromoteTo(di, hn::LoadU(RowBytes(), codes + i)));
      hn::StoreU(FusedMultiplyAdd(level, scale, zero), d, to + i);
    }
  }
  if (parts.ends == nullptr) return;
  // A reader stays inside a page that no pack wrote.
  const uint32_t capacity = static_cast<uint32_t>(c.sparse_capacity);
  uint32_t i = first_band > 0 ? parts.ends[first_band - 1u] : 0u;
  for (uint32_t k = first_band; k < bands; ++k) {
    for (const uint32_t last = std::min<uint32_t>(parts.ends[k], capacity); i < last; ++i) {
      const mma::Element at = mma::record_element(parts.records[i].place, k);
      const int32_t slot = static_cast<int32_t>(at.token);
      if (slot < begin || slot >= end || at.channel >= static_cast<uint32_t>(dim)) continue;
      out[(slot - begin) * stride + at.channel] = half_to_float(parts.records[i].value);
    }
  }
}

/// Positions [begin, end) of a head, all of them exact, to rows; `out` is the row of position 0.
inline void ReadExactRows(const KvccCache& c, const Block& b, int32_t dim, int32_t begin, int32_t end, float* out,
                          int64_t stride) {
  for (int32_t p = begin; p < end; ++p) {
    const uint16_t* const from = exact_row(c, b.z, b.y, dim, p);
    for (int32_t i = 0; i < dim; ++i) out[p * stride + i] = half_to_float(from[i]);
  }
}

/// The positions of one block: sinks, packed tokens page by page, the residual window.
template <mma::Tensor kTensor, class Tensor>
void DequantiseBlock(const Tensor& tensor, int32_t bits, const KvccDequantiseParams& p, const Block& b) {
  const KvccCache& c = p.cache;
  const int32_t dim = tensor.head_dim(), length = c.lengths[b.z];
  const int64_t stride = int64_t{c.heads} * dim;
  const int32_t begin = p.first[b.z] + static_cast<int32_t>(b.x) * KVCC_PAGE_TOKENS;
  const int32_t end = std::min({begin + KVCC_PAGE_TOKENS, p.first[b.z] + p.count, length});
  float* const out = p.out + (static_cast<int64_t>(b.z) * p.count - p.first[b.z]) * stride + int64_t{b.y} * dim;
  const int32_t recent = std::max(c.sink, length - c.residual);
  ReadExactRows(c, b, dim, begin, std::min(end, c.sink), out, stride);
  ReadExactRows(c, b, dim, std::max(begin, recent), end, out, stride);
  int32_t token = std::max(begin, c.sink) - c.sink;
  const int32_t tokens = std::min(end, recent) - c.sink;
  while (token < tokens) {
    const int32_t page = token / KVCC_PAGE_TOKENS, slot = token % KVCC_PAGE_TOKENS;
    const int32_t last = std::min(tokens - page * KVCC_PAGE_TOKENS, +KVCC_PAGE_TOKENS);
    float* const to = out + (c.sink + token) * stride;
    if (bits == 2) DequantiseTile<kTensor, 2>(tensor, c, b, page, slot, last, to, stride);
    if (bits == 3) DequantiseTile<kTensor, 3>(tensor, c, b, page, slot, last, to, stride);
    if (bits == 4) DequantiseTile<kTensor, 4>(tensor, c, b, page, slot, last, to, stride);
    if (bits == 8) DequantiseTile<kTensor, 8>(tensor, c, b, page, slot, last, to, stride);
    token = page * KVCC_PAGE_TOKENS + last;
  }
}

/// Blocks [first, last) of kvcc_grid_mma_dequantise.
template <mma::Tensor kTensor, class Config>
void Dequantise(const Config& config, const KvccDequantiseParams& p, const KvccCpuTables&, uint32_t first,
                uint32_t last) {
  const auto& tensor = tensor_of<kTensor>(config);
  const KvccGrid grid = kvcc_grid_mma_dequantise(&p);
  for (uint32_t i = first; i < last; ++i) {
    const Block b = block_of(grid, i);
    const int32_t bits = tensor.bits(p.cache.layer, static_cast<int32_t>(b.y));
    if (bits != 0) DequantiseBlock<kTensor>(tensor, bits, p, b);
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVCC_KERNELS_CPU_DEQUANTISE_INL_H_
