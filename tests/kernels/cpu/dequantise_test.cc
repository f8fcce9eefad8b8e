// dequantise and copy_pages of the CPU units, on every instruction set: bit-equal to the reference.
#include "tests/kernels/cpu/units.h"

namespace kvcc::test {
namespace {

void check(const Layer& layer, int sink, int residual, int tokens, uint32_t seed) {
  SCOPED_TRACE(testing::Message() << (layer.tensor == Tensor::key ? "key" : "value") << " bits " << +layer.bits[0]
                                  << " dim " << layer.dim << " sink " << sink << " residual " << residual << " tokens "
                                  << tokens << " seed " << seed);
  std::mt19937 random(seed);
  Quantised q(layer, random);
  const auto x = make_rows(tokens, layer.columns(), random);
  MmaCache cache = q.pack(x, {.sink = sink, .residual = residual});
  const auto all = q.unpack(cache);
  on_every_target([&] {
    for (const auto& [first, count] : {std::pair{0, tokens}, {7, tokens + 10}, {tokens / 2, 1}, {3, 9}}) {
      std::vector<float> wanted(static_cast<size_t>(count) * layer.columns(), 12345.0f);
      if (first < tokens) {
        std::copy_n(all.begin() + first * layer.columns(), std::min(count, tokens - first) * layer.columns(),
                    wanted.begin());
      }
      const auto found = dequantise(q, view(cache, &tokens), {first}, count, seed);
      for (size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_EQ(float_bits(found[i]), float_bits(wanted[i]))
            << "from " << first << ", " << count << ", element " << i;
      }
    }
  });
}

void sweep(Tensor tensor, Axis axis) {
  uint32_t seed = 1;
  for (const int bits : {2, 3, 4, 8}) {
    for (const int dim : {16, 48, 64, 80, 96, 128, 256}) {
      for (const bool sparse : {false, true}) {
        const int count = 1 + static_cast<int>(seed % 3);
        const Layer layer{tensor, dim,    std::vector<uint8_t>(count, static_cast<uint8_t>(bits)),
                          axis,   sparse, axis == Axis::token ? 1 + static_cast<int>(seed % 5) : 0};
        check(layer, static_cast<int>(seed % 5), seed % 4 == 0 ? 33 : 0, 70 + static_cast<int>(seed * 13 % 90), seed);
        ++seed;
      }
    }
  }
}
TEST(CpuDequantiseKey, ChannelAxis) { sweep(Tensor::key, Axis::channel); }
TEST(CpuDequantiseKey, TokenAxis) { sweep(Tensor::key, Axis::token); }
TEST(CpuDequantiseValue, ChannelAxis) { sweep(Tensor::value, Axis::channel); }
TEST(CpuDequantiseValue, TokenAxis) { sweep(Tensor::value, Axis::token); }

TEST(CpuDequantise, EdgeLengths) {
  for (const int tokens : {1, 2, 3, 4, 40, 66, 67, 68, 131, 132}) {
    check({.tensor = Tensor::key}, 3, 0, tokens, 1);
    check({.tensor = Tensor::value, .axis = Axis::token, .tail = 1}, 3, 40, tokens, 2);
  }
}

// Sequences of unequal lengths, one of them empty, with pages behind a table.
TEST(CpuDequantise, RaggedPagedBatch) {
  const Layer layer{.tensor = Tensor::value, .axis = Axis::token, .tail = 2};
  std::mt19937 random(3);
  Quantised q(layer, random);
  std::vector<MmaCache> caches;
  std::vector<std::vector<float>> all;
  for (const int tokens : {150, 0, 70, 1}) {
    caches.push_back(q.pack(make_rows(tokens, layer.columns(), random), {.sink = 1, .residual = 5, .capacity = 4096}));
    all.push_back(q.unpack(caches.back()));
  }
  MmaBatch batch = make_batch(caches, random);
  const std::vector<int32_t> first = {60, 0, 0, 0};
  constexpr int kCount = 80;
  std::vector<float> wanted(first.size() * kCount * layer.columns(), 12345.0f);
  for (size_t s = 0; s < first.size(); ++s) {
    const int n = std::min(kCount, batch.lengths[s] - first[s]);
    std::copy_n(all[s].begin() + first[s] * layer.columns(), n * layer.columns(),
                wanted.begin() + s * kCount * layer.columns());
  }
  on_every_target([&] {
    const auto found = dequantise(q, batch.view(), first, kCount, 2);
    ASSERT_EQ(std::memcmp(found.data(), wanted.data(), wanted.size() * 4), 0);
  });
}

// A page with class ends above the capacity and records of any bits, as no pack writes them: nothing is read past the
// list, and nothing written beside the rows.
TEST(CpuDequantise, StrayRecordsStayInside) {
  constexpr int kCapacity = 200, kDim = 48, kCount = 20;
  std::mt19937 random(3);
  Quantised q({.dim = kDim, .bits = {3}}, random);
  MmaCache cache = q.pack(make_rows(64, kDim, random), {.capacity = 1024});
  auto* const ends = reinterpret_cast<uint16_t*>(cache.page(0) + mma::ends_offset(cache.shape));
  auto* const records = reinterpret_cast<mma::Record*>(cache.page(0) + mma::records_offset(cache.shape));
  for (int k = 0; k < 8; ++k) ends[k] = static_cast<uint16_t>(k < 3 ? 60 * (k + 1) : 1000);
  const uint16_t beyond = float_to_half(777.0f);
  for (int i = 0; i < 1024; ++i) {
    records[i] = {static_cast<uint16_t>(i < kCapacity ? random() : random() % 8 << 8),
                  i < kCapacity ? uint16_t{0} : beyond};
  }
  KvccCache c = view(cache, nullptr);
  q.set_constants(c);
  const int32_t length = 64, first = 8;  // bands 1, 2 and 3
  c.lengths = &length;
  c.sparse_capacity = kCapacity;  // of the 1024 that there is memory for
  on_every_target([&] {
    std::vector<float> out(3 * kCount * kDim, 12345.0f);
    KvccDequantiseParams p{};
    p.cache = c;
    p.out = out.data() + kCount * kDim;
    p.first = &first;
    p.count = kCount;
    run_blocks(KVCC_CPU_DEQUANTISE_KEY, q.config(), &p, q.tables(), kvcc_grid_mma_dequantise(&p), 0);
    for (int i = 0; i < kCount * kDim; ++i) {
      ASSERT_TRUE(out[i] == 12345.0f && out[i + 2 * kCount * kDim] == 12345.0f) << i;
      ASSERT_NE(out[i + kCount * kDim], 777.0f);
      ASSERT_NE(out[i + kCount * kDim], 12345.0f);
    }
  });
}

struct CopyCase {
  const char* name;
  int lists;
  int64_t fixed_bytes;
  int source_capacity, target_capacity;
};
TEST(CpuCopyPages, AnyConfiguration) {
  std::mt19937 random(1);
  for (const CopyCase& c :
       {CopyCase{"no records", 0, 2 * 64 * 3 * 8, 0, 0}, CopyCase{"equal capacities", 3, 4096 + 3 * 64, 64, 64},
        CopyCase{"larger lists", 3, 4096 + 3 * 16, 20, 36}, CopyCase{"smaller lists", 2, 5120 + 256 + 128, 64, 12},
        CopyCase{"linear-1", 1, 3 * 64 * 8 + 4, 7, 9}}) {
    SCOPED_TRACE(c.name);
    constexpr int kPages = 6;
    const auto bytes_of = [&](int capacity) { return (c.fixed_bytes + c.lists * capacity * 4 + 127) / 128 * 128; };
    const int64_t from_bytes = bytes_of(c.source_capacity), to_bytes = bytes_of(c.target_capacity);
    std::vector<uint8_t> source(kPages * from_bytes);
    for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
    const std::vector<int32_t> pairs = {4, 0, 0, 5, 2, 1};
    std::vector<uint8_t> wanted(kPages * to_bytes, 0xab);
    for (size_t i = 0; i < pairs.size(); i += 2) {
      for (int64_t b = 0; b < c.fixed_bytes; ++b) {
        wanted[pairs[i + 1] * to_bytes + b] = source[pairs[i] * from_bytes + b];
      }
      for (int l = 0; l < c.lists; ++l) {
        for (int b = 0; b < std::min(c.source_capacity, c.target_capacity) * 4; ++b) {
          wanted[pairs[i + 1] * to_bytes + c.fixed_bytes + l * c.target_capacity * 4 + b] =
              source[pairs[i] * from_bytes + c.fixed_bytes + l * c.source_capacity * 4 + b];
        }
      }
    }
    on_every_target([&] {
      std::vector<uint8_t> target(kPages * to_bytes, 0xab);
      KvccCopyPagesParams p{};
      p.source = source.data();
      p.target = target.data();
      p.pairs = pairs.data();
      p.source_page_bytes = from_bytes;
      p.target_page_bytes = to_bytes;
      p.fixed_bytes = c.fixed_bytes;
      p.lists = c.lists;
      p.source_capacity = c.source_capacity;
      p.target_capacity = c.target_capacity;
      p.count = static_cast<int32_t>(pairs.size() / 2);
      run_blocks(KVCC_CPU_COPY_PAGES, {}, &p, {}, kvcc_grid_copy_pages(&p), 1);
      EXPECT_TRUE(target == wanted);
    });
  }
}

}  // namespace
}  // namespace kvcc::test
