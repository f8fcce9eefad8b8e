// Activations of several runs as one folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/store/activations.h"

namespace kvcc {

/// What becomes of samples with the same ids, in one run or several.
enum class Duplicates : uint8_t {
  refuse,
  drop,  ///< keeps one: the first by hash of its shards, then by its run, so that the order of merging does not matter
  keep,  ///< all count
};

struct MergeOptions {
  Duplicates duplicates = Duplicates::refuse;
  bool copy = false;  ///< copies where links could be
  bool resume = false, force = false;
};

/// A merged folder before it is written. Samples are in order of the hash of their ids, then of their shards, then of
/// their runs: the same whatever the order and grouping of merges.
struct MergePlan {
  struct Sample {
    int input = 0;   ///< index into readers
    int number = 0;  ///< as ActivationsReader::read() takes it
  };
  std::vector<std::string> inputs;
  std::vector<ActivationsReader> readers;
  ActivationsSettings settings;
  std::vector<Sample> samples;
  std::vector<std::string> dropped;  ///< "B.acts sample 3", duplicates that were left out
  uint64_t bytes = 0;                ///< of all shards
};

/// Throws Error(bad_input) for folders that are incomplete, of another model, tokenizer, seqlen, dtype or BOS policy
/// (every differing field is named), and for duplicates as the options say; Error(usage) for fewer than two folders.
MergePlan plan_merge(const std::vector<std::string>& inputs, Duplicates duplicates);

/// Bytes that the merge takes on the disk of `output`: 0 when all shards become links.
uint64_t merge_disk_bytes(const MergePlan& plan, const std::string& output, bool copy);

struct MergeReport {
  int64_t linked = 0, copied = 0, kept = 0;  ///< shards; kept: by the merge that is resumed
  std::string content_sha256;
};

/// Writes the folder, one shard at a time; a killed merge leaves a folder that says it is not complete. `done` is
/// called after each shard. Throws Error(usage) when `output` is one of the inputs, Error(bad_input) when an input
/// changes meanwhile, and as ActivationsWriter does.
MergeReport merge_activations(const MergePlan& plan, const std::string& output, const MergeOptions& options,
                              const std::function<void()>& done);

}  // namespace kvcc
