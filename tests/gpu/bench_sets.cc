// Times of a set's kernels over caches packed on the device.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "formats/layout/mma_launch.h"
#include "tests/gpu/bench_place.h"

namespace kvcc::gpu {

/// One tensor of a set, packed on the device from the fp16 numbers.
struct Place::Packed {
  const Place& place;
  const Set& set;
  const Spec& spec;
  const TensorKernels& kernels;
  KvccCache cache{};
  size_t pool_bytes = 0;  ///< of one copy
  int64_t fixed_bytes = 0;
  int copies = 1;
  double records = 0;  ///< bytes of a copy's records in use
  Array<uint8_t> pool;
  Array<float> scale, zero, lower, upper, inliers;
  Array<uint32_t> needed, status, selected;
  Array<int32_t> first;  ///< [64]: positions tokens - 64 …, and 0

  Packed(const Place& at, const Set& set_, mma::Tensor tensor)
      : place(at),
        set(set_),
        spec(tensor == mma::Tensor::key ? set_.key : set_.value),
        kernels(tensor == mma::Tensor::key ? set_.parts[0].key : set_.parts[0].value) {
    Launcher& launcher = place.launcher_;
    const int heads = place.model_.heads, columns = heads * kHeadDim;
    const bool is_mma = set.layout == Layout::mma, sparse = spec.sparse != linear::Sparse::none;
    const bool token = spec.axis == device::Axis::token;
    cache.page_table = place.page_table_.data();
    cache.lengths = place.length_.data();
    cache.max_pages = place.pages_;
    cache.sequences = 1;
    cache.heads = heads;
    if (spec.sparse == linear::Sparse::tail) cache.tail = std::max(1, static_cast<int>(columns * kOutliers / 2));
    if (is_mma) {
      cache.code_words = heads * static_cast<int32_t>(mma::tile_words(kHeadDim, spec.bits));
      if (sparse) cache.sparse_capacity = static_cast<int32_t>(mma::default_capacity(kOutliers, kHeadDim));
      const int32_t classes = sparse ? static_cast<int32_t>(mma::kClasses) : 0;
      cache.page_bytes = kvcc_mma_page_bytes(cache.code_words, token, classes, heads, cache.sparse_capacity);
      fixed_bytes = int64_t{4} * cache.code_words + (token ? 256 : 0) + 2 * heads * classes;
    } else {
      cache.code_words = heads * 64 * static_cast<int32_t>(linear::row_words(kHeadDim, spec.bits));
      const bool csr = spec.sparse == linear::Sparse::csr;
      if (csr) cache.sparse_capacity = static_cast<int32_t>(linear::default_capacity(kOutliers, heads, kHeadDim));
      cache.page_bytes = kvcc_page_bytes(cache.code_words, token, csr, cache.tail, cache.sparse_capacity);
      fixed_bytes = int64_t{4} * cache.code_words + (token ? 256 : 0) + (csr ? 256 : 0);
    }
    pool_bytes = static_cast<size_t>(cache.page_bytes) * place.pages_;
    copies = static_cast<int>(std::clamp<size_t>(4 * launcher.device().l2_bytes / pool_bytes + 1, 1, 256));
    pool = Array<uint8_t>(launcher, pool_bytes * copies);
    pool.fill(0);
    scale = Array<float>(launcher, std::vector<float>(token ? 0 : columns, kThreshold));
    zero = Array<float>(launcher, std::vector<float>(token ? 0 : columns, 0.0f));
    const bool csr = spec.sparse == linear::Sparse::csr;
    lower = Array<float>(launcher, std::vector<float>(csr ? columns : 0, -kThreshold));
    upper = Array<float>(launcher, std::vector<float>(csr ? columns : 0, kThreshold));
    needed = Array<uint32_t>(launcher, static_cast<size_t>(place.pages_) * heads);
    needed.fill(0);
    status = Array<uint32_t>(launcher, 1);
    status.fill(0);
    selected = Array<uint32_t>(launcher, static_cast<size_t>(place.tokens_) * 2 * cache.tail);
    inliers = Array<float>(launcher, static_cast<size_t>(place.tokens_) * 2);
    std::vector<int32_t> positions;
    for (int i = 0; i < 64; ++i) positions.push_back(place.tokens_ - 64 + i);
    positions.push_back(0);
    first = Array<int32_t>(launcher, positions);
    cache.pages = pool.data();
    cache.scale = scale.data();
    cache.zero = zero.data();
    cache.lower = lower.data();
    cache.upper = upper.data();
    cache.needed = needed.data();
    pack(0, 64, place.tokens_);
    for (int i = 1; i < copies; ++i) launcher.copy(pool.data() + i * pool_bytes, pool.data(), pool_bytes);
    for (const uint32_t n : needed.download()) records += 4.0 * n;
    if (!is_mma && cache.tail > 0) records = 8.0 * cache.tail * place.tokens_;
    if (status.download()[0] != 0) throw std::runtime_error("pack: status " + std::to_string(status.download()[0]));
  }

  /// `count` tokens from first[start] on into copy `copy`.
  void pack(int copy, int start, int count) const {
    KvccPackParams p{};
    p.cache = cache;
    p.cache.pages = pool.data() + copy % copies * pool_bytes;
    p.x = (spec.tensor == mma::Tensor::key ? place.key_ : place.value_).data() +
          copy % place.copies_ * place.tensor_bytes_;
    p.first = first.data() + start;
    p.status = status.data();
    p.count = count;
    p.selected = selected.data();
    p.inliers = inliers.data();
    if (kernels.select) place.launcher_.launch(kernels.select, kvcc_grid_mma_pack_select(&p), &p, "pack, select");
    const KvccGrid grid = set.layout == Layout::mma            ? kvcc_grid_mma_pack(&p)
                          : spec.axis == device::Axis::channel ? kvcc_grid_pack_channel(&p)
                                                               : kvcc_grid_pack_token(&p);
    place.launcher_.launch(kernels.pack, grid, &p, "pack");
  }
  KvccCache at(int copy) const {
    KvccCache c = cache;
    c.pages = pool.data() + copy % copies * pool_bytes;
    return c;
  }
  /// Codes, ranges, ends and records of all tokens.
  double bytes() const { return static_cast<double>(fixed_bytes) * place.pages_ + records; }
};

void Place::time_set(const Set& set) {
  const Packed key(*this, set, mma::Tensor::key), value(*this, set, mma::Tensor::value);
  const bool is_mma = set.layout == Layout::mma;
  const double row = static_cast<double>(rows_) * tokens_;
  const float multiplier = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
  const KvccRope rope{base_cosine_.data(), base_sine_.data(), relative_cosine_.data(), relative_sine_.data()};
  const Part& part = set.parts[0];
  if (part.key.key_scores) {
    add("key_scores", set.name, set.key.bits, key.bytes() + 4 * row, [&](int i) {
      if (is_mma) {
        const KvccMmaKeyScoresParams p{
            key.at(i), rope, query_.data(), scores_.data(), tokens_, multiplier, model_.group, splits_, 0};
        launcher_.launch(part.key.key_scores, kvcc_grid_mma_key_scores(&p), &p, "key_scores");
      } else {
        const KvccKeyScoresParams p{key.at(i), query_.data(), cosine_.data(), sine_.data(), scores_.data(),
                                    tokens_,   multiplier,    model_.group,   tokens_};
        launcher_.launch(part.key.key_scores, kvcc_grid_key_scores(&p, kHeadDim), &p, "key_scores");
      }
    });
    expect_results(scores_, set.name + " key_scores");
  }
  if (part.value.value_mix) {
    add("value_mix", set.name, set.value.bits, value.bytes() + 2 * row, [&](int i) {
      const KvccValueMixParams p{value.at(i), weights_.data(), partial_.data(), out_.data(),
                                 tokens_,     model_.group,    splits_,         0};
      launcher_.launch(part.value.value_mix, is_mma ? kvcc_grid_mma_value_mix(&p) : kvcc_grid_value_mix(&p), &p,
                       "value_mix");
      if (splits_ > 1) {
        launcher_.launch(part.value.value_merge, kvcc_grid_value_merge(&p, kHeadDim), &p, "value_mix, merge");
      }
    });
    expect_results(out_, set.name + " value_mix");
  }
  if (part.attention) {
    add("attention", set.name, set.key.bits, key.bytes() + value.bytes(), [&](int i) {
      const KvccAttentionParams p{key.at(i),   value.at(i), rope,         query_.data(), partial_.data(),
                                  out_.data(), multiplier,  model_.group, splits_,       0};
      launcher_.launch(part.attention, kvcc_grid_mma_attention(&p), &p, "attention");
      if (splits_ > 1)
        launcher_.launch(part.attention_merge, kvcc_grid_mma_attention_merge(&p), &p, "attention, merge");
    });
    expect_results(out_, set.name + " attention");
  }
  if (set.key.bits != 3 || set.key.sparse == linear::Sparse::none) return;  // one set stands for all in what follows
  const Array<float> rows(launcher_, static_cast<size_t>(tokens_) * model_.heads * kHeadDim);
  for (const Packed* packed : {&key, &value}) {
    const std::string tensor = packed == &key ? "_key" : "_value";
    const double read = packed->bytes();
    add("dequantise" + tensor, set.name, packed->spec.bits, read + 2.0 * tensor_bytes_, [&](int i) {
      const KvccDequantiseParams p{packed->at(i), rows.data(), packed->first.data() + 64, tokens_};
      launcher_.launch(packed->kernels.dequantise,
                       is_mma ? kvcc_grid_mma_dequantise(&p) : kvcc_grid_dequantise(&p, kHeadDim), &p, "dequantise");
    });
    add("pack_prefill" + tensor, set.name, packed->spec.bits, read + tensor_bytes_,
        [&](int i) { packed->pack(i, 64, tokens_); });
    // Sixteen tokens one by one into the last page, as when decoding; the page is emptied of them between repetitions.
    const size_t last = static_cast<size_t>(packed->cache.page_bytes) * page_table_.download()[pages_ - 1];
    add(
        "pack_append" + tensor, set.name, packed->spec.bits, 2.0 * tensor_bytes_ / tokens_ + read / tokens_,
        [&](int i) { packed->pack(0, i, 1); }, 16,
        [&] { launcher_.fill(packed->pool.data() + last, 0, packed->cache.page_bytes); });
    packed->pack(0, 64, tokens_);
    std::vector<int32_t> numbers;
    for (int i = 0; i < pages_; ++i) numbers.insert(numbers.end(), {i, pages_ - 1 - i});
    const Array<int32_t> pairs(launcher_, numbers);
    const Array<uint8_t> target(launcher_, packed->pool_bytes);
    const bool lists = packed->cache.sparse_capacity > 0;
    add("copy_pages" + tensor, set.name, packed->spec.bits, 2.0 * packed->pool_bytes, [&](int i) {
      const KvccCopyPagesParams p{packed->at(i).pages,
                                  target.data(),
                                  pairs.data(),
                                  packed->cache.page_bytes,
                                  packed->cache.page_bytes,
                                  lists ? packed->fixed_bytes : packed->cache.page_bytes,
                                  lists ? (is_mma ? model_.heads : 1) : 0,
                                  packed->cache.sparse_capacity,
                                  packed->cache.sparse_capacity,
                                  pages_};
      launcher_.launch(copy_pages_kernel(), kvcc_grid_copy_pages(&p), &p, "copy_pages");
    });
  }
}

}  // namespace kvcc::gpu
