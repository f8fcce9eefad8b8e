#include "kernels/host/checks.h"

#include <algorithm>

#include "kernels/host/checker.h"

namespace kvcc::host {
namespace {

/// Checks of layout linear-1's launches.
class LinearChecker : public Checker {
 public:
  explicit LinearChecker(const KernelFacts& kernel) : Checker(kernel.name), kernel_(kernel) {}

  void cache(const KvccCache& c, bool packs) const {
    want(kernel_.layout == Layout::linear, "params", "those of layout linear-1", "those of the kernel's layout, mma-1");
    present(c.pages, "cache.pages", linear::kPageAlign);
    if (!packs) present(c.lengths, "cache.lengths");
    at_least(c.sink, 0, "cache.sink");
    at_least(c.residual, 0, "cache.residual");
    if (int64_t{c.sink} + c.residual > 0) present(c.exact, "cache.exact");
    at_least(c.sequences, 1, "cache.sequences");
    at_least(c.max_pages, 1, "cache.max_pages");
    equal(c.heads, kernel_.kv_heads, "cache.heads");
    want(c.layer >= 0 && c.layer < kernel_.layers, "cache.layer", std::to_string(c.layer),
         "0 to " + std::to_string(kernel_.layers - 1));
    const bool csr = kernel_.sparse == linear::Sparse::csr, tail = kernel_.sparse == linear::Sparse::tail;
    if (!kernel_.token_axis) {
      present(c.scale, "cache.scale");
      present(c.zero, "cache.zero");
    }
    if (csr && packs) {
      present(c.lower, "cache.lower");
      present(c.upper, "cache.upper");
      present(c.needed, "cache.needed");
    }
    csr ? at_least(c.sparse_capacity, 0, "cache.sparse_capacity")
        : equal(c.sparse_capacity, 0, "cache.sparse_capacity");
    if (tail) {
      at_least(c.tail, 1, "cache.tail");
      want(2 * int64_t{c.tail} < int64_t{c.heads} * kernel_.head_dim, "cache.tail", std::to_string(c.tail),
           "at least one value of a token between the tails");
    } else {
      equal(c.tail, 0, "cache.tail");
    }
    if (kernel_.mixed) {
      present(c.head_words, "cache.head_words");
      at_least(c.code_words, 1, "cache.code_words");
    } else {
      equal(c.code_words, linear::head_first_word(c.heads, kernel_.head_dim, kernel_.bits), "cache.code_words");
    }
    equal(c.page_bytes, kvcc_page_bytes(c.code_words, kernel_.token_axis, csr, c.tail, c.sparse_capacity),
          "cache.page_bytes");
  }

 private:
  const KernelFacts& kernel_;
};

}  // namespace

void check(const KernelFacts& kernel, const KvccPackParams& p, const Extent& extent) {
  if (kernel.layout == Layout::mma) return mma1::check(kernel, p, extent);
  const LinearChecker c(kernel);
  c.cache(p.cache, true);
  c.present(p.x, "x");
  c.present(p.first, "first");
  c.present(p.status, "status");
  c.at_least(p.count, 1, "count");
  c.equal(p.repeat_above, 0, "repeat_above");
}

void check(const KernelFacts& kernel, const KvccKeyScoresParams& p) {
  const LinearChecker c(kernel);
  c.cache(p.cache, false);
  c.present(p.query, "query");
  c.present(p.scores, "scores");
  if (kernel.rotary_dim > 0) {
    c.present(p.cosine, "cosine");
    c.present(p.sine, "sine");
  }
  c.equal(p.group, kernel.group, "group");
  c.at_least(p.max_length, 1, "max_length");
  c.at_least(p.scores_stride, p.max_length, "scores_stride");
}

void check(const KernelFacts& kernel, const KvccValueMixParams& p, const Extent& extent) {
  if (kernel.layout == Layout::mma) return mma1::check(kernel, p, extent);
  const LinearChecker c(kernel);
  c.cache(p.cache, false);
  c.present(p.weights, "weights");
  c.present(p.out, "out");
  c.equal(p.group, kernel.group, "group");
  c.at_least(p.splits, 1, "splits");
  if (p.splits > 1) c.present(p.partial, "partial");
  c.at_least(p.weights_stride, 1, "weights_stride");
  c.equal(p.window, 0, "window");
}

void check(const KernelFacts& kernel, const KvccDequantiseParams& p, const Extent& extent) {
  if (kernel.layout == Layout::mma) return mma1::check(kernel, p, extent);
  const LinearChecker c(kernel);
  c.cache(p.cache, false);
  c.present(p.out, "out");
  c.present(p.first, "first");
  c.at_least(p.count, 1, "count");
}

uint32_t most_needed(const uint32_t* needed, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, needed[i]);
  return most;
}

}  // namespace kvcc::host
