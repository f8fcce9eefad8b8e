// What a pass takes in memory, by parts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/weights/model_files.h"

namespace kvcc {

constexpr size_t kShardsInFlight = 3;  ///< layers' results that wait to be written

/// How a pass is run.
struct PassKind {
  bool fisher = true, recompute = false, streamed = false, bf16 = false;
};

/// Estimate of the resident bytes of a program that runs passes over samples of `seqlen` tokens and writes shards of
/// `shard` bytes.
uint64_t pass_bytes(const ModelFiles& files, int64_t seqlen, uint64_t shard, const PassKind& kind);

}  // namespace kvcc
