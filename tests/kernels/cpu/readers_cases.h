// Made-up batches for the tests of the CPU readers, what the reference makes of them in double, and the bounds that the
// units state (keys-inl.h, values-inl.h, attention-inl.h). Everything follows from the seed.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "kernels/cpu/units.h"
#include "tests/kernels/mma_cases.h"

namespace kvcc::test {

struct ReaderCase {
  int head_dim = 64, value_dim = 64;
  std::vector<uint8_t> key_bits = {4, 4}, value_bits = {4, 4};  ///< by head
  int key_axis = KVCC_AXIS_CHANNEL, value_axis = KVCC_AXIS_TOKEN;
  double outliers = 0.01;  ///< fraction; 0: no sparse part
  int rope = KVCC_ROPE_HALF, rotary = 64;
  int group = 3, splits = 1, sink = 1, residual = 0, window = 0;
  int dtype = KVCC_DTYPE_F32;
  std::vector<int> lengths = {150};
  bool contiguous = false;
  bool serves_key = true;  ///< of head 0: mixed widths
  uint32_t seed = 1;

  std::string name() const {
    const auto list = [](const auto& of) {
      std::string all;
      for (const auto x : of) all += (all.empty() ? "" : ",") + std::to_string(int(x));
      return all;
    };
    return "D " + std::to_string(head_dim) + "/" + std::to_string(value_dim) + " bits " + list(key_bits) + "/" +
           list(value_bits) + " axes " + std::to_string(key_axis) + std::to_string(value_axis) + " outliers " +
           std::to_string(outliers) + " rope " + std::to_string(rope) + "," + std::to_string(rotary) + " group " +
           std::to_string(group) + " splits " + std::to_string(splits) + " sink " + std::to_string(sink) +
           " residual " + std::to_string(residual) + " window " + std::to_string(window) + " dtype " +
           std::to_string(dtype) + " lengths " + list(lengths) + (contiguous ? " contiguous" : " paged") + " seed " +
           std::to_string(seed);
  }
};

/// One tensor of a batch: packed, unpacked, and how far an element of it may be off.
struct ReaderTensor {
  std::variant<ChannelQuantiser, TokenQuantiser> quantiser;
  LevelTable table;
  int head_dim = 0;
  std::vector<reference::MmaCache> caches;
  std::vector<std::vector<float>> values;   ///< [T, H, D] of each sequence
  std::vector<std::vector<double>> spread;  ///< |scale| + |zero|, or the value's magnitude where that is greater
  MmaBatch batch;
};

inline ReaderTensor make_reader_tensor(const ReaderCase& c, mma::Tensor tensor, std::mt19937& random) {
  const bool key = tensor == mma::Tensor::key;
  const auto& bits = key ? c.key_bits : c.value_bits;
  const int heads = static_cast<int>(bits.size()), d = key ? c.head_dim : c.value_dim, columns = heads * d;
  ReaderTensor out;
  out.head_dim = d;
  if ((key ? c.key_axis : c.value_axis) == KVCC_AXIS_CHANNEL) {
    auto q = make_channel_quantiser(heads, d, bits, c.outliers > 0, random);
    const float limit = c.outliers > 0.3 ? 0.4f : c.outliers > 0.03 ? 2.0f : 2.7f;
    for (float& x : q.threshold_lower) x = -limit;
    for (float& x : q.threshold_upper) x = limit;
    out.table = q.table;
    out.quantiser = q;
  } else {
    const int tail = c.outliers > 0 ? std::max(1, static_cast<int>(c.outliers * columns / 2)) : 0;
    auto q = make_token_quantiser(heads, d, bits, tail, random);
    out.table = q.table;
    out.quantiser = q;
  }
  std::visit(
      [&](const auto& q) {
        uint32_t capacity = 0;
        std::vector<std::vector<float>> rows;
        for (const int length : c.lengths) {
          rows.push_back(make_rows(length, columns, random));
          capacity =
              std::max(capacity, reference::pack_mma(q, tensor, rows.back(), {c.sink, c.residual, 4}).shape.capacity);
        }
        for (const auto& x : rows) {
          out.caches.push_back(reference::pack_mma(q, tensor, x, {c.sink, c.residual, capacity}));
          const reference::MmaCache& cache = out.caches.back();
          out.values.push_back(reference::unpack(q, cache));
          std::vector<double> spread(out.values.back().size());
          for (int64_t t = 0; t < cache.tokens; ++t) {
            const bool exact = cache.exact_row(t) >= 0;
            TokenRange range{};
            if (!exact) range = reference::read_token(q.table, cache, t).range;
            for (int i = 0; i < columns; ++i) {
              double wide = 0;
              if constexpr (requires { q.scale; }) {
                if (!exact) wide = std::fabs(q.scale[i]) + std::fabs(q.zero[i]);
              } else if (!exact) {
                wide = half_to_float(range.scale) + std::fabs(half_to_float(range.zero));
              }
              spread[t * columns + i] = std::max<double>(wide, std::fabs(out.values.back()[t * columns + i]));
            }
          }
          out.spread.push_back(spread);
        }
      },
      out.quantiser);
  if (c.contiguous) {
    out.batch.shape = out.caches[0];
    const size_t page_bytes = mma::page_bytes(out.batch.shape.shape);
    int most = 0;
    for (const auto& cache : out.caches) most = std::max(most, cache.page_count());
    out.batch.pages.assign(out.caches.size() * std::max(most, 1) * page_bytes + 128, 0xff);
    for (size_t s = 0; s < out.caches.size(); ++s) {
      out.batch.lengths.push_back(static_cast<int32_t>(out.caches[s].tokens));
      std::copy(out.caches[s].pages.begin(), out.caches[s].pages.end(),
                out.batch.pages.begin() + s * most * page_bytes);
      out.batch.exact.insert(out.batch.exact.end(), out.caches[s].exact.begin(), out.caches[s].exact.end());
    }
    out.batch.page_table.assign(out.caches.size() * most, 0);
  } else {
    out.batch = make_batch(out.caches, random);
  }
  return out;
}

/// A case with everything that units take. Pages lie at an address that is a multiple of 128.
class ReaderBatch {
 public:
  explicit ReaderBatch(const ReaderCase& c, int arithmetic = KVCC_ARITHMETIC_F32) : of(c), random_(c.seed) {
    key = make_reader_tensor(c, mma::Tensor::key, random_);
    value = make_reader_tensor(c, mma::Tensor::value, random_);
    const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    heads = static_cast<int>(c.key_bits.size());
    rope = make_mma_rope(c.rope == KVCC_ROPE_NONE ? 0 : c.rotary, c.rope == KVCC_ROPE_INTERLEAVED, longest + 1, 1.25);
    for (int r = 0; r < 2 * KVCC_ROPE_BLOCK; ++r) {
      for (const double f : rope.frequencies) {
        cosine_.push_back(static_cast<float>(std::cos(r * f)));
        sine_.push_back(static_cast<float>(std::sin(r * f)));
      }
    }
    key_bits_ = c.key_bits;
    if (!c.serves_key) key_bits_[0] = 0;
    value_bits_ = c.value_bits;
    tables = {key.table.levels.data(),
              value.table.levels.data(),
              key_bits_.data(),
              value_bits_.data(),
              key.table.stride,
              value.table.stride,
              cosine_.data(),
              sine_.data(),
              arithmetic};
    const int sparse = c.outliers > 0 ? KVCC_SPARSE_LISTED : KVCC_SPARSE_NONE;
    config = {{c.head_dim, c.key_axis, sparse}, {c.value_dim, c.value_axis, sparse}, c.rope, c.rotary, c.dtype};
    key_view = view_of(key, key_pages_);
    value_view = view_of(value, value_pages_);
    rope_view = rope.view();
  }
  ReaderBatch(const ReaderBatch&) = delete;

  std::vector<uint8_t> bytes_of(const std::vector<float>& x) const {
    return as_dtype(x, of.dtype == KVCC_DTYPE_F32   ? device::Dtype::f32
                       : of.dtype == KVCC_DTYPE_F16 ? device::Dtype::f16
                                                    : device::Dtype::bf16);
  }
  int sequences() const { return static_cast<int>(of.lengths.size()); }
  int first_visible(int s) const { return of.window > 0 ? std::max(of.lengths[s] - of.window, 0) : 0; }
  std::mt19937& random() { return random_; }

  ReaderCase of;
  int heads = 0;
  ReaderTensor key, value;
  MmaRope rope;
  KvccCpuTables tables{};
  KvccCpuConfig config{};
  KvccCache key_view{}, value_view{};
  KvccRope rope_view{};

 private:
  struct alignas(128) Line {
    uint8_t byte[128];
  };
  KvccCache view_of(ReaderTensor& tensor, std::vector<Line>& lines) const {
    KvccCache c = tensor.batch.view();
    lines.resize(tensor.batch.pages.size() / sizeof(Line) + 1);
    std::memcpy(static_cast<void*>(lines.data()), tensor.batch.pages.data(), tensor.batch.pages.size());
    c.pages = lines.data()->byte;
    if (of.contiguous) c.page_table = nullptr;
    std::visit([&](const auto& q) { set_constants(c, q); }, tensor.quantiser);
    return c;
  }
  std::mt19937 random_;
  std::vector<float> cosine_, sine_;
  std::vector<uint8_t> key_bits_, value_bits_;
  std::vector<Line> key_pages_, value_pages_;
};

/// Relative errors that the units state.
struct ReaderErrors {
  double key, value;
};
inline ReaderErrors stated_errors(const ReaderCase& c, int arithmetic) {
  if (arithmetic == KVCC_ARITHMETIC_F32) return {0x1p-20, 0x1p-20};
  // Of the f32 tables; of the one rounding to f32, or of partial results in f32.
  if (arithmetic == KVCC_ARITHMETIC_F64) return {0x1p-22, c.splits > 1 ? 0x1p-21 : 0x1p-23};
  return {c.outliers > 0 ? 0x1p-9 : 0x1p-11, c.outliers > 0 ? 0x1p-9 : 0x1p-11};
}

/// Score bounds [H * group, T] of sequence s.
inline std::vector<double> reader_score_bounds(const ReaderBatch& b, int s, const std::vector<float>& query,
                                               double multiplier, double error) {
  const int d = b.of.head_dim, half = b.of.rope == KVCC_ROPE_NONE ? 0 : b.of.rotary / 2;
  const int64_t tokens = b.of.lengths[s];
  std::vector<double> bounds(static_cast<size_t>(b.heads) * b.of.group * tokens);
  for (int row = 0; row < b.heads * b.of.group; ++row) {
    const float* q = query.data() + static_cast<size_t>(row) * d;
    for (int64_t t = 0; t < tokens; ++t) {
      const double* k = b.key.spread[s].data() + (t * b.heads + row / b.of.group) * d;
      double sum = 0;
      for (int i = 0; i < half; ++i) {
        const bool pairs = b.of.rope == KVCC_ROPE_INTERLEAVED;
        const int x = pairs ? 2 * i : i, y = pairs ? 2 * i + 1 : i + half;
        sum += b.rope.factor * std::hypot(q[x], q[y]) * std::hypot(k[x], k[y]);
      }
      for (int c = 2 * half; c < d; ++c) sum += std::fabs(q[c]) * k[c];
      bounds[row * tokens + t] = error * std::fabs(multiplier) * sum;
    }
  }
  return bounds;
}

/// Errors against their bounds; the greatest ratio is kept.
class Ratio {
 public:
  void add(double found, double wanted, double bound, const std::string& what) {
    const double error = std::fabs(found - wanted);
    if (!(error <= bound + 1e-35) && failures_++ < 3) {
      ADD_FAILURE() << what << ": found " << found << ", wanted " << wanted << " within " << bound;
    }
    if (bound > 0) greatest = std::max(greatest, error / bound);
  }
  double greatest = 0;

 private:
  int failures_ = 0;
};

}  // namespace kvcc::test
