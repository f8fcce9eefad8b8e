// The cache file: a sequence's packed cache as a safetensors file (formats/spec/cache-file.md). Host only.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/host/runtime_sequence.h"

namespace kvcc::host {

constexpr char kCacheFormat[] = "kvcc-cache";
constexpr char kCacheVersion[] = "1.0";
constexpr int kCacheMajor = 1;

/// token_ids: kept in the file for whoever continues. Writes beside the name, syncs and renames. Equal caches give
/// equal bytes, however they came about. Throws Error(usage) when layers hold different numbers of tokens,
/// Error(resource) when the disk is full.
void save_cache(const RuntimeSequence& sequence, const std::string& path, std::span<const int32_t> token_ids);

/// Throws Error(bad_input) for what is no such file, damaged, of a later version, or of another artifact, naming both.
std::unique_ptr<RuntimeSequence> load_cache(std::shared_ptr<const RuntimeArtifact> artifact, const std::string& path,
                                            const RuntimeOptions& options);

}  // namespace kvcc::host
