// Packing and unpacking of vector codebooks. Bit-equal to the reference (kernels/reference/vector_cache.h), and so
// whatever the blocks' order and the division of tokens into calls.
//   pack        grid kvcc_grid_mma_pack: block 0 writes sink rows, block 1 + i page i of the range
//   dequantise  grid kvcc_grid_mma_dequantise
#if defined(KVCC_KERNELS_CPU_VECTOR_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVCC_KERNELS_CPU_VECTOR_PACK_INL_H_
#undef KVCC_KERNELS_CPU_VECTOR_PACK_INL_H_
#else
#define KVCC_KERNELS_CPU_VECTOR_PACK_INL_H_
#endif

#include <cstring>

#include "kernels/cpu/dequantise-inl.h"
#include "kernels/cpu/pack-inl.h"
#include "kernels/cpu/vector_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvcc::cpu::HWY_NAMESPACE {

/// The vector with the least squared distance to z, of equal ones the first.
inline uint32_t NearestVector(const KvccVectorGroup& group, const float* HWY_RESTRICT planes,
                              const float* HWY_RESTRICT z) {
  const DF d;
  const DU du;
  const size_t entries = size_t{1} << group.bits, step = (entries + 15) / 16 * 16;
  const float* HWY_RESTRICT plane = planes + group.planes;
  VF best = hn::Set(d, __builtin_huge_valf());
  VU index = hn::Zero(du);
  for (size_t e = 0; e < entries; e += kLanes) {
    VF sum = hn::Zero(d);
    for (int i = 0; i < group.width; ++i) {
      const VF difference = hn::Sub(hn::Set(d, z[i]), hn::LoadU(d, plane + i * step + e));
      const VF square = hn::Mul(difference, difference);
      sum = i == 0 ? square : hn::Add(sum, square);
    }
    const auto less = hn::Lt(sum, best);
    best = hn::IfThenElse(less, sum, best);
    index = hn::IfThenElse(hn::RebindMask(du, less), hn::Iota(du, static_cast<uint32_t>(e)), index);
  }
  HWY_ALIGN float distances[kLanes];
  HWY_ALIGN uint32_t indices[kLanes];
  hn::Store(best, d, distances);
  hn::Store(index, du, indices);
  int least = 0;
  for (int lane = 1; lane < kLanes; ++lane) {
    if (distances[lane] < distances[least] || (distances[lane] == distances[least] && indices[lane] < indices[least])) {
      least = lane;
    }
  }
  return indices[least];
}

/// Coordinates [D] of a row of a head, as the codec makes them. Returns whether all of x is finite.
inline bool VectorCoordinates(const VectorHead& head, const float* HWY_RESTRICT x, float* HWY_RESTRICT z) {
  const DF d;
  const int dim = head.tensor.head_dim;
  const float* HWY_RESTRICT mean = head.tensor.forward_mean + head.row();
  const float* HWY_RESTRICT forward = head.tensor.forward + head.matrix();
  bool finite = true;
  alignas(64) float centred[kMaxHeadDim];
  for (int j = 0; j < dim; ++j) {
    finite = finite && (float_bits(x[j]) & 0x7f800000u) != 0x7f800000u;
    centred[j] = x[j] - mean[j];
  }
  for (int i = 0; i < dim; i += kLanes) {
    VF sum = hn::Zero(d);
    for (int j = 0; j < dim; ++j) {
      sum = hn::Add(sum, hn::Mul(hn::Set(d, centred[j]), hn::LoadU(d, forward + j * dim + i)));
    }
    hn::Store(sum, d, z + i);
  }
  return finite;
}

/// Blocks [first, last) of kvcc_grid_mma_pack.
inline void PackVector(const KvccVectorTensor& tensor, int32_t dtype, const KvccPackParams& p, uint32_t first,
                       uint32_t last) {
  const KvccGrid grid = kvcc_grid_mma_pack(&p);
  const int32_t dim = tensor.head_dim;
  alignas(64) float scratch[kMaxHeadDim], z[kMaxHeadDim];
  for (uint32_t i = first; i < last; ++i) {
    const Block b = block_of(grid, i);
    if (b.x == 0) {
      WriteSinks(p, dtype, dim, b);
      continue;
    }
    const NewTokens at = new_tokens(p, b);
    if (at.low >= at.high) continue;
    const VectorHead head{tensor, static_cast<int32_t>(b.y)};
    const auto bits = static_cast<uint32_t>(tensor.token_bits[b.y]);
    uint8_t* const tile = VectorPages(p.cache, b.z, head.head).at(at.page);
    if (at.low == 0) std::memset(tile, 0, size_t{vector_page::tile_words(bits)} * 4);
    const int64_t token = int64_t{b.z} * p.count + at.page * KVCC_PAGE_TOKENS + p.cache.sink - p.first[b.z];
    bool finite = true;
    for (int32_t slot = at.low; slot < at.high; ++slot) {
      const int64_t row = ((token + slot) * p.cache.heads + head.head) * dim;
      finite &= VectorCoordinates(head, Floats(dtype, p.x, row, dim, scratch), z);
      for (int32_t g = tensor.first_group[b.y]; g < tensor.first_group[b.y + 1]; ++g) {
        const KvccVectorGroup& group = tensor.groups[g];
        vector_page::put_code(tile, bits, static_cast<uint32_t>(slot), static_cast<uint32_t>(group.first_bit),
                              static_cast<uint32_t>(group.bits), NearestVector(group, tensor.planes, z + group.first));
      }
    }
    if (!finite) raise_status(p.status, KVCC_STATUS_RANGE);
  }
}

/// channels [D, 64 of kBatch] = inverse rows + mean: sums over coordinates ascending, every product and sum rounded.
inline void TransformExactly(const VectorHead& head, const float* HWY_RESTRICT rows, float* HWY_RESTRICT channels) {
  const DF d;
  const int dim = head.tensor.head_dim;
  const float* HWY_RESTRICT inverse = head.tensor.inverse + head.matrix();
  for (int c = 0; c < dim; ++c) {
    for (int t = 0; t < kPage; t += kLanes) {
      VF sum = hn::Zero(d);
      for (int i = 0; i < dim; ++i) {
        sum = hn::Add(sum, hn::Mul(hn::Set(d, inverse[c * dim + i]), hn::Load(d, rows + i * kBatch + t)));
      }
      hn::Store(hn::Add(sum, hn::Set(d, head.tensor.mean[head.row() + c])), d, channels + c * kBatch + t);
    }
  }
}

/// Blocks [first, last) of kvcc_grid_mma_dequantise.
inline void DequantiseVector(const KvccVectorTensor& tensor, const KvccDequantiseParams& p, uint32_t first,
                             uint32_t last) {
  const KvccGrid grid = kvcc_grid_mma_dequantise(&p);
  const KvccCache& c = p.cache;
  const int32_t dim = tensor.head_dim;
  const int64_t stride = int64_t{c.heads} * dim;
  VectorTile tile;
  for (uint32_t n = first; n < last; ++n) {
    const Block b = block_of(grid, n);
    const VectorHead head{tensor, static_cast<int32_t>(b.y)};
    const int32_t length = c.lengths[b.z], begin = p.first[b.z] + static_cast<int32_t>(b.x) * KVCC_PAGE_TOKENS;
    const int32_t end = std::min({begin + KVCC_PAGE_TOKENS, p.first[b.z] + p.count, length});
    float* const out = p.out + (int64_t{b.z} * p.count - p.first[b.z]) * stride + int64_t{b.y} * dim;
    const int32_t recent = std::max(c.sink, length - c.residual);
    ReadExactRows(c, b, dim, begin, std::min(end, c.sink), out, stride);
    ReadExactRows(c, b, dim, std::max(begin, recent), end, out, stride);
    float* const rows = tensor.transform != 0 ? tile.rows : tile.channels;
    FillConstants(head, rows);
    const int32_t tokens = std::min(end, recent) - c.sink;
    for (int32_t token = std::max(begin, c.sink) - c.sink; token < tokens;) {
      const int32_t page = token / KVCC_PAGE_TOKENS;
      ReadRows<true>(head, VectorPages(c, b.z, head.head), page, 1, tile.offset, rows);
      if (tensor.transform != 0) TransformExactly(head, tile.rows, tile.channels);
      for (; token < std::min(tokens, (page + 1) * KVCC_PAGE_TOKENS); ++token) {
        float* const to = out + (c.sink + token) * stride;
        for (int32_t i = 0; i < dim; ++i) to[i] = tile.channels[i * kBatch + token % KVCC_PAGE_TOKENS];
      }
    }
  }
}

}  // namespace kvcc::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
