// Shipped rows of attention in the emulator, splits merged: the same bits under every schedule, within the stated bound
// of attention in double. KVCC_PART(head_dim) says which rows a file takes, so that files compile beside each other.
#include "kernels/device/attention.cuh"
#include "tests/kernels/emulated/readers.h"

namespace kvcc::test {
namespace {

constexpr float kMultiplier = 0.0625f;

template <class C>
std::vector<float> run_attention(const Shape& shape, const KvccCache& key, const KvccCache& value, const KvccRope& rope,
                                 const std::vector<float>& query, const emulator::Options& options,
                                 std::vector<float> out) {
  constexpr int D = C::Value::kHeadDim;
  const AlignedBytes bytes(as_dtype(query, C::kDtype));
  std::vector<float> partial(shape.splits > 1 ? out.size() / D * (D + 2) * shape.splits : 0, bits_float(0x7fc00000u));
  KvccAttentionParams p{};
  p.key = key;
  p.value = value;
  p.value.page_table = key.page_table;  // one table for both, by contract
  p.rope = rope;
  p.query = bytes.data();
  p.partial = partial.empty() ? nullptr : partial.data();
  p.out = out.data();
  p.multiplier = kMultiplier;
  p.group = shape.group;
  p.splits = shape.splits;
  p.window = shape.window;
  emulator::run<device::Attention<C>>(p, kvcc_grid_mma_attention(&p), options, "attention");
  if (shape.splits > 1) {
    emulator::run<device::AttentionMerge<C>>(p, kvcc_grid_mma_attention_merge(&p), options, "attention_merge");
  }
  return out;
}

/// Both tensors behind the keys' table.
template <class C>
void share_table(const Packed<typename C::Key>& keys, Packed<typename C::Value>& values) {
  const size_t page_bytes = mma::page_bytes(values.batch.shape.shape);
  std::vector<uint8_t> pages(values.batch.pages.size(), 0xff);
  for (size_t i = 0; i < keys.batch.page_table.size(); ++i) {
    if (keys.batch.page_table[i] < 0) continue;
    std::memcpy(pages.data() + keys.batch.page_table[i] * page_bytes,
                values.batch.pages.data() + values.batch.page_table[i] * page_bytes, page_bytes);
  }
  values.batch.pages = pages;
  values.batch.page_table = keys.batch.page_table;
}

template <class C>
void expect_attention(const Shape& shape, const Packed<typename C::Key>& keys, const Packed<typename C::Value>& values,
                      const MmaRope& rope, const std::vector<float>& query, const std::vector<float>& found) {
  constexpr int D = C::Value::kHeadDim;
  const int rows = shape.heads * shape.group;
  const reference::Rotation rotation{rope.interleaved, rope.frequencies, rope.factor};
  Errors errors;
  for (size_t s = 0; s < shape.lengths.size(); ++s) {
    const int length = shape.lengths[s], first = first_visible(shape, s);
    const auto q = rows_of_sequence(query, s, shape.lengths.size());
    const auto wanted = reference::attention(keys.unpacked[s], values.unpacked[s], q,
                                             {shape.heads, D, D, shape.group, shape.window, kMultiplier}, rotation);
    const auto scores = reference::key_scores(keys.unpacked[s], q, shape.heads, D, shape.group, rotation, kMultiplier);
    const auto off = score_bounds(keys, s, q, shape.group, kMultiplier, rope.factor);
    const std::vector<double> spread = spread_of(values, s);
    for (int row = 0; row < rows; ++row) {
      const double* const score = scores.value.data() + static_cast<size_t>(row) * length;
      for (int d = 0; d < D; ++d) {
        const double out = wanted.value[row * D + d];
        double sensitivity = 0, most = 0;
        for (int p = first; p < length; ++p) {
          const size_t at = (static_cast<size_t>(p) * shape.heads + row / shape.group) * D + d;
          const double weight = std::exp(score[p] - wanted.peak[row]) / wanted.sum[row];
          sensitivity += weight * off[row * length + p] * std::fabs(values.unpacked[s][at] - out);
          most = std::max(most, spread[at]);
        }
        errors.add(
            found[(s * rows + row) * D + d], out, sensitivity + kRounding * most,
            "sequence " + std::to_string(s) + ", query " + std::to_string(row) + ", channel " + std::to_string(d));
      }
    }
  }
  errors.expect_small(0.05);
}

template <class C>
void check_attention(const Shape& shape, std::mt19937& random) {
  Packed<typename C::Key> keys = make_packed<typename C::Key>(shape, random);
  Packed<typename C::Value> values = make_packed<typename C::Value>(shape, random);
  share_table<C>(keys, values);
  const MmaRope rope =
      make_mma_rope(C::kRotaryDim, C::kRope == Rope::interleaved, longest(shape), C::kRotaryDim ? 1.25 : 1.0);
  const auto query = make_queries(shape, C::Key::kHeadDim, random);
  const std::vector<float> out(shape.lengths.size() * shape.heads * shape.group * C::Value::kHeadDim,
                               bits_float(0x7fc00000u));
  const auto found = under_all_schedules([&](const auto& options) {
    return bits_of(run_attention<C>(shape, keys.view(), values.view(), rope.view(), query, options, out));
  });
  expect_attention<C>(shape, keys, values, rope, query, floats_of(found));
}

template <bool part, class C>
void add_row(const char* name) {
  if constexpr (part) {
    class Row : public testing::Test {
     public:
      void TestBody() override { over_shapes(edge_shapes(groups_of(C::kGroupTile)), check_attention<C>); }
    };
    testing::RegisterTest("EmulatedAttention", name, nullptr, nullptr, __FILE__, __LINE__,
                          []() -> testing::Test* { return new Row; });
  }
}

const bool rows_added = [] {
#define KVCC_ATTENTION_ROW(name, head_dim, ...) add_row<KVCC_PART(head_dim) && included(head_dim), __VA_ARGS__>(#name);
#include "kernels/list/attention.inc"
  return true;
}();

}  // namespace
}  // namespace kvcc::test
