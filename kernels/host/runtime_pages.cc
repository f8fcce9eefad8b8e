#include "kernels/host/runtime_pages.h"

#include <algorithm>
#include <cstring>

namespace kvcc::host {
namespace {

/// So that appending copies a page about twice in all.
int64_t grown(int64_t now, int64_t wanted) { return std::max(wanted, now + now / 2); }

}  // namespace

PagePool::PagePool(const RuntimeArtifact& artifact, const PackedTensor& tensor, int layer)
    : tensor_(tensor),
      layer_(layer),
      heads_(artifact.shape.kv_heads),
      sink_(artifact.scheme.sink),
      residual_(artifact.scheme.residual) {
  set_capacity(tensor.default_capacity);
}

void PagePool::set_capacity(uint32_t capacity) {
  capacity_ = tensor_.sparse ? capacity : 0;
  page_bytes_ = static_cast<int64_t>(mma::page_bytes(shape()));
  reserved_pages_ = 0;
  bytes_ = AlignedBytes();
}

void PagePool::reserve(int64_t pages, int64_t exact_rows) {
  if (exact_rows > reserved_rows_) {
    const int64_t rows = std::min(grown(reserved_rows_, exact_rows), int64_t{sink_} + residual_);
    AlignedBytes larger(rows * exact_row_bytes());
    if (reserved_rows_ > 0) std::memcpy(larger.data(), exact_.data(), reserved_rows_ * exact_row_bytes());
    exact_ = std::move(larger);
    reserved_rows_ = rows;
  }
  if (pages <= reserved_pages_) return;
  const int64_t count = grown(reserved_pages_, pages);
  AlignedBytes larger(count * page_bytes_);
  needed_.resize(tensor_.sparse ? count * heads_ : 0);
  if (pages_ > 0) std::memcpy(larger.data(), bytes_.data(), pages_ * page_bytes_);
  bytes_ = std::move(larger);
  reserved_pages_ = count;
}

void PagePool::use_pages(int64_t pages) {
  if (pages > pages_) std::memset(page(pages_), 0, (pages - pages_) * page_bytes_);
  pages_ = pages;
}

uint32_t PagePool::most_needed(int64_t first, int64_t last) const {
  if (!tensor_.sparse || first >= last) return 0;
  return *std::max_element(needed_.begin() + first * heads_, needed_.begin() + last * heads_);
}

KvccCopyPagesParams PagePool::copy_params(const uint8_t* from, uint32_t from_capacity, const AlignedBytes& to,
                                          uint32_t to_capacity, const int32_t* pairs, int64_t count) const {
  const auto shape_of = [&](uint32_t capacity) { return tensor_.page_shape(layer_, heads_, capacity); };
  KvccCopyPagesParams p{};
  p.source = from;
  p.target = to.data();
  p.pairs = pairs;
  p.source_page_bytes = static_cast<int64_t>(mma::page_bytes(shape_of(from_capacity)));
  p.target_page_bytes = static_cast<int64_t>(mma::page_bytes(shape_of(to_capacity)));
  p.fixed_bytes = static_cast<int64_t>(mma::records_offset(shape_of(to_capacity)));
  p.lists = tensor_.sparse ? heads_ : 0;
  p.source_capacity = static_cast<int32_t>(from_capacity);
  p.target_capacity = static_cast<int32_t>(to_capacity);
  p.count = static_cast<int32_t>(count);
  return p;
}

void PagePool::grow_records(uint32_t needed, const RuntimeUnits& units, ThreadPool& threads) {
  const uint32_t most = mma::kPageTokens * static_cast<uint32_t>(tensor_.head_dim);
  const uint32_t capacity = std::min((std::max(needed + needed / 8, capacity_) / 16 + 1) * 16, most);
  const auto bytes = static_cast<int64_t>(mma::page_bytes(tensor_.page_shape(layer_, heads_, capacity)));
  AlignedBytes larger(reserved_pages_ * bytes);
  std::vector<int32_t> pairs(2 * pages_);
  for (int64_t i = 0; i < pages_; ++i) pairs[2 * i] = pairs[2 * i + 1] = static_cast<int32_t>(i);
  std::memset(larger.data(), 0, pages_ * bytes);
  const KvccCopyPagesParams p = copy_params(bytes_.data(), capacity_, larger, capacity, pairs.data(), pages_);
  threads.run(kvcc_grid_copy_pages(&p).x, 8,
              [&](int, uint32_t first, uint32_t last) { units.run(KVCC_CPU_COPY_PAGES, &p, first, last); });
  bytes_ = std::move(larger);
  capacity_ = capacity;
  page_bytes_ = bytes;
}

uint16_t* PagePool::exact_row(int64_t row) const {
  return reinterpret_cast<uint16_t*>(exact_.data() + row * exact_row_bytes());
}

int64_t PagePool::reserved_bytes() const {
  return static_cast<int64_t>(bytes_.size() + exact_.size() + needed_.capacity() * sizeof(uint32_t));
}

KvccCache PagePool::view(const int32_t* lengths) {
  const size_t row = static_cast<size_t>(layer_) * heads_, column = row * tensor_.head_dim;
  const auto part = [&](const std::vector<float>& values) { return values.empty() ? nullptr : values.data() + column; };
  KvccCache c{};
  c.pages = bytes_.data();
  c.lengths = lengths;
  c.exact = sink_ + residual_ > 0 ? reinterpret_cast<uint16_t*>(exact_.data()) : nullptr;
  c.scale = part(tensor_.scale);
  c.zero = part(tensor_.zero);
  c.lower = part(tensor_.lower);
  c.upper = part(tensor_.upper);
  c.head_words = tensor_.head_words.empty() ? nullptr : tensor_.head_words.data() + row;
  c.needed = needed_.empty() ? nullptr : needed_.data();
  c.page_bytes = page_bytes_;
  c.code_words = tensor_.code_words[layer_];
  c.sparse_capacity = static_cast<int32_t>(capacity_);
  c.tail = tensor_.tail;
  c.max_pages = static_cast<int32_t>(pages_);
  c.sequences = 1;
  c.heads = heads_;
  c.sink = sink_;
  c.residual = residual_;
  c.layer = layer_;
  return c;
}

PagePool::Saved PagePool::save(const std::vector<int64_t>& rows) const {
  Saved saved;
  saved.pages = pages_;
  saved.capacity = capacity_;
  if (pages_ > 0) {
    saved.page = AlignedBytes(page_bytes_);
    std::memcpy(saved.page.data(), page(pages_ - 1), page_bytes_);
  }
  for (const int64_t row : rows) {
    if (row >= reserved_rows_) continue;
    saved.rows.emplace_back(row, std::vector<uint16_t>(exact_row(row), exact_row(row) + exact_row_bytes() / 2));
  }
  return saved;
}

void PagePool::restore(const Saved& saved, const RuntimeUnits& units) {
  pages_ = saved.pages;
  if (pages_ > 0) {
    const int32_t pair[] = {0, static_cast<int32_t>(pages_ - 1)};
    const KvccCopyPagesParams p = copy_params(saved.page.data(), saved.capacity, bytes_, capacity_, pair, 1);
    units.run(KVCC_CPU_COPY_PAGES, &p, 0, 1);
  }
  for (const auto& [row, values] : saved.rows) std::memcpy(exact_row(row), values.data(), exact_row_bytes());
}

}  // namespace kvcc::host
