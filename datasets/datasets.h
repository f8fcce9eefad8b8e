// Data sets by manifest (datasets/manifest.json): where they come from, under which licence, and their sha256.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvcc {

struct DatasetFile {
  std::string dataset, split;  ///< "wikitext-2", "calibration"
  std::string file;            ///< path below KVCC_DATA or the cache
  std::string sha256;          ///< "": any file of this name is taken
  uint64_t bytes = 0;
  std::string flavour;  ///< raw, tokens
  std::string licence, origin;
};

/// Path of a split that is present and whose sha256 is right: $KVCC_DATA first, then the cache folder. For calibration,
/// "wikitext-2" means train where it is available, else the split that is. Throws Error(bad_input) with the cure.
struct ResolvedDataset {
  std::string path, name, sha256, flavour;
  bool articles = false;  ///< documents begin at headings " = Title = "
};
ResolvedDataset resolve_dataset(const std::string& name, const std::string& cache_dir = "");

/// A split and what lies on disk of it.
struct DatasetState {
  DatasetFile file;
  bool fetchable = false;          ///< it is a member of an archive that can be downloaded
  std::string path;                ///< where it is, "" when it is nowhere
  std::vector<std::string> wrong;  ///< files under its name with another sha256
};

/// The splits of `name` ("" all data sets, "NAME" or "NAME:SPLIT"). Throws Error(usage) for names not in the manifest,
/// with the nearest one.
std::vector<DatasetState> dataset_states(const std::string& name, const std::string& cache_dir = "");

/// Downloads what of `name` is not on disk into the cache folder: archives by curl or wget from their mirrors in turn,
/// checked by sha256; members by unzip or Python. Each file is written beside its name and renamed. `log` gets one
/// line per step. Throws Error(bad_input) when no mirror gives the right file, with every mirror's reason.
void fetch_dataset(const std::string& name, const std::string& cache_dir,
                   const std::function<void(const std::string&)>& log);

}  // namespace kvcc
