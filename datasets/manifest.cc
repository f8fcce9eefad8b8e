#include "datasets/manifest.h"

#include <algorithm>
#include <cstdlib>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/json.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

using nlohmann::json;

std::string text(const json& object, const char* name) { return object.value(name, std::string()); }

// Names are joined to folders that are written to.
void check_name(const std::string& path, const std::string& name) {
  const bool bad = name.empty() || name == "." || name == ".." || name.find_first_of("/\\:") != std::string::npos;
  if (bad) throw bad_input(path, "the name \"" + name + "\"", "a plain file or folder name");
}

void check_sha256(const std::string& path, const std::string& sum) {
  if (sum.size() != 64 || sum.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw bad_input(path, "sha256 \"" + sum + "\"", "64 lower-case hexadecimal digits");
  }
}

ManifestDataset read_dataset(const std::string& path, const json& entry) {
  ManifestDataset dataset;
  dataset.name = text(entry, "name");
  dataset.folder = text(entry, "folder");
  check_name(path, dataset.name);
  check_name(path, dataset.folder);
  if (entry.contains("aliases")) {
    for (const json& alias : entry["aliases"]) dataset.aliases.push_back(alias.get<std::string>());
  }
  for (const std::string& alias : dataset.aliases) check_name(path, alias);
  dataset.articles = text(entry, "documents") == "articles";
  for (const json& split : entry.at("default")) dataset.defaults.push_back(split.get<std::string>());
  if (entry.contains("archives")) {
    for (const json& a : entry["archives"]) {
      ManifestArchive archive{text(a, "file"), text(a, "sha256"), json_member<uint64_t>(a, "bytes", path), {}};
      check_name(path, archive.file);
      check_sha256(path, archive.sha256);
      for (const json& url : a.at("mirrors")) archive.mirrors.push_back(url.get<std::string>());
      dataset.archives.push_back(std::move(archive));
    }
  }
  for (const json& s : entry.at("splits")) {
    ManifestSplit split;
    split.file = {dataset.name,
                  text(s, "name"),
                  text(s, "file"),
                  text(s, "sha256"),
                  s.contains("bytes") ? json_member<uint64_t>(s, "bytes", path) : 0,
                  text(s, "flavour"),
                  text(entry, "licence"),
                  text(entry, "title")};
    check_name(path, split.file.split);
    check_name(path, split.file.file);
    // Without a sha256 the file is taken as it is, and what it was is recorded; such a file is never fetched.
    if (s.contains("sha256") || s.contains("archive")) check_sha256(path, split.file.sha256);
    split.file.file = dataset.folder + "/" + split.file.file;
    split.archive = text(s, "archive");
    split.member = text(s, "member");
    split.otherwise = text(s, "otherwise");
    const auto known = [&](const ManifestArchive& a) { return a.file == split.archive; };
    if (!split.archive.empty() && std::none_of(dataset.archives.begin(), dataset.archives.end(), known)) {
      throw bad_input(
          path, "archive " + split.archive + " of " + dataset.name + ":" + split.file.split + " is not described");
    }
    dataset.splits.push_back(std::move(split));
  }
  for (const std::string& name : dataset.defaults) find_split(dataset, name);
  for (const ManifestSplit& split : dataset.splits) {
    if (!split.otherwise.empty() && !find_split(dataset, split.otherwise).otherwise.empty()) {
      throw bad_input(path, "split " + split.otherwise + " stands in for another and has a stand-in itself");
    }
  }
  return dataset;
}

}  // namespace

std::vector<ManifestDataset> read_manifest() {
  const char* set = std::getenv("KVCC_MANIFEST");
  const std::string path = set && *set ? set : share_folder() + "/datasets/manifest.json";
  constexpr uint64_t kMostBytes = 16 << 20;
  const json root = read_json<json>(path, kMostBytes);
  try {
    if (root.at("schema_version") != 1) throw bad_input(path, "schema_version " + root["schema_version"].dump(), "1");
    std::vector<ManifestDataset> all;
    for (const json& entry : root.at("datasets")) all.push_back(read_dataset(path, entry));
    return all;
  } catch (const json::exception& e) {
    throw bad_input(path, std::string("not a manifest of data sets: ") + e.what());
  }
}

namespace {
template <typename Items, typename Name>
Error unknown(const std::string& what, const std::string& name, const Items& items, Name name_of) {
  std::vector<std::string> names;
  std::string list;
  for (const auto& item : items) {
    names.push_back(name_of(item));
    list.append(list.empty() ? "" : ", ").append(names.back());
  }
  const std::string near = nearest(name, names);
  return Error(ErrorKind::usage, what, "\"" + name + "\" is not known", "one of " + list,
               near.empty() ? "" : "did you mean " + near + "?");
}
}  // namespace

const ManifestDataset& find_dataset(const std::vector<ManifestDataset>& all, const std::string& name,
                                    std::string& split) {
  const size_t colon = name.find(':');
  const std::string bare = name.substr(0, colon);
  split = colon == std::string::npos ? "" : name.substr(colon + 1);
  for (const ManifestDataset& dataset : all) {
    const bool alias = std::find(dataset.aliases.begin(), dataset.aliases.end(), bare) != dataset.aliases.end();
    if (dataset.name != bare && !alias) continue;
    if (colon != std::string::npos) find_split(dataset, split);
    return dataset;
  }
  throw unknown("data set", bare, all, [](const ManifestDataset& d) { return d.name; });
}

const ManifestSplit& find_split(const ManifestDataset& dataset, const std::string& split) {
  for (const ManifestSplit& candidate : dataset.splits) {
    if (candidate.file.split == split) return candidate;
  }
  throw unknown("split of " + dataset.name, split, dataset.splits, [](const ManifestSplit& s) { return s.file.split; });
}

}  // namespace kvcc
