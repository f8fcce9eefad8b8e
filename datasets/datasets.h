// Data sets by manifest (datasets/manifest.json): where they come from, under which licence, and their sha256.
#pragma once

#include <string>
#include <vector>

namespace kvcc {

struct DatasetFile {
  std::string dataset, split;  ///< "wikitext-2", "calibration"
  std::string file;            ///< path below KVCC_DATA or the cache
  std::string sha256;
  uint64_t bytes = 0;
  std::string flavour;  ///< raw, tokens
  std::string licence, origin;
};

/// Path of a split that is present and whose sha256 is right: $KVCC_DATA first, then the cache folder. For calibration,
/// "wikitext-2" means train where it is available, else the split that is. Throws Error(bad_input) with the cure.
struct ResolvedDataset {
  std::string path, name, sha256, flavour;
};
ResolvedDataset resolve_dataset(const std::string& name, const std::string& cache_dir = "");

}  // namespace kvcc
