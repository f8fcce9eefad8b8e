// Which block of a grid is which, and where one head's rows and parts of pages lie: what all units share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "formats/layout/linear.h"
#include "formats/layout/mma.h"
#include "formats/layout/mma_launch.h"

namespace kvcc::cpu {

struct Block {
  uint32_t x, y, z;
};
/// Block `index` of a grid, x fastest.
inline Block block_of(const KvccGrid& grid, uint32_t index) {
  return {index % grid.x, index / grid.x % grid.y, index / grid.x / grid.y};
}

/// The keys or values of a Config (config.h).
template <mma::Tensor tensor, class Config>
const auto& tensor_of(const Config& config) {
  if constexpr (tensor == mma::Tensor::key) {
    return config.key();
  } else {
    return config.value();
  }
}

/// Row of `exact` of position p of one head, [head_dim]; p is an exact position.
inline uint16_t* exact_row(const KvccCache& c, int64_t sequence, int64_t head, int32_t head_dim, int32_t p) {
  const int64_t row = p < c.sink ? p : c.sink + (p - c.sink) % c.residual;
  return c.exact + ((sequence * (c.sink + c.residual) + row) * c.heads + head) * head_dim;
}

/// One head's part of a page.
struct PageParts {
  uint32_t* codes;              ///< the tile
  linear::RangeRecord* ranges;  ///< [64], of all heads; meaningful on the token axis
  uint16_t* ends;               ///< [kClasses]; null without sparse part
  mma::Record* records;         ///< [sparse_capacity]
};

/// The pages of one head of one sequence.
class HeadPages {
 public:
  template <class Tensor>
  HeadPages(const Tensor& tensor, const KvccCache& c, int64_t sequence, int32_t head, int32_t bits)
      : cache_(c), first_(sequence * c.max_pages), sparse_(tensor.sparse() != KVCC_SPARSE_NONE) {
    const mma::PageShape shape{static_cast<uint32_t>(c.code_words), tensor.axis() == KVCC_AXIS_TOKEN ? 1u : 0u,
                               sparse_ ? mma::kClasses : 0u, static_cast<uint32_t>(c.heads),
                               static_cast<uint32_t>(c.sparse_capacity)};
    const uint32_t h = static_cast<uint32_t>(head), dim = static_cast<uint32_t>(tensor.head_dim());
    word_ = c.head_words != nullptr ? c.head_words[h] : mma::head_first_word(h, dim, static_cast<uint32_t>(bits));
    ranges_ = mma::ranges_offset(shape);
    ends_ = mma::ends_offset(shape) + uint64_t{h} * mma::kClasses * sizeof(uint16_t);
    records_ = mma::records_offset(shape) + uint64_t{h} * shape.capacity * sizeof(mma::Record);
  }
  /// Page `number` of the sequence.
  PageParts at(int32_t number) const {
    const int64_t slot = first_ + number;
    uint8_t* const page =
        cache_.pages + (cache_.page_table != nullptr ? cache_.page_table[slot] : slot) * cache_.page_bytes;
    return {reinterpret_cast<uint32_t*>(page) + word_, reinterpret_cast<linear::RangeRecord*>(page + ranges_),
            sparse_ ? reinterpret_cast<uint16_t*>(page + ends_) : nullptr,
            reinterpret_cast<mma::Record*>(page + records_)};
  }

 private:
  const KvccCache& cache_;
  int64_t first_;
  bool sparse_;
  uint32_t word_;
  uint64_t ranges_, ends_, records_;
};

/// Ors a bit into *status, which threads share.
inline void raise_status(uint32_t* status, uint32_t bit) {
  std::atomic_ref<uint32_t>(*status).fetch_or(bit, std::memory_order_relaxed);
}

/// fp16 of a value that is stored exactly; raises the status bit where fp16 can't hold it.
inline uint16_t record_half(float x, uint32_t* status) {
  const uint16_t h = float_to_half(x);
  if ((h & 0x7c00u) == 0x7c00u) raise_status(status, KVCC_STATUS_RANGE);
  return h;
}

/// Element i of an array of a dtype (KVCC_DTYPE_...), as f32.
inline float load_element(int32_t dtype, const void* x, int64_t i) {
  if (dtype == KVCC_DTYPE_F32) return static_cast<const float*>(x)[i];
  const uint16_t bits = static_cast<const uint16_t*>(x)[i];
  return dtype == KVCC_DTYPE_F16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

}  // namespace kvcc::cpu
