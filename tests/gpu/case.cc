#include "tests/gpu/case.h"

#include <algorithm>
#include <stdexcept>

#include "formats/codec/reference.h"
#include "formats/layout/mma_launch.h"
#include "tests/gpu/levels.h"
#include "tests/kernels/mma_cases.h"

namespace kvcc::gpu {
namespace {

using device::Axis;
using linear::Sparse;

template <int bits>
void add_head(LevelTable& table, int layer, int head) {
  static constexpr LevelRows<bits> rows = make_level_rows<bits>();
  const float* from = rows.value + ((layer + head) % kLevelRows << bits);
  std::copy(from, from + (1 << bits), table.levels.begin() + static_cast<int64_t>(head) * table.stride);
}

/// What the sets' Configs carry.
LevelTable level_table(const Spec& spec, int layer, int heads) {
  LevelTable table;
  table.heads = heads;
  for (int h = 0; h < heads; ++h) {
    table.bits.push_back(static_cast<uint8_t>(spec.mixed ? mixed_bits(h) : spec.bits));
    table.stride = std::max(table.stride, 1 << table.bits[h]);
  }
  table.levels.assign(static_cast<size_t>(heads) * table.stride, bits_float(0x7fc00000u));
  for (int h = 0; h < heads; ++h) {
    switch (table.bits[h]) {
      case 2:
        add_head<2>(table, layer, h);
        break;
      case 3:
        add_head<3>(table, layer, h);
        break;
      case 4:
        add_head<4>(table, layer, h);
        break;
      default:
        add_head<8>(table, layer, h);
    }
  }
  return table;
}

reference::MmaCache pack_as(const reference::MmaCache*, const ChannelQuantiser& q, mma::Tensor tensor,
                            const std::vector<float>& x, const reference::CacheOptions& options) {
  return reference::pack_mma(q, tensor, x, options);
}
reference::MmaCache pack_as(const reference::MmaCache*, const TokenQuantiser& q, mma::Tensor tensor,
                            const std::vector<float>& x, const reference::CacheOptions& options) {
  return reference::pack_mma(q, tensor, x, options);
}
template <class Quantiser>
reference::LinearCache pack_as(const reference::LinearCache*, const Quantiser& q, mma::Tensor,
                               const std::vector<float>& x, const reference::CacheOptions& options) {
  return reference::pack(q, x, options);
}

uint32_t capacity_of(const reference::MmaCache& cache) { return cache.shape.capacity; }
uint32_t capacity_of(const reference::LinearCache& cache) {
  return cache.shape.sparse == Sparse::csr ? cache.shape.entries : 0;
}
int64_t page_bytes_of(const reference::MmaCache& cache) { return static_cast<int64_t>(mma::page_bytes(cache.shape)); }
int64_t page_bytes_of(const reference::LinearCache& cache) {
  return static_cast<int64_t>(linear::page_bytes(cache.shape));
}
int64_t fixed_bytes_of(const reference::MmaCache& cache) {
  return static_cast<int64_t>(mma::records_offset(cache.shape));
}
int64_t fixed_bytes_of(const reference::LinearCache& cache) {
  return static_cast<int64_t>(linear::entries_offset(cache.shape));
}
int32_t lists_of(const reference::MmaCache& cache) { return cache.shape.classes > 0 ? cache.heads : 0; }
int32_t lists_of(const reference::LinearCache& cache) { return cache.shape.sparse == Sparse::none ? 0 : 1; }

/// |scale| + |zero| of what an element was decoded with, or its own magnitude where that is greater or the element is
/// exact, or fp16's least normal number: below it rounding is not relative.
std::vector<float> spread_of(const ChannelQuantiser& q, const reference::MmaCache& cache, const Sequence& s) {
  std::vector<float> spread;
  const size_t columns = static_cast<size_t>(q.heads) * q.dim;
  for (size_t i = 0; i < s.unpacked.size(); ++i) {
    const bool exact = cache.exact_row(static_cast<int64_t>(i / columns)) >= 0;
    const float kept = exact ? 0 : std::fabs(q.scale[i % columns]) + std::fabs(q.zero[i % columns]);
    spread.push_back(std::max({std::fabs(s.unpacked[i]), kept, 0x1p-14f}));
  }
  return spread;
}
std::vector<float> spread_of(const TokenQuantiser& q, const reference::MmaCache& cache, const Sequence& s) {
  std::vector<float> spread;
  const size_t columns = static_cast<size_t>(q.heads) * q.dim;
  for (int t = 0; t < s.length; ++t) {
    float kept = 0;
    if (cache.exact_row(t) < 0) {
      const TokenRange range = reference::read_token(q.table, cache, t).range;
      kept = half_to_float(range.scale) + std::fabs(half_to_float(range.zero));
    }
    for (size_t i = t * columns; i < (t + 1) * columns; ++i) {
      spread.push_back(std::max({std::fabs(s.unpacked[i]), kept, 0x1p-14f}));
    }
  }
  return spread;
}
template <class Quantiser>
std::vector<float> spread_of(const Quantiser&, const reference::LinearCache&, const Sequence&) {
  return {};  // the bounds of linear-1 need none
}

/// Packs every sequence, all with the capacity that the fullest needs.
template <class Cache, class Quantiser>
void pack_all(const Case& c, const Quantiser& q, HostTensor& tensor) {
  const Cache* kind = nullptr;
  reference::CacheOptions options{.sink = c.sink, .residual = c.residual};
  for (const Sequence& s : tensor.sequences) {
    options.capacity = std::max(options.capacity, capacity_of(pack_as(kind, q, tensor.spec.tensor, s.x, options)));
  }
  for (Sequence& s : tensor.sequences) {
    auto cache = pack_as(kind, q, tensor.spec.tensor, s.x, options);
    tensor.facts = test::view(cache, nullptr);
    tensor.fixed_bytes = fixed_bytes_of(cache);
    tensor.lists = lists_of(cache);
    tensor.head_words = cache.head_words;
    s.unpacked = reference::unpack(q, cache);
    s.spread = spread_of(q, cache, s);
    s.pages = cache.pages;
    s.exact = cache.exact;
    s.needed = cache.needed;
    auto wide_options = options;
    wide_options.capacity += 20;
    const auto wide = pack_as(kind, q, tensor.spec.tensor, s.x, wide_options);
    s.wide = wide.pages;
    tensor.wide_page_bytes = page_bytes_of(wide);
    tensor.wide_capacity = static_cast<int32_t>(capacity_of(wide));
  }
  KvccCache& facts = tensor.facts;
  facts.pages = nullptr;
  facts.exact = nullptr;
  facts.head_words = facts.needed = nullptr;
  facts.layer = c.layer;
  facts.sequences = static_cast<int32_t>(c.lengths.size());
}

}  // namespace

std::string describe(const Case& c) {
  std::string lengths;
  for (const int length : c.lengths) lengths += (lengths.empty() ? "" : ",") + std::to_string(length);
  return c.set + ", " + std::to_string(c.heads) + " heads x " + std::to_string(c.group) + ", lengths " + lengths +
         (c.sink ? ", sink " + std::to_string(c.sink) : "") +
         (c.residual ? ", residual " + std::to_string(c.residual) : "") +
         (c.window ? ", window " + std::to_string(c.window) : "");
}

HostTensor make_tensor(const Case& c, const Spec& spec, Layout layout, std::mt19937& random) {
  HostTensor tensor;
  tensor.spec = spec;
  tensor.layout = layout;
  const int64_t columns = static_cast<int64_t>(c.heads) * spec.head_dim;
  for (const int length : c.lengths) {
    tensor.sequences.push_back({});
    tensor.sequences.back().length = length;
    tensor.sequences.back().x = made_rows(length, columns, random);
  }
  const LevelTable table = level_table(spec, c.layer, c.heads);
  if (spec.axis == Axis::channel) {
    ChannelQuantiser q =
        test::make_channel_quantiser(c.heads, spec.head_dim, table.bits, spec.sparse == Sparse::csr, random);
    q.table = table;
    layout == Layout::mma ? pack_all<reference::MmaCache>(c, q, tensor)
                          : pack_all<reference::LinearCache>(c, q, tensor);
    tensor.scale = q.scale;
    tensor.zero = q.zero;
    tensor.lower = q.threshold_lower;
    tensor.upper = q.threshold_upper;
  } else {
    TokenQuantiser q;
    q.heads = c.heads;
    q.dim = spec.head_dim;
    q.table = table;
    q.tail = spec.sparse == Sparse::tail ? c.tail : 0;
    layout == Layout::mma ? pack_all<reference::MmaCache>(c, q, tensor)
                          : pack_all<reference::LinearCache>(c, q, tensor);
  }
  return tensor;
}

std::vector<uint8_t> as_bytes(const std::vector<float>& x, device::Dtype dtype) { return test::as_dtype(x, dtype); }
std::vector<float> made_rows(int64_t rows, int64_t columns, std::mt19937& random) {
  return test::make_rows(rows, columns, random);
}

Rotary make_rotary(const Spec& spec, int64_t positions, double factor) {
  Rotary rotary;
  const bool interleaved = spec.rope == device::Rope::interleaved;
  const test::MmaRope rope = test::make_mma_rope(spec.rotary, interleaved, positions, factor);
  rotary.rotation = {interleaved, rope.frequencies, factor};
  for (int64_t p = 0; p < positions; ++p) {
    for (const double frequency : rope.frequencies) {
      rotary.cosine.push_back(static_cast<float>(std::cos(static_cast<double>(p) * frequency) * factor));
      rotary.sine.push_back(static_cast<float>(std::sin(static_cast<double>(p) * frequency) * factor));
    }
  }
  rotary.base_cosine = rope.base_cosine;
  rotary.base_sine = rope.base_sine;
  rotary.relative_cosine = rope.relative_cosine;
  rotary.relative_sine = rope.relative_sine;
  return rotary;
}

}  // namespace kvcc::gpu
