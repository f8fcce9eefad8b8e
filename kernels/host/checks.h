// The launch contract, checked on the host: everything a kernel relies on and can't check itself. Host only.
#pragma once

#include <cstdint>
#include <string>

#include "formats/layout/launch.h"
#include "formats/layout/linear.h"

namespace kvcc::host {

/// What a kernel was generated for (kernels.json: spec).
struct KernelFacts {
  std::string name;  ///< for messages
  int bits = 0;
  int head_dim = 0;
  bool token_axis = false;  ///< an online range a token, instead of static scales
  linear::Sparse sparse = linear::Sparse::none;
  int rotary_dim = 0;  ///< key_scores: 0 without RoPE
  int group = 1;       ///< key_scores, value_mix: query heads of a KV head
  int layers = 0, kv_heads = 0;
  bool mixed = false;  ///< heads of several widths: head_words is needed
};

/// Throw Error(failed) "KERNEL, ARGUMENT: FOUND; wanted WANTED" for pointers that are null, sizes that do not fit the
/// kernel, and page_bytes that are not those of the layout. Pointers are looked at, never followed.
void check(const KernelFacts& kernel, const KvccPackParams& params);
void check(const KernelFacts& kernel, const KvccKeyScoresParams& params);
void check(const KernelFacts& kernel, const KvccValueMixParams& params);
void check(const KernelFacts& kernel, const KvccDequantiseParams& params);

/// Largest number of csr records that any of the pages packed needs. Above cache.sparse_capacity the host makes larger
/// pages and packs again. `needed` [pages], copied from the device.
uint32_t most_needed(const uint32_t* needed, int64_t pages);

}  // namespace kvcc::host
