// kvcc data fetch|list|check [NAME]: data sets by manifest, checked by sha256.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "datasets/datasets.h"
#include "formats/cli/program.h"
#include "formats/core/error.h"
#include "formats/core/text.h"

namespace {

using kvcc::DatasetState;
using nlohmann::ordered_json;

const char* state_word(const DatasetState& state) {
  if (!state.path.empty()) return "present";
  if (!state.wrong.empty()) return "wrong";
  return "absent";
}

void print(const std::vector<DatasetState>& states, bool json) {
  if (json) {
    ordered_json document;
    document["splits"] = ordered_json::array();
    for (const DatasetState& s : states) {
      document["splits"].push_back({{"name", s.file.dataset + ":" + s.file.split},
                                    {"state", state_word(s)},
                                    {"path", s.path.empty() ? ordered_json() : ordered_json(s.path)},
                                    {"wrong", s.wrong},
                                    {"fetchable", s.fetchable},
                                    {"bytes", s.file.bytes},
                                    {"sha256", s.file.sha256},
                                    {"flavour", s.file.flavour},
                                    {"licence", s.file.licence},
                                    {"origin", s.file.origin}});
    }
    kvcc::cli::print_json(document);
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"split", "state", "size", "flavour", "where"}};
  for (const DatasetState& s : states) {
    const std::string where = !s.path.empty()    ? s.path
                              : !s.wrong.empty() ? s.wrong.front()
                              : s.fetchable      ? "kvcc data fetch " + s.file.dataset
                                                 : "set KVCC_DATA";
    rows.push_back(
        {s.file.dataset + ":" + s.file.split, state_word(s), kvcc::human_bytes(s.file.bytes), s.file.flavour, where});
  }
  fmt::print("{}", kvcc::cli::table(rows));
}

// A wrong file fails; so does a name of which nothing is there.
int check(const std::vector<DatasetState>& states, const std::string& name, bool json) {
  std::string wrong;
  bool present = false;
  for (const DatasetState& s : states) {
    present = present || !s.path.empty();
    for (const std::string& path : s.wrong) wrong.append(wrong.empty() ? "" : ", ").append(path);
  }
  // Under KVCC_DATA another flavour of a split may have its name: that is no fault where the split itself is not
  // needed.
  if (!name.empty() && !present) {
    throw kvcc::bad_input("data set " + name, wrong.empty() ? "not on this machine" : "another sha256: " + wrong,
                          "the files of the manifest", "kvcc data fetch " + name.substr(0, name.find(':')));
  }
  print(states, json);
  if (!wrong.empty()) spdlog::warn("another sha256 than the manifest's: {}", wrong);
  return wrong.empty() ? 0 : static_cast<int>(kvcc::ErrorKind::bad_input);
}

}  // namespace

int main(int argc, char** argv) {
  std::string action, name, manifest;
  const auto define = [&](CLI::App& app) {
    app.add_option("action", action,
                   "fetch: download what is missing; list: what there is; check: compare with the manifest's sha256")
        ->required()
        ->check(CLI::IsMember({"fetch", "list", "check"}).description(""));
    app.add_option("name", name, "Data set, or data set and split, e.g. wikitext-2:train (fetch: default wikitext-2)");
    app.add_option("--manifest", manifest, "Another manifest of data sets (default: the one installed with kvcc)");
  };
  return kvcc::cli::run(argc, argv, "data", "Data sets by manifest, checked by sha256",
                        kvcc::cli::kJson | kvcc::cli::kCacheDir, define, [&](const kvcc::cli::Common& common) {
                          if (!manifest.empty()) ::setenv("KVCC_MANIFEST", manifest.c_str(), 1);
                          if (action == "fetch") {
                            if (name.empty()) name = "wikitext-2";
                            kvcc::fetch_dataset(name, common.cache_dir,
                                                [](const std::string& line) { spdlog::info("{}", line); });
                          }
                          const auto states = kvcc::dataset_states(name, common.cache_dir);
                          if (action == "check") return check(states, name, common.json);
                          print(states, common.json);
                          return 0;
                        });
}
