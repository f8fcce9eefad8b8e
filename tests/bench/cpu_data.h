// Made-up layers for the benchmark of decode attention: a model's shape, keys and values that look like a model's
// (channels of their own mean and spread, heavy tails, queries that mind some tokens more than others), as plain rows
// and packed. A context longer than kDistinctTokens repeats them, each at its own position.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/units.h"
#include "kernels/host/rope_table.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/mma_cache.h"
#include "tests/bench/cpu_team.h"

namespace kvcc::bench {

constexpr int kDistinctTokens = 2048;

struct Shape {
  std::string name;
  int layers, heads, head_dim, group;
  float theta;  ///< of RoPE
  int query_heads() const { return heads * group; }
  int row() const { return heads * head_dim; }  ///< channels of a token
};

struct Scheme {
  std::string name;
  int bits;
  bool sparse;  ///< with 1 % of outliers and a sink of one token
};

/// What all contestants of a shape are made from. Letters: T tokens, H heads, D head dimension, R rotary = D.
class Layer {
 public:
  explicit Layer(const Shape& shape);
  const Shape& shape() const { return shape_; }
  const std::vector<float>& query() const { return query_; }  ///< [H * group, D]
  float multiplier() const;
  reference::Rotation rotation() const;
  host::BlockRopeTables tables(int64_t tokens) const;

  /// Row of keys() and values() that token t of a context holds.
  static int64_t source(int64_t t) { return t == 0 ? 0 : 1 + (t - 1) % kDistinctTokens; }
  const std::vector<float>& keys() const { return key_; }  ///< [1 + kDistinctTokens, H, D] before RoPE
  const std::vector<float>& values() const { return value_; }
  /// keys of tokens 0 to tokens - 1 after RoPE, and their values: [H, T, D] each.
  void rows(int64_t tokens, std::vector<float>& key, std::vector<float>& value) const;

  /// Parameters of attention of this layer's queries, but for the caches. `tables`: of the context, must outlive them.
  KvccAttentionParams attention(const host::BlockRopeTables& tables, float* out, float* partial, int splits) const;
  /// The exact attention of the queries over the first `tokens` of these rows before RoPE, [at least tokens, H, D].
  reference::AttentionSums exact(std::vector<float> key, std::vector<float> value, int64_t tokens) const;

 private:
  Shape shape_;
  std::vector<float> key_, value_, query_, inverse_;
};

/// A context of a layer, packed, in several copies that stand for the layers of a model.
class Packed {
 public:
  /// Copies until they hold `least_bytes`.
  Packed(const Layer& layer, const Scheme& scheme, int64_t tokens, size_t least_bytes);
  int copies() const { return copies_; }
  double bytes_read() const { return bytes_read_; }  ///< codes, ranges, class ends, records in use, exact rows

  /// Parameters of attention over copy `copy`. `partial` as in KvccAttentionParams.
  KvccAttentionParams params(int copy, float* out, float* partial, int splits) const;
  const KvccCpuConfig& config() const { return config_; }
  const KvccCpuTables& tables(int arithmetic) const { return tables_[arithmetic]; }

  /// The exact attention over what the cache gives back; for at most kDistinctTokens tokens.
  reference::AttentionSums exact() const;

 private:
  KvccCache cache(const reference::MmaCache& from, const Memory& pages, int copy) const;

  const Layer& layer_;
  int64_t tokens_;
  int32_t length_;
  int copies_ = 0;
  double bytes_read_ = 0;
  ChannelQuantiser key_quantiser_;
  TokenQuantiser value_quantiser_;
  reference::MmaCache key_, value_;  ///< of the distinct tokens
  Memory key_pages_, value_pages_;   ///< [copies, N, page_bytes]
  int64_t pages_ = 0;                ///< N
  host::BlockRopeTables rope_;
  std::vector<uint8_t> bits_;
  KvccCpuConfig config_{};
  KvccCpuTables tables_[2] = {};  ///< by arithmetic
};

/// The same context as plain rows of fp16 or f32, in several copies.
class Rows {
 public:
  Rows(const Shape& shape, const std::vector<float>& key, const std::vector<float>& value, bool half,
       size_t least_bytes);
  int copies() const { return copies_; }
  double bytes_read() const { return 2.0 * static_cast<double>(bytes_); }
  const void* key(int copy) const { return memory_.data() + 2 * bytes_ * copy; }
  const void* value(int copy) const { return memory_.data() + 2 * bytes_ * copy + bytes_; }
  bool half() const { return half_; }

 private:
  bool half_;
  size_t bytes_;  ///< of the keys, and of the values
  int copies_;
  Memory memory_;
};

}  // namespace kvcc::bench
