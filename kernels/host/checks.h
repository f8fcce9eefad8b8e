// The launch contract, checked on the host: everything a kernel relies on and can't check itself. Host only.
#pragma once

#include <cstdint>
#include <string>

#include "formats/layout/launch.h"
#include "formats/layout/linear.h"
#include "formats/layout/mma.h"
#include "formats/layout/mma_launch.h"

namespace kvcc::host {

enum class Layout { linear, mma };

/// What a kernel was generated for (kernels.json: spec). Of attention there are two: its keys' and its values'.
struct KernelFacts {
  std::string name;  ///< for messages
  int bits = 0;
  int head_dim = 0;
  bool token_axis = false;  ///< an online range a token, instead of static scales
  linear::Sparse sparse = linear::Sparse::none;
  int rotary_dim = 0;  ///< key_scores, attention: 0 without RoPE
  int group = 1;       ///< key_scores, value_mix, attention: query heads of a KV head
  int layers = 0, kv_heads = 0;
  bool mixed = false;  ///< heads of several widths: head_words is needed
  Layout layout = Layout::linear;
  mma::Tensor tensor = mma::Tensor::key;  ///< mma-1: what the pages hold
  int group_tile = 8;                     ///< mma-1: query heads that a block serves, 8 or 16
  int element_bytes = 2;                  ///< of the dtype that the kernel reads beside the cache
};

/// Sizes of device arrays that the params do not state. Zeros promise nothing, and suit sequences of length 0.
struct Extent {
  int64_t max_length = 0;  ///< the largest of lengths; for pack: the largest of `first`, plus count
  int64_t base_rows = 0;   ///< rows of KvccRope's base tables
};

/// Throw Error(failed) "KERNEL, ARGUMENT: FOUND; wanted WANTED" for pointers that are null or not aligned, sizes that
/// do not fit the kernel, the cache or each other, page_bytes that are not those of the layout, pages or rotary rows
/// too few for extent.max_length, grids beyond the device's limits. Pointers are looked at, never followed. Layout
/// linear-1 does not look at `extent`.
void check(const KernelFacts& kernel, const KvccPackParams& params, const Extent& extent = {});
void check(const KernelFacts& kernel, const KvccKeyScoresParams& params);
void check(const KernelFacts& kernel, const KvccValueMixParams& params, const Extent& extent = {});
void check(const KernelFacts& kernel, const KvccDequantiseParams& params, const Extent& extent = {});
void check(const KernelFacts& kernel, const KvccMmaKeyScoresParams& params, const Extent& extent);
/// Names arguments key.… and value.…; the value's table, lengths and geometry must be the key's.
void check(const KernelFacts& key, const KernelFacts& value, const KvccAttentionParams& params, const Extent& extent);
/// `kernel`: its name, for messages.
void check(const std::string& kernel, const KvccCopyPagesParams& params);

/// Largest number of records that any of the pages (linear-1) or tiles (mma-1) packed needs. Above
/// cache.sparse_capacity the host makes larger pages and packs their tokens again (linear-1), or copies the pages and
/// repeats the call (mma-1, KvccPackParams.repeat_above). `needed` [count], copied from the device.
uint32_t most_needed(const uint32_t* needed, int64_t count);

/// The checks of layout mma-1 that those above hand over to.
namespace mma1 {
void check(const KernelFacts& kernel, const KvccPackParams& params, const Extent& extent);
void check(const KernelFacts& kernel, const KvccValueMixParams& params, const Extent& extent);
void check(const KernelFacts& kernel, const KvccDequantiseParams& params, const Extent& extent);
}  // namespace mma1

}  // namespace kvcc::host
