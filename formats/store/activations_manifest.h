// manifest.json of an activations folder and the journal beside it. Other folders take
// source_json alone.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "formats/store/activations.h"

namespace kvcc {

using ShardMap = std::map<std::pair<int, int>, ShardEntry>;  ///< (sample, layer 0 to L - 1)

struct ActivationsManifest {
  ActivationsSettings settings;
  ShardMap shards;
  std::map<int, std::string> left_out;  ///< samples without shards, and why
  bool complete = false;
};

std::string manifest_path(const std::string& folder);
std::string journal_path(const std::string& folder);
/// "s0003/l0011.h5", relative to the folder. `layer_number` is the model's.
std::string shard_name(int sample, int layer_number);

/// text_name, text_sha256, text_flavour and seed.
nlohmann::ordered_json source_json(const ActivationsSource& source);
nlohmann::ordered_json settings_json(const ActivationsSettings& settings);
/// "seqlen: 2048 there, 1024 now", one entry for each field that decides the bytes and differs.
std::vector<std::string> settings_difference(const ActivationsSettings& there, const ActivationsSettings& now,
                                             const std::string& there_word = "there",
                                             const std::string& now_word = "now");
std::string activations_sha256(const ActivationsSettings& settings, const ShardMap& shards);

void write_activations_manifest(const std::string& folder, const ActivationsManifest& manifest);
/// Manifest and journal together. A torn last line of the journal is left out. Throws Error(bad_input).
ActivationsManifest read_activations_manifest(const std::string& folder);
/// Adds one line to the journal. Not synced: a line that a power cut loses costs its shard again, no more.
void append_to_journal(const std::string& folder, const std::string& shard, const ShardEntry& entry);

}  // namespace kvcc
