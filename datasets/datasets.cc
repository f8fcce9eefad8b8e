#include "datasets/datasets.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "datasets/manifest.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"

namespace kvcc {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Another split of the same data set may have the same file name (another flavour): its file is not a wrong one.
bool is_another_split(const ManifestDataset& dataset, const ManifestSplit& split, const std::string& sha256) {
  return std::any_of(dataset.splits.begin(), dataset.splits.end(), [&](const ManifestSplit& other) {
    return other.file.file == split.file.file && other.file.sha256 == sha256;
  });
}

DatasetState look(const ManifestDataset& dataset, const ManifestSplit& split, const std::string& cache_dir) {
  DatasetState state;
  state.file = split.file;
  state.fetchable = !split.archive.empty();
  const std::string data = environment("KVCC_DATA");
  std::vector<fs::path> folders;
  if (!data.empty()) folders.emplace_back(data);
  folders.emplace_back(cache_dir.empty() ? default_cache_folder() : cache_dir);
  for (const fs::path& folder : folders) {
    const fs::path path = folder / split.file.file;
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) continue;
    const std::string sha256 = sha256_file(path.string());
    if (sha256 == split.file.sha256 || split.file.sha256.empty()) {
      state.path = path.string();
      state.file.sha256 = sha256;
      if (split.file.sha256.empty()) state.file.bytes = fs::file_size(path, ignored);
      break;
    }
    if (!is_another_split(dataset, split, sha256)) state.wrong.push_back(path.string());
  }
  return state;
}

}  // namespace

std::vector<DatasetState> dataset_states(const std::string& name, const std::string& cache_dir) {
  const std::vector<ManifestDataset> all = read_manifest();
  std::string wanted;
  const ManifestDataset* only = name.empty() ? nullptr : &find_dataset(all, name, wanted);
  std::vector<DatasetState> states;
  for (const ManifestDataset& dataset : all) {
    if (only && only != &dataset) continue;
    for (const ManifestSplit& split : dataset.splits) {
      if (wanted.empty() || wanted == split.file.split) states.push_back(look(dataset, split, cache_dir));
    }
  }
  return states;
}

ResolvedDataset resolve_dataset(const std::string& name, const std::string& cache_dir) {
  const std::vector<ManifestDataset> all = read_manifest();
  std::string split;
  const ManifestDataset& dataset = find_dataset(all, name, split);
  std::vector<std::string> candidates = dataset.defaults;
  if (!split.empty()) {
    candidates = {split};
    const std::string& otherwise = find_split(dataset, split).otherwise;
    if (!otherwise.empty()) candidates.push_back(otherwise);
  }
  std::string wrong, wanted;
  bool fetchable = false;
  for (const std::string& candidate : candidates) {
    const DatasetState state = look(dataset, find_split(dataset, candidate), cache_dir);
    if (!state.path.empty()) {
      return {state.path, dataset.name + ":" + candidate, state.file.sha256, state.file.flavour, dataset.articles};
    }
    for (const std::string& path : state.wrong) wrong.append(wrong.empty() ? "" : ", ").append(path);
    wanted.append(wanted.empty() ? "" : " or ").append(state.file.file);
    fetchable = fetchable || state.fetchable;
  }
  const std::string found = wrong.empty() ? "not on this machine" : "another sha256 than the manifest's: " + wrong;
  throw bad_input("data set " + name, found, wanted + " below KVCC_DATA or the cache folder",
                  fetchable ? "kvcc data fetch " + dataset.name + ", or set KVCC_DATA" : "set KVCC_DATA");
}

}  // namespace kvcc
