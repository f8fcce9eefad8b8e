// The contexts of cpu_data.h packed as vector codebooks of 2 bits an element. What they decode to is made up; the
// groups are as wide, and their tables as large, as a fit gives them.
#pragma once

#include <cstdint>
#include <memory>

#include "formats/codec/vector_tables.h"
#include "kernels/cpu/vector_units.h"
#include "kernels/host/rope_table.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/vector_cache.h"
#include "tests/bench/cpu_data.h"
#include "tests/bench/cpu_team.h"

namespace kvcc::bench {

/// How a tensor's elements are grouped: a head's transformed coordinates in pairs and fours, or channels.
enum class VectorGroups { turned, fours, pairs };
struct VectorScheme {
  const char* name;
  VectorGroups key, value;
};

/// A context of a layer, packed, in several copies that stand for the layers of a model.
class PackedVectors {
 public:
  /// Copies until they hold `least_bytes`.
  PackedVectors(const Layer& layer, const VectorScheme& scheme, int64_t tokens, size_t least_bytes);
  int copies() const { return copies_; }
  double bytes_read() const { return bytes_read_; }  ///< of pages

  /// Parameters of attention over copy `copy`. `partial` as in KvccAttentionParams.
  KvccAttentionParams params(int copy, float* out, float* partial, int splits) const;
  const KvccVectorTables& tables() const { return tables_; }

  /// The exact attention over what the cache gives back; for at most kDistinctTokens tokens.
  reference::AttentionSums exact() const;

 private:
  struct Side {
    Side(const Layer& layer, VectorGroups groups, const std::vector<float>& rows);
    VectorQuantiser quantiser;
    VectorTables tables;
    reference::VectorCache cache;  ///< of the distinct tokens
    Memory pages;                  ///< [copies, N, page_bytes]
  };
  KvccCache cache(const Side& side, int copy) const;

  const Layer& layer_;
  int64_t tokens_;
  int32_t length_;
  int64_t pages_;  ///< N
  int copies_ = 0;
  double bytes_read_ = 0;
  Side key_, value_;
  host::BlockRopeTables rope_;
  KvccVectorTables tables_{};
};

}  // namespace kvcc::bench
