// Memory of one layer's keys or values of one sequence: a pool of pages that grows with the tokens, records lists that
// grow where a tile overflows, and the rows kept exactly. Host only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "formats/layout/launch.h"
#include "formats/layout/mma.h"
#include "kernels/host/runtime_artifact.h"
#include "kernels/host/runtime_units.h"
#include "kernels/host/thread_pool.h"

namespace kvcc::host {

/// Bytes aligned as pages want them; unspecified until written. Throws std::bad_alloc.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(size_t size) : data_(size > 0 ? allocate(size) : nullptr), size_(size) {}
  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlign{mma::kPageAlign};
  struct Free {
    void operator()(uint8_t* data) const { ::operator delete(data, kAlign); }
  };
  static uint8_t* allocate(size_t size) { return static_cast<uint8_t*>(::operator new(size, kAlign)); }
  std::unique_ptr<uint8_t, Free> data_;
  size_t size_ = 0;
};

class PagePool {
 public:
  PagePool(const RuntimeArtifact& artifact, const PackedTensor& tensor, int layer);

  /// Room for so many pages and exact rows, at least. Throws std::bad_alloc, and then nothing has changed.
  void reserve(int64_t pages, int64_t exact_rows);
  /// Pages in use; there is room. New ones hold zeros.
  void use_pages(int64_t pages);
  int64_t pages() const { return pages_; }

  /// Records that a tile can hold; 0 without sparse part.
  uint32_t capacity() const { return capacity_; }
  /// Most records that a tile of pages [first, last) needs, as the last pack reported.
  uint32_t most_needed(int64_t first, int64_t last) const;
  /// Lists for `needed` records a tile, with some room for more, all pages copied over. Strong guarantee.
  void grow_records(uint32_t needed, const RuntimeUnits& units, ThreadPool& threads);
  /// Lists of exactly `capacity`; only while no page is in use.
  void set_capacity(uint32_t capacity);

  mma::PageShape shape() const { return tensor_.page_shape(layer_, heads_, capacity_); }
  int64_t page_bytes() const { return page_bytes_; }
  uint8_t* page(int64_t i) const { return bytes_.data() + i * page_bytes_; }
  /// fp16 [rows, H, D]
  uint16_t* exact_row(int64_t row) const;
  int64_t exact_row_bytes() const { return int64_t{heads_} * tensor_.head_dim * 2; }
  const PackedTensor& tensor() const { return tensor_; }
  int64_t reserved_bytes() const;

  /// As units take it, of one sequence. `lengths` [1]; null for pack.
  KvccCache view(const int32_t* lengths);

  /// What undoes a call that appends: the page that tokens are added to, and the exact rows that they overwrite.
  struct Saved {
    int64_t pages = 0;
    uint32_t capacity = 0;
    AlignedBytes page;
    std::vector<std::pair<int64_t, std::vector<uint16_t>>> rows;
  };
  /// rows: of the exact region.
  Saved save(const std::vector<int64_t>& rows) const;
  void restore(const Saved& saved, const RuntimeUnits& units);

 private:
  KvccCopyPagesParams copy_params(const uint8_t* from, uint32_t from_capacity, const AlignedBytes& to,
                                  uint32_t to_capacity, const int32_t* pairs, int64_t count) const;

  const PackedTensor& tensor_;
  int layer_, heads_, sink_, residual_;
  uint32_t capacity_ = 0;
  int64_t page_bytes_ = 0, pages_ = 0, reserved_pages_ = 0, reserved_rows_ = 0;
  AlignedBytes bytes_, exact_;
  std::vector<uint32_t> needed_;  ///< [reserved pages, H]
};

}  // namespace kvcc::host
