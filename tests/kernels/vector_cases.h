// What the tests of layout vector-1 share: made-up vector codebooks of both forms, batches of several sequences behind
// a page table. Everything follows from the seed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "formats/codec/vector_codec.h"
#include "kernels/reference/vector_cache.h"

namespace kvcc::test {

struct VectorForm {
  int heads = 2, dim = 64;
  bool transform = true;  ///< else every channel follows from one group
  int most_bits = 8;      ///< of a group
  int widest = 4;         ///< coordinates of a group
};

/// Groups of all widths and of 0 to most_bits bits in a random order, whose inverse is one only nearly; without a
/// transform, channels in a random order, mixed within their group.
inline VectorQuantiser make_vector_quantiser(const VectorForm& form, std::mt19937& random) {
  std::normal_distribution<float> normal;
  VectorQuantiser q{form.heads, form.dim, form.heads, {}, {}, {}, {}, {}, {}};
  const int n = form.dim;
  for (int h = 0; h < form.heads; ++h) {
    std::vector<int> channel(n), group(n);
    std::iota(channel.begin(), channel.end(), 0);
    if (!form.transform) std::shuffle(channel.begin(), channel.end(), random);
    for (int at = 0, number = 0; at < n; ++number) {
      const int width = std::min<int>(1 + static_cast<int>(random() % form.widest), n - at);
      const int bits = static_cast<int>(random() % (form.most_bits + 1));
      for (int i = 0; i < width; ++i) {
        q.width.push_back(static_cast<uint8_t>(i == 0 ? width : 0));
        q.bits.push_back(static_cast<uint8_t>(i == 0 ? bits : 0));
        group[at + i] = number;
      }
      for (int i = 0; i < width << bits; ++i) q.vectors.push_back(normal(random));
      at += width;
    }
    for (int i = 0; i < n; ++i) q.mean.push_back(normal(random));
    std::vector<float> forward(n * n), inverse(n * n);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        if (!form.transform && group[i] != group[j]) continue;
        const float own = i == j ? 1.0f : 0.0f, off = 0.2f * normal(random);
        forward[i * n + channel[j]] = own + off;
        inverse[channel[j] * n + i] = own - off;
      }
    }
    q.forward.insert(q.forward.end(), forward.begin(), forward.end());
    q.inverse.insert(q.inverse.end(), inverse.begin(), inverse.end());
  }
  return q;
}

/// The sum of magnitudes behind every decoded value: what rounding errors are relative to.
inline std::vector<float> magnitudes(VectorQuantiser q, const reference::VectorCache& cache) {
  for (auto* part : {&q.mean, &q.inverse, &q.vectors}) {
    for (float& x : *part) x = std::fabs(x);
  }
  std::vector<float> all = reference::unpack(q, cache);
  for (float& x : all) x = std::fabs(x);
  return all;
}

/// Several sequences in one pool, as units take them: pages in a shuffled order, pages and table entries that no
/// sequence uses filled with ones.
struct VectorBatch {
  reference::VectorCache first;  ///< one of the sequences: what they have in common
  std::vector<uint8_t> memory;
  std::vector<int32_t> page_table, lengths;
  std::vector<uint16_t> exact;

  VectorBatch(const std::vector<reference::VectorCache>& caches, std::mt19937& random) : first(caches.at(0)) {
    const size_t bytes = first.shape.page_bytes();
    int64_t most = 0, total = 2;
    for (const auto& cache : caches) {
      most = std::max<int64_t>(most, cache.page_count());
      total += cache.page_count();
    }
    std::vector<int32_t> free(total);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random);
    memory.assign(total * bytes + vector_page::kPageAlign, 0xff);
    page_table.assign(caches.size() * most, -1);
    for (size_t s = 0; s < caches.size(); ++s) {
      lengths.push_back(static_cast<int32_t>(caches[s].tokens));
      exact.insert(exact.end(), caches[s].exact.begin(), caches[s].exact.end());
      for (int64_t i = 0; i < caches[s].page_count(); ++i) {
        page_table[s * most + i] = free.back();
        std::memcpy(pages() + free.back() * bytes, caches[s].pages.data() + i * bytes, bytes);
        free.pop_back();
      }
    }
  }
  VectorBatch(const VectorBatch&) = delete;

  uint8_t* pages() {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (vector_page::kPageAlign - address % vector_page::kPageAlign) % vector_page::kPageAlign;
  }
  KvccCache view() {
    KvccCache c{};
    c.pages = pages();
    c.page_table = page_table.data();
    c.lengths = lengths.data();
    c.exact = exact.empty() ? nullptr : exact.data();
    c.head_words = first.shape.head_words.data();
    c.page_bytes = static_cast<int64_t>(first.shape.page_bytes());
    c.code_words = static_cast<int32_t>(first.shape.code_words);
    c.sequences = static_cast<int32_t>(lengths.size());
    c.max_pages = static_cast<int32_t>(page_table.size() / lengths.size());
    c.heads = first.shape.heads;
    c.sink = first.sink;
    c.residual = first.residual;
    return c;
  }
};

}  // namespace kvcc::test
