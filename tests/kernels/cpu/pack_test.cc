// pack of the CPU units, on every instruction set: pages equal to the reference's bit for bit, whatever the division
// into calls and the order of blocks, and to what the CUDA text leaves of tiles that overflow.
#include "kernels/device/copy_pages.cuh"
#include "tests/kernels/cpu/units.h"

namespace kvcc::test {
namespace {

void check(const Layer& layer, int sink, int residual, int tokens, uint32_t seed) {
  SCOPED_TRACE(testing::Message() << (layer.tensor == Tensor::key ? "key" : "value") << " bits " << +layer.bits[0]
                                  << " dim " << layer.dim << " heads " << layer.heads() << " tail " << layer.tail
                                  << " sink " << sink << " residual " << residual << " seed " << seed);
  std::mt19937 random(seed);
  Quantised q(layer, random);
  const auto x = make_rows(tokens, layer.columns(), random);
  const MmaCache wanted = q.pack(x, {.sink = sink, .residual = residual});
  const int packed = std::max(tokens - residual, std::min(tokens, sink));
  std::vector<std::vector<int>> ways = {{packed}, random_calls(packed, random), random_calls(packed, random)};
  if (seed % 3 == 0) ways.push_back(std::vector<int>(packed, 1));
  on_every_target([&] {
    for (const auto& calls : ways) {
      MmaCache cache = q.untouched(tokens, {.sink = sink, .residual = residual, .capacity = wanted.shape.capacity});
      ASSERT_EQ(append(q, x, 0, calls, seed, view(cache, nullptr)), 0u);
      ASSERT_NO_FATAL_FAILURE(expect_cache(wanted, cache, packed)) << calls.size() << " calls";
    }
  });
}

std::vector<uint8_t> heads(int count, int bits) { return std::vector<uint8_t>(count, static_cast<uint8_t>(bits)); }

/// Every width and head dimension, with and without sparse part.
void sweep(Tensor tensor, Axis axis) {
  uint32_t seed = 1;
  for (const int bits : {2, 3, 4, 8}) {
    for (const int dim : {16, 48, 64, 80, 96, 128, 256}) {
      for (const bool sparse : {false, true}) {
        const int count = 1 + static_cast<int>(seed % 3), columns = count * dim;
        const int tail = 1 + static_cast<int>(seed) * 7 % (columns / 2 - 1) % 40;
        const Dtype dtype = seed % 3 == 0 ? Dtype::f32 : seed % 3 == 1 ? Dtype::f16 : Dtype::bf16;
        check({tensor, dim, heads(count, bits), axis, sparse, axis == Axis::token ? tail : 0, dtype},
              static_cast<int>(seed % 5), seed % 4 == 0 ? 33 : 0, 70 + static_cast<int>(seed * 13 % 90), seed);
        ++seed;
      }
    }
  }
}
TEST(CpuPackKey, ChannelAxis) { sweep(Tensor::key, Axis::channel); }
TEST(CpuPackKey, TokenAxis) { sweep(Tensor::key, Axis::token); }
TEST(CpuPackValue, ChannelAxis) { sweep(Tensor::value, Axis::channel); }
TEST(CpuPackValue, TokenAxis) { sweep(Tensor::value, Axis::token); }

TEST(CpuPack, EdgeLengths) {
  for (const int tokens : {1, 3, 4, 11, 12, 63, 64, 65, 67, 68, 128}) {
    check({.tensor = Tensor::key}, 3, 0, tokens, 10 + tokens);
    check({.tensor = Tensor::value, .axis = Axis::token, .tail = 1}, 3, 0, tokens, 10 + tokens);
  }
}
TEST(CpuPack, WindowThatHoldsEverything) {
  check({.tensor = Tensor::value, .axis = Axis::token, .tail = 2}, 2, 200, 135, 3);
}
TEST(CpuPack, HeadsOfDifferentWidths) {
  check({.bits = {3, 2, 8, 4, 2}}, 1, 0, 100, 3);
  check({.tensor = Tensor::value, .bits = {4, 2, 3}, .axis = Axis::token, .tail = 5}, 1, 0, 100, 6);
}

// Rows of few distinct values and of one, where columns decide which of them are outliers; more than half of a row is
// outliers.
TEST(CpuPack, TailsAmongEqualValues) {
  for (const int tail : {1, 2, 5, 31, 95}) {
    Layer layer{.tensor = Tensor::value, .axis = Axis::token, .tail = tail};
    std::mt19937 random(tail);
    Quantised q(layer, random);
    std::vector<float> x(40 * layer.columns());
    for (size_t i = 0; i < x.size(); ++i) {
      const uint32_t kinds = 1 + static_cast<uint32_t>(i) / layer.columns() % 6;
      x[i] = static_cast<float>(static_cast<int>(random() % kinds) - 1) * (random() % 2 ? 1.0f : -1.0f);
    }
    const MmaCache wanted = q.pack(x, {});
    on_every_target([&] {
      MmaCache cache = q.untouched(40, {.capacity = wanted.shape.capacity});
      ASSERT_EQ(append(q, x, 0, {40}, 1, view(cache, nullptr)), 0u);
      ASSERT_NO_FATAL_FAILURE(expect_cache(wanted, cache, 40)) << "tail " << tail;
    });
  }
}

// A unit leaves heads alone that it does not serve; what all heads share is written by the one that serves head 0.
TEST(CpuPack, HeadsOfOtherUnits) {
  for (const Tensor tensor : {Tensor::key, Tensor::value}) {
    const Layer layer{.tensor = tensor,
                      .bits = {3, 2, 4, 2},
                      .axis = tensor == Tensor::key ? Axis::channel : Axis::token,
                      .tail = tensor == Tensor::key ? 0 : 3};
    std::mt19937 random(5);
    Quantised q(layer, random);
    const auto x = make_rows(100, layer.columns(), random);
    const MmaCache wanted = q.pack(x, {.sink = 1});
    const auto unpacked = q.unpack(wanted);
    on_every_target([&] {
      MmaCache cache = q.untouched(100, {.sink = 1, .capacity = wanted.shape.capacity});
      MmaCache source = wanted;
      std::vector<float> out(unpacked.size(), 12345.0f);
      const int32_t length = 100;
      for (const uint8_t bits : {2, 4, 3}) {
        ASSERT_NE(cache.needed, wanted.needed);
        for (size_t h = 0; h < 4; ++h) q.table().bits[h] = layer.bits[h] == bits ? bits : 0;
        ASSERT_EQ(append(q, x, 0, {40, 60}, bits, view(cache, nullptr)), 0u);
        const auto part = dequantise(q, view(source, &length), {0}, length, bits);
        for (size_t i = 0; i < part.size(); ++i) {
          const bool served = layer.bits[i / layer.dim % 4] == bits;
          ASSERT_EQ(float_bits(part[i]), float_bits(served ? unpacked[i] : 12345.0f)) << i;
        }
      }
      q.table().bits = layer.bits;
      ASSERT_NO_FATAL_FAILURE(expect_cache(wanted, cache, 100));
    });
  }
}

// Two sequences of unequal lengths grow in one launch, their pages in one pool behind a table, by three threads.
TEST(CpuPack, RaggedPagedBatch) {
  const int32_t before[2] = {90, 1};
  constexpr int kCount = 70, kSink = 3;
  for (const Layer& layer :
       {Layer{.tensor = Tensor::key, .bits = {3, 3}},
        Layer{.tensor = Tensor::value, .bits = {2, 2}, .axis = Axis::token, .tail = 2},
        Layer{.tensor = Tensor::value, .dim = 80, .bits = {4, 4}, .axis = Axis::token, .sparse = false}}) {
    std::mt19937 random(13);
    Quantised q(layer, random);
    std::vector<std::vector<float>> x;
    std::vector<MmaCache> wanted, empty;
    std::vector<uint8_t> rows;
    for (const int32_t n : before) {
      x.push_back(make_rows(n + kCount, layer.columns(), random));
      wanted.push_back(q.pack(x.back(), {.sink = kSink, .capacity = 4096}));
      empty.push_back(q.untouched(n + kCount, {.sink = kSink, .capacity = 4096}));
      const auto bytes = as_dtype({x.back().begin() + n * layer.columns(), x.back().end()}, layer.dtype);
      rows.insert(rows.end(), bytes.begin(), bytes.end());
    }
    on_every_target([&] {
      MmaBatch batch = make_batch(empty, random);
      for (int s = 0; s < 2; ++s) {
        KvccCache one = batch.view();
        one.page_table += s * one.max_pages;
        if (one.needed != nullptr) one.needed += s * one.max_pages * one.heads;
        one.exact += s * kSink * layer.columns();
        one.sequences = 1;
        ASSERT_EQ(append(q, x[s], 0, {before[s]}, 1, one), 0u);
      }
      uint32_t status = 0;
      KvccPackParams p{};
      p.cache = batch.view();
      q.set_constants(p.cache);
      p.x = rows.data();
      p.first = before;
      p.count = kCount;
      p.status = &status;
      pack_call(q, p, 5, 3);
      ASSERT_EQ(status, 0u);
      for (int s = 0; s < 2; ++s) {
        MmaCache found = empty[s];
        for (int64_t i = 0; i < found.page_count(); ++i) {
          std::memcpy(found.page(i), batch.page(s, i), mma::page_bytes(found.shape));
        }
        std::copy_n(batch.needed.begin() + s * p.cache.max_pages * p.cache.heads, found.needed.size(),
                    found.needed.begin());
        std::copy_n(batch.exact.begin() + s * kSink * layer.columns(), found.exact.size(), found.exact.begin());
        ASSERT_NO_FATAL_FAILURE(expect_cache(wanted[s], found, wanted[s].tokens)) << "sequence " << s;
      }
    });
  }
}

/// Decoding as a host does it, into lists that are too short at first, by the CPU unit and by the text of the CUDA
/// kernel side by side: every byte of pages, exact rows and `needed` is the same after every call, of tiles that
/// overflow too.
template <class C>
void check_overflow(int tail, uint32_t seed) {
  constexpr int kHeads = 3, kSink = 1, kTokens = 140;
  const Layer layer{C::kTensor, C::kHeadDim, heads(kHeads, C::kBits), C::kAxis, true, tail, C::kDtype};
  std::mt19937 random(seed);
  Quantised q(layer, random);
  std::mt19937 again(seed);
  auto device_q = make_quantiser<C>(kHeads, layer.bits, tail, again);
  auto x = make_rows(kTokens, layer.columns(), random);
  for (size_t i = 0; i < x.size(); ++i) {  // head 1 has most of the outliers
    if (i / layer.dim % kHeads == 1) x[i] *= 4.0f;
  }
  const auto calls = random_calls(kTokens, random);
  MmaCache cache = q.untouched(kTokens, {.sink = kSink, .capacity = 4}), device_cache = cache;
  int overflows = 0, first = 0;
  const auto call = [&](int count, int32_t repeat_above) {
    ASSERT_EQ(append(q, x, first, {count}, seed, view(cache, nullptr), repeat_above), 0u);
    ASSERT_EQ(test::append<C>(device_q, x, first, {count}, seed, view(device_cache, nullptr), repeat_above), 0u);
    ASSERT_TRUE(cache.needed == device_cache.needed);
    ASSERT_TRUE(cache.pages == device_cache.pages) << "tokens " << first << " to " << first + count;
    ASSERT_TRUE(cache.exact == device_cache.exact);
  };
  for (const int count : calls) {
    ASSERT_NO_FATAL_FAILURE(call(count, 0));
    for (uint32_t most; (most = *std::max_element(cache.needed.begin(), cache.needed.end())) > cache.shape.capacity;) {
      ++overflows;
      MmaCache larger = q.untouched(kTokens, {.sink = kSink, .capacity = cache.shape.capacity + 24});
      larger.exact = cache.exact;
      larger.needed = cache.needed;
      std::vector<int32_t> pairs;
      for (int32_t i = 0; i < cache.page_count(); ++i) pairs.insert(pairs.end(), {i, i});
      const auto p = copy_params(cache, larger, pairs);
      run_blocks(KVCC_CPU_COPY_PAGES, q.config(), &p, q.tables(), kvcc_grid_copy_pages(&p), seed);
      const int32_t above = static_cast<int32_t>(cache.shape.capacity);
      cache = larger;
      device_cache = larger;
      ASSERT_NO_FATAL_FAILURE(call(count, above));
    }
    first += count;
  }
  EXPECT_GT(overflows, 2);
  const MmaCache wanted = q.pack(x, {.sink = kSink, .capacity = cache.shape.capacity});
  ASSERT_EQ(wanted.shape.capacity, cache.shape.capacity);
  ASSERT_NO_FATAL_FAILURE(expect_cache(wanted, cache, kTokens));
}
TEST(CpuPack, OverflowIsRepeatedOnLargerPages) {
  on_every_target([] {
    for (const uint32_t seed : {1u, 2u}) {
      check_overflow<MmaConfig<Tensor::key, 3, 64, Axis::channel, Sparse::csr>>(0, seed);
      check_overflow<MmaConfig<Tensor::value, 2, 64, Axis::token, Sparse::tail>>(4, seed);
      check_overflow<MmaConfig<Tensor::value, 4, 80, Axis::channel, Sparse::csr>>(0, seed);
      check_overflow<MmaConfig<Tensor::key, 8, 48, Axis::token, Sparse::tail>>(3, seed);
    }
  });
}

/// What a value or two in a row of zeros do to the status.
uint32_t status_of(Layer layer, int sink, int token, float value, float other = 0) {
  std::mt19937 random(1);
  Quantised q(layer, random);
  std::vector<float> x(10 * layer.columns(), 0.0f);
  x[token * layer.columns() + layer.columns() - 2] = value;
  x[token * layer.columns()] = other;
  MmaCache cache = q.untouched(10, {.sink = sink, .capacity = 1024});
  return append(q, x, 0, {10}, 0, view(cache, nullptr));
}
TEST(CpuPack, Status) {
  const Layer key{.tensor = Tensor::key}, dense{.tensor = Tensor::key, .sparse = false};
  const Layer value{.tensor = Tensor::value, .axis = Axis::token, .tail = 1};
  const Layer plain{.tensor = Tensor::value, .axis = Axis::token, .sparse = false};
  const float nan = bits_float(0x7fc00000u), infinity = bits_float(0x7f800000u);
  on_every_target([&] {
    for (const Layer& layer : {key, dense, value, plain}) {
      for (const int token : {0, 9}) {
        for (const float bad : {nan, -nan, infinity, -infinity}) {
          EXPECT_EQ(status_of(layer, 2, token, bad), 1u * KVCC_STATUS_RANGE) << bad << " in token " << token;
        }
        EXPECT_EQ(status_of(layer, 2, token, 65504.0f), 0u);
      }
      EXPECT_EQ(status_of(layer, 2, 0, -65520.0f), 1u * KVCC_STATUS_RANGE);  // sinks are fp16
    }
    EXPECT_EQ(status_of(key, 2, 9, 65520.0f), 1u * KVCC_STATUS_RANGE);  // outliers are
    EXPECT_EQ(status_of(value, 2, 9, -65520.0f), 1u * KVCC_STATUS_RANGE);
    EXPECT_EQ(status_of(dense, 2, 9, 65520.0f), 0u);  // a static scale saturates
    EXPECT_EQ(status_of(plain, 2, 9, 65520.0f), 0u);  // half of the width and the centre fit
    EXPECT_EQ(status_of(plain, 2, 9, 131072.0f), 1u * KVCC_STATUS_RANGE);
    EXPECT_EQ(status_of(plain, 2, 9, 70000.0f, 70000.0f), 0u);
    EXPECT_EQ(status_of(plain, 2, 9, 70000.0f, -70000.0f), 1u * KVCC_STATUS_RANGE);  // the centre fits
    EXPECT_EQ(status_of(plain, 2, 9, 140000.0f, 140000.0f), 1u * KVCC_STATUS_RANGE);
    for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
      Layer narrow = dense;
      narrow.dtype = dtype;
      EXPECT_EQ(status_of(narrow, 0, 9, infinity), 1u * KVCC_STATUS_RANGE);
      EXPECT_EQ(status_of(narrow, 0, 9, nan), 1u * KVCC_STATUS_RANGE);
      EXPECT_EQ(status_of(narrow, 0, 9, -60000.0f), 0u);
    }
  });
}

// Class ends as no pack writes them, above the capacity: nothing past the list is written.
TEST(CpuPack, StrayClassEndsDoNotLeadPastTheList) {
  on_every_target([] {
    for (const uint16_t last : {uint16_t{40}, uint16_t{500}, uint16_t{60000}}) {
      std::mt19937 random(4);
      Quantised q({.bits = {3}}, random);
      const auto x = make_rows(20, 64, random);
      MmaCache cache = q.untouched(20, {.capacity = 1024});
      auto* const ends = reinterpret_cast<uint16_t*>(cache.page(0) + mma::ends_offset(cache.shape));
      for (int k = 0; k < 8; ++k) ends[k] = k == 7 ? last : 60000;
      KvccCache c = view(cache, nullptr);
      c.sparse_capacity = 512;  // of the 1024 that there is memory for
      append(q, x, 10, {10}, 0, c);
      EXPECT_GT(cache.needed[0], last);
      EXPECT_TRUE(std::all_of(cache.page(0) + mma::records_offset(cache.shape) + 512 * 4,
                              cache.page(0) + cache.pages.size(), [](uint8_t byte) { return byte == kUntouched; }));
    }
  });
}

}  // namespace
}  // namespace kvcc::test
