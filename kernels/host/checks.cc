#include "kernels/host/checks.h"

#include <algorithm>

#include "formats/core/error.h"

namespace kvcc::host {
namespace {

class Checker {
 public:
  explicit Checker(const KernelFacts& kernel) : kernel_(kernel) {}

  void want(bool good, const char* argument, std::string found, std::string wanted) const {
    if (!good) throw Error(ErrorKind::failed, kernel_.name + ", " + argument, std::move(found), std::move(wanted));
  }
  void present(const void* pointer, const char* argument) const {
    want(pointer != nullptr, argument, "null", "a device address");
  }
  void at_least(int64_t value, int64_t least, const char* argument) const {
    want(value >= least, argument, std::to_string(value), "at least " + std::to_string(least));
  }
  void equal(int64_t value, int64_t wanted, const char* argument) const {
    want(value == wanted, argument, std::to_string(value), std::to_string(wanted));
  }

  void cache(const KvccCache& c, bool packs) const {
    present(c.pages, "cache.pages");
    want(reinterpret_cast<uintptr_t>(c.pages) % linear::kPageAlign == 0, "cache.pages", "not aligned",
         "128-byte alignment");
    if (!packs) present(c.lengths, "cache.lengths");
    at_least(c.sink, 0, "cache.sink");
    at_least(c.residual, 0, "cache.residual");
    if (c.sink + c.residual > 0) present(c.exact, "cache.exact");
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

void check(const KernelFacts& kernel, const KvccPackParams& p) {
  const Checker c(kernel);
  c.cache(p.cache, true);
  c.present(p.x, "x");
  c.present(p.first, "first");
  c.present(p.status, "status");
  c.at_least(p.count, 1, "count");
}

void check(const KernelFacts& kernel, const KvccKeyScoresParams& p) {
  const Checker c(kernel);
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

void check(const KernelFacts& kernel, const KvccValueMixParams& p) {
  const Checker c(kernel);
  c.cache(p.cache, false);
  c.present(p.weights, "weights");
  c.present(p.out, "out");
  c.equal(p.group, kernel.group, "group");
  c.at_least(p.splits, 1, "splits");
  if (p.splits > 1) c.present(p.partial, "partial");
  c.at_least(p.weights_stride, 1, "weights_stride");
}

void check(const KernelFacts& kernel, const KvccDequantiseParams& p) {
  const Checker c(kernel);
  c.cache(p.cache, false);
  c.present(p.out, "out");
  c.present(p.first, "first");
  c.at_least(p.count, 1, "count");
}

uint32_t most_needed(const uint32_t* needed, int64_t pages) {
  uint32_t most = 0;
  for (int64_t i = 0; i < pages; ++i) most = std::max(most, needed[i]);
  return most;
}

}  // namespace kvcc::host
