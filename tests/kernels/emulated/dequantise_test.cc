// Every shipped row of dequantise_key and dequantise_value of layout mma-1 in the emulator, and copy_pages: bit-equal
// to the reference under every schedule.
#include "kernels/device/mma_dequantise.cuh"

#include "kernels/device/copy_pages.cuh"
#include "tests/kernels/emulated/batches.h"

namespace kvcc::test {
namespace {

/// Positions [first, first + count) of every sequence; positions at and beyond the length must stay as they are.
template <class C>
void check_range(const Shape& shape, Packed<C>& packed, const std::vector<int32_t>& first, int count) {
  const size_t columns = static_cast<size_t>(shape.heads) * C::kHeadDim;
  constexpr float kUntouched = 12345.0f;
  const auto found = under_all_schedules([&](const auto& options) {
    std::vector<float> out(first.size() * count * columns, kUntouched);
    KvccDequantiseParams p{};
    p.cache = packed.view();
    p.out = out.data();
    p.first = first.data();
    p.count = count;
    emulator::run<device::MmaDequantise<C>>(p, kvcc_grid_mma_dequantise(&p), options, "dequantise");
    return bits_of(out);
  });
  for (size_t s = 0; s < first.size(); ++s) {
    for (int i = 0; i < count; ++i) {
      const int position = first[s] + i;
      for (size_t c = 0; c < columns; ++c) {
        const float wanted = position < shape.lengths[s] ? packed.unpacked[s][position * columns + c] : kUntouched;
        ASSERT_EQ(found[(s * count + i) * columns + c], float_bits(wanted))
            << "sequence " << s << ", position " << position << ", column " << c;
      }
    }
  }
}

template <class C>
void check_dequantise(const Shape& shape, std::mt19937& random) {
  Packed<C> packed = make_packed<C>(shape, random);
  const int longest = *std::max_element(shape.lengths.begin(), shape.lengths.end());
  const std::vector<int32_t> start(shape.lengths.size(), 0);
  ASSERT_NO_FATAL_FAILURE(check_range<C>(shape, packed, start, longest + 3));
  std::vector<int32_t> ragged;
  for (size_t s = 0; s < shape.lengths.size(); ++s) ragged.push_back(shape.lengths[s] / (static_cast<int>(s) + 2));
  ASSERT_NO_FATAL_FAILURE(check_range<C>(shape, packed, ragged, longest / 2 + 1));
}

template <class C>
void check_row() {
  if constexpr (included(C::kHeadDim)) {
    over_shapes(edge_shapes_of_rows(C::kAxis), check_dequantise<C>);
  } else {
    GTEST_SKIP() << "not of this build";
  }
}

#define KVCC_ROW(name, ...) \
  TEST(KVCC_SUITE, name) { check_row<__VA_ARGS__>(); }
#define KVCC_SUITE EmulatedDequantiseKey
#define KVCC_TENSOR key
#include "kernels/list/mma_dequantise_key.inc"
#undef KVCC_SUITE
#undef KVCC_TENSOR
#define KVCC_SUITE EmulatedDequantiseValue
#define KVCC_TENSOR value
#include "kernels/list/mma_dequantise_value.inc"

struct CopyCase {
  const char* name;
  int lists;
  int64_t fixed_bytes;
  int source_capacity, target_capacity;
};

/// Random bytes from one pool to another; bytes that are no part of what is copied stay.
void check_copy(const CopyCase& c, std::mt19937& random) {
  constexpr int kPages = 6;
  const auto page_bytes = [&](int capacity) { return (c.fixed_bytes + c.lists * capacity * 4 + 127) / 128 * 128; };
  const int64_t from_bytes = page_bytes(c.source_capacity), to_bytes = page_bytes(c.target_capacity);
  struct alignas(128) Line {
    uint8_t byte[128];
  };
  std::vector<Line> source(kPages * from_bytes / 128);
  auto* const bytes = reinterpret_cast<uint8_t*>(source.data());
  for (int64_t i = 0; i < kPages * from_bytes; ++i) bytes[i] = static_cast<uint8_t>(random());
  const std::vector<int32_t> pairs = {4, 0, 0, 5, 2, 1};
  const auto found = under_all_schedules([&](const auto& options) {
    std::vector<Line> target(kPages * to_bytes / 128);
    std::memset(static_cast<void*>(target.data()), 0xab, kPages * to_bytes);
    KvccCopyPagesParams p{};
    p.source = bytes;
    p.target = reinterpret_cast<uint8_t*>(target.data());
    p.pairs = pairs.data();
    p.source_page_bytes = from_bytes;
    p.target_page_bytes = to_bytes;
    p.fixed_bytes = c.fixed_bytes;
    p.lists = c.lists;
    p.source_capacity = c.source_capacity;
    p.target_capacity = c.target_capacity;
    p.count = static_cast<int32_t>(pairs.size() / 2);
    emulator::run<device::CopyPages>(p, kvcc_grid_copy_pages(&p), options, "copy_pages");
    const auto* const out = reinterpret_cast<const uint8_t*>(target.data());
    return std::vector<uint8_t>(out, out + kPages * to_bytes);
  });
  std::vector<uint8_t> wanted(found.size(), 0xab);
  for (size_t i = 0; i < pairs.size(); i += 2) {
    const uint8_t* const from = bytes + pairs[i] * from_bytes;
    uint8_t* const to = wanted.data() + pairs[i + 1] * to_bytes;
    std::memcpy(to, from, c.fixed_bytes);
    for (int l = 0; l < c.lists; ++l) {
      std::memcpy(to + c.fixed_bytes + l * c.target_capacity * 4, from + c.fixed_bytes + l * c.source_capacity * 4,
                  std::min(c.source_capacity, c.target_capacity) * 4);
    }
  }
  EXPECT_TRUE(found == wanted);
}

#define KVCC_SHIP_COPY(registers)                                                                                     \
  TEST(EmulatedCopyPages, AnyConfiguration) {                                                                         \
    std::mt19937 random(1);                                                                                           \
    for (const CopyCase& c :                                                                                          \
         {CopyCase{"no records", 0, 2 * 64 * 3 * 8, 0, 0}, CopyCase{"equal capacities", 3, 4096 + 3 * 64, 64, 64},    \
          CopyCase{"larger lists", 3, 4096 + 3 * 16, 20, 36}, CopyCase{"smaller lists", 2, 5120 + 256 + 128, 64, 12}, \
          CopyCase{"linear-1, unaligned", 1, 3 * 64 * 8 + 4, 7, 9},                                                   \
          CopyCase{"more than a block's words", 1, 20000, 3, 3}}) {                                                   \
      SCOPED_TRACE(c.name);                                                                                           \
      check_copy(c, random);                                                                                          \
    }                                                                                                                 \
  }
#include "kernels/list/copy_pages.inc"

}  // namespace
}  // namespace kvcc::test
