// datasets/manifest.json as structures.
#pragma once

#include <string>
#include <vector>

#include "datasets/datasets.h"

namespace kvcc {

struct ManifestArchive {
  std::string file, sha256;
  uint64_t bytes = 0;
  std::vector<std::string> mirrors;  ///< URLs, tried in turn
};

struct ManifestSplit {
  DatasetFile file;
  std::string archive, member;  ///< "" when it can't be fetched
  std::string otherwise;        ///< the split that is used where this one is absent, may be ""
};

struct ManifestDataset {
  std::string name, folder;
  std::vector<std::string> aliases;   ///< other names of it
  bool articles = false;              ///< its documents begin at headings " = Title = "
  std::vector<std::string> defaults;  ///< splits that the bare name means, the first that is present
  std::vector<ManifestArchive> archives;
  std::vector<ManifestSplit> splits;
};

/// Reads $KVCC_MANIFEST, else the installed manifest. Throws Error(bad_input) for a manifest that breaks its own rules
/// (names that leave the folder included).
std::vector<ManifestDataset> read_manifest();

/// "NAME" or "NAME:SPLIT" in the manifest; `split` is "" without one. Throws Error(usage) with the nearest name.
const ManifestDataset& find_dataset(const std::vector<ManifestDataset>& all, const std::string& name,
                                    std::string& split);
const ManifestSplit& find_split(const ManifestDataset& dataset, const std::string& split);

}  // namespace kvcc
