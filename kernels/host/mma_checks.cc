// Checks of layout mma-1's launches.
#include <algorithm>
#include <cmath>

#include "kernels/host/checker.h"
#include "kernels/host/checks.h"

namespace kvcc::host {
namespace {

constexpr uintptr_t kWide = 16;        // bytes of the widest load
constexpr int64_t kGridLimit = 65535;  // of a grid's y and z

/// Which of a launch's arguments a cache is, and what the launch does with it.
struct Use {
  const char* prefix;  ///< "cache.", "key.", "value."
  bool packs;
};

void check_pages(const Checker& c, const KernelFacts& kernel, const KvccCache& cache, const std::string& at) {
  const bool sparse = kernel.sparse != linear::Sparse::none;
  if (kernel.mixed) {
    const int64_t tile = mma::tile_words(kernel.head_dim, 1);
    c.present(cache.head_words, at + "head_words", 4);
    c.multiple(cache.code_words, tile, at + "code_words");
    c.at_least(cache.code_words, 2 * tile * kernel.kv_heads, at + "code_words");
    c.at_most(cache.code_words, 8 * tile * kernel.kv_heads, at + "code_words");
  } else {
    c.equal(cache.code_words, mma::head_first_word(kernel.kv_heads, kernel.head_dim, kernel.bits), at + "code_words");
  }
  if (sparse) {
    c.at_least(cache.sparse_capacity, 0, at + "sparse_capacity");
    c.at_most(cache.sparse_capacity, int64_t{KVCC_PAGE_TOKENS} * kernel.head_dim, at + "sparse_capacity");
    c.multiple(cache.sparse_capacity, 4, at + "sparse_capacity");
  } else {
    c.equal(cache.sparse_capacity, 0, at + "sparse_capacity");
  }
  if (kernel.sparse == linear::Sparse::tail) {
    c.at_least(cache.tail, 1, at + "tail");
    c.want(2 * int64_t{cache.tail} < int64_t{cache.heads} * kernel.head_dim, at + "tail", std::to_string(cache.tail),
           "at least one value of a token between the tails");
  } else {
    c.equal(cache.tail, 0, at + "tail");
  }
  const auto classes = static_cast<int32_t>(sparse ? mma::kClasses : 0);
  c.equal(cache.page_bytes,
          kvcc_mma_page_bytes(cache.code_words, kernel.token_axis, classes, cache.heads, cache.sparse_capacity),
          at + "page_bytes");
}

void check_cache(const Checker& c, const KernelFacts& kernel, const KvccCache& cache, const Extent& extent, Use use) {
  const std::string at = use.prefix;
  c.want(kernel.layout == Layout::mma, "params", "those of layout mma-1", "those of the kernel's layout, linear-1");
  c.equal(cache.heads, kernel.kv_heads, at + "heads");
  c.want(cache.layer >= 0 && cache.layer < kernel.layers, at + "layer", std::to_string(cache.layer),
         "0 to " + std::to_string(kernel.layers - 1));
  c.at_least(cache.sequences, 1, at + "sequences");
  c.at_most(cache.sequences, kGridLimit, at + "sequences");
  c.at_least(cache.sink, 0, at + "sink");
  c.at_least(cache.residual, 0, at + "residual");
  c.present(cache.pages, at + "pages", mma::kPageAlign);
  if (cache.page_table != nullptr) c.present(cache.page_table, at + "page_table", 4);
  if (!use.packs) c.present(cache.lengths, at + "lengths", 4);
  if (int64_t{cache.sink} + cache.residual > 0) c.present(cache.exact, at + "exact", kWide);
  if (!kernel.token_axis) {
    c.present(cache.scale, at + "scale", kWide);
    c.present(cache.zero, at + "zero", kWide);
  }
  if (use.packs && kernel.sparse == linear::Sparse::csr) {
    c.present(cache.lower, at + "lower", kWide);
    c.present(cache.upper, at + "upper", kWide);
  }
  if (use.packs && kernel.sparse != linear::Sparse::none) c.present(cache.needed, at + "needed", 4);
  check_pages(c, kernel, cache, at);
  // Tokens of the residual window are not packed while they are in it, but pack is given them as they leave.
  const int64_t packed = extent.max_length - cache.sink - (use.packs ? 0 : cache.residual);
  c.at_least(cache.max_pages, std::max<int64_t>(1, (packed + KVCC_PAGE_TOKENS - 1) / KVCC_PAGE_TOKENS),
             at + "max_pages");
}

void check_group(const Checker& c, const KernelFacts& kernel, int32_t group) {
  c.equal(group, kernel.group, "group");
  c.at_least(group, 1, "group");
  c.want(kvcc_mma_group_tile(group) == kernel.group_tile, "group", std::to_string(group),
         kernel.group_tile == 8 ? "at most 8, as the kernel is for tiles of 8 query heads"
                                : "above 8, as the kernel is for tiles of 16 query heads");
  c.at_most(int64_t{kernel.kv_heads} * kvcc_ceil_div(group, kernel.group_tile), kGridLimit, "blocks of query heads");
}

void check_splits(const Checker& c, int32_t splits, const float* partial) {
  c.at_least(splits, 1, "splits");
  if (splits > 1) c.present(partial, "partial", kWide);
}

void check_rope(const Checker& c, const KernelFacts& kernel, const KvccRope& rope, const Extent& extent) {
  const std::pair<const void*, const char*> tables[] = {{rope.base_cosine, "rope.base_cosine"},
                                                        {rope.base_sine, "rope.base_sine"},
                                                        {rope.relative_cosine, "rope.relative_cosine"},
                                                        {rope.relative_sine, "rope.relative_sine"}};
  for (const auto& [table, argument] : tables) {
    if (kernel.rotary_dim > 0) {
      c.present(table, argument, kWide);
    } else {
      c.absent(table, argument, "the kernel has no RoPE");
    }
  }
  if (kernel.rotary_dim > 0 && extent.max_length > 0) {
    c.at_least(extent.base_rows, 1 + (extent.max_length - 1) / KVCC_ROPE_BLOCK, "rows of rope.base_cosine");
  }
}

void check_multiplier(const Checker& c, float multiplier) {
  c.want(std::isfinite(multiplier), "multiplier", "not finite", "a number, e.g. 1 / sqrt(head_dim)");
}

}  // namespace

namespace mma1 {

void check(const KernelFacts& kernel, const KvccPackParams& p, const Extent& extent) {
  const Checker c(kernel.name);
  check_cache(c, kernel, p.cache, extent, {"cache.", true});
  c.present(p.x, "x", kWide);
  c.present(p.first, "first", 4);
  c.present(p.status, "status", 4);
  c.at_least(p.count, 1, "count");
  c.at_most(p.cache.heads, kGridLimit, "heads");
  if (kernel.sparse == linear::Sparse::none) {
    c.equal(p.repeat_above, 0, "repeat_above");
  } else {
    c.at_least(p.repeat_above, 0, "repeat_above");
  }
  if (!kernel.token_axis) {
    c.absent(p.selected, "selected", "scales are static");
    c.absent(p.inliers, "inliers", "scales are static");
    return;
  }
  c.present(p.inliers, "inliers", 8);
  if (kernel.sparse == linear::Sparse::tail) {
    c.present(p.selected, "selected", 4);
  } else {
    c.absent(p.selected, "selected", "the kernel has no sparse part");
  }
}

void check(const KernelFacts& kernel, const KvccValueMixParams& p, const Extent& extent) {
  const Checker c(kernel.name);
  check_cache(c, kernel, p.cache, extent, {"cache.", false});
  c.present(p.weights, "weights", kernel.element_bytes);
  c.present(p.out, "out", kWide);
  check_group(c, kernel, p.group);
  check_splits(c, p.splits, p.partial);
  c.at_least(p.weights_stride, std::max<int64_t>(1, extent.max_length), "weights_stride");
  c.at_least(p.window, 0, "window");
}

void check(const KernelFacts& kernel, const KvccDequantiseParams& p, const Extent& extent) {
  const Checker c(kernel.name);
  check_cache(c, kernel, p.cache, extent, {"cache.", false});
  c.present(p.out, "out", 8);
  c.present(p.first, "first", 4);
  c.at_least(p.count, 1, "count");
  c.at_most(p.cache.heads, kGridLimit, "heads");
}

}  // namespace mma1

void check(const KernelFacts& kernel, const KvccMmaKeyScoresParams& p, const Extent& extent) {
  const Checker c(kernel.name);
  check_cache(c, kernel, p.cache, extent, {"cache.", false});
  check_rope(c, kernel, p.rope, extent);
  c.present(p.query, "query", kWide);
  c.present(p.scores, "scores", 4);
  check_group(c, kernel, p.group);
  check_multiplier(c, p.multiplier);
  c.at_least(p.splits, 1, "splits");
  c.at_least(p.scores_stride, std::max<int64_t>(1, extent.max_length), "scores_stride");
  c.at_least(p.window, 0, "window");
}

void check(const KernelFacts& key, const KernelFacts& value, const KvccAttentionParams& p, const Extent& extent) {
  const Checker c(key.name);
  check_cache(c, key, p.key, extent, {"key.", false});
  check_cache(c, value, p.value, extent, {"value.", false});
  const auto same = [&](bool equal, const char* argument) {
    c.want(equal, std::string("value.") + argument, "not the keys'", std::string("key.") + argument);
  };
  same(p.value.page_table == p.key.page_table, "page_table");
  same(p.value.max_pages == p.key.max_pages, "max_pages");
  same(p.value.lengths == p.key.lengths, "lengths");
  same(p.value.sink == p.key.sink, "sink");
  same(p.value.residual == p.key.residual, "residual");
  same(p.value.sequences == p.key.sequences, "sequences");
  same(p.value.heads == p.key.heads, "heads");
  same(p.value.layer == p.key.layer, "layer");
  check_rope(c, key, p.rope, extent);
  c.present(p.query, "query", kWide);
  c.present(p.out, "out", kWide);
  check_group(c, key, p.group);
  check_splits(c, p.splits, p.partial);
  check_multiplier(c, p.multiplier);
  c.at_least(p.window, 0, "window");
}

void check(const std::string& kernel, const KvccCopyPagesParams& p) {
  const Checker c(kernel);
  c.present(p.source, "source", mma::kPageAlign);
  c.present(p.target, "target", mma::kPageAlign);
  c.present(p.pairs, "pairs", 8);
  c.at_least(p.count, 1, "count");
  c.at_least(p.fixed_bytes, 4, "fixed_bytes");
  c.multiple(p.fixed_bytes, 4, "fixed_bytes");
  c.at_least(p.lists, 0, "lists");
  const auto pool = [&](int64_t page_bytes, int32_t capacity, const std::string& which) {
    if (p.lists == 0) c.equal(capacity, 0, which + "_capacity");
    c.at_least(capacity, 0, which + "_capacity");
    const int64_t bytes = p.fixed_bytes + int64_t{p.lists} * capacity * 4;
    c.equal(page_bytes, (bytes + mma::kPageAlign - 1) / mma::kPageAlign * mma::kPageAlign, which + "_page_bytes");
  };
  pool(p.source_page_bytes, p.source_capacity, "source");
  pool(p.target_page_bytes, p.target_capacity, "target");
  if (p.source == p.target) c.equal(p.target_page_bytes, p.source_page_bytes, "target_page_bytes");
}

}  // namespace kvcc::host
