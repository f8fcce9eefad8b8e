// What others give: questions with answers, the list of data sets, and exports under the C reader that is not kvcc.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include "datasets/manifest.h"
#include "datasets/tasks.h"
#include "formats/core/error.h"
#include "formats/export/c/kvcc_read.h"
#include "tests/fuzz/targets.h"

using namespace kvcc;
using namespace kvcc::fuzz;

/// The first line names the kind of task, the rest is its file; an answer is scored as well.
KVCC_FUZZ(tasks) {
  const size_t line = std::min(input.find('\n'), input.size());
  const std::string path = put_file("tasks.jsonl", input.substr(std::min(line + 1, input.size())));
  const std::string name(input.substr(0, line));
  const std::vector<std::string>& names = file_task_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) throw bad_input("tasks", "no kind of task");
  for (const TaskSample& sample : file_task(name, path, {}).samples) {
    for (const char* answer : {"", "The answer is \\boxed{42}.\n\n* one, two: <<3>> [x] P.S. *end*"}) {
      const double score = sample.score(answer);
      if (score < 0 || score > 1) throw std::logic_error("a score beyond 0 to 1");
      if (sample.further) sample.further(answer);
    }
  }
}

KVCC_FUZZ(data_manifest) {
  ::setenv("KVCC_MANIFEST", put_file("data_manifest.json", input).c_str(), 1);
  const std::vector<ManifestDataset> all = read_manifest();
  for (const ManifestDataset& dataset : all) {
    std::string split;
    find_dataset(all, dataset.name, split);
    for (const std::string& name : dataset.defaults) find_split(dataset, name);
    for (const ManifestSplit& part : dataset.splits) {
      const std::filesystem::path path = part.file.file;
      const bool leaves = path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end();
      if (leaves) throw std::logic_error("a name that leaves the folder");
    }
  }
}

/// Exports under the reader in C; what follows the last line of four dashes is a page of the cache.
KVCC_FUZZ(c_reader) {
  constexpr std::string_view kCut = "\n----\n";
  const size_t cut = input.rfind(kCut);
  // In memory of their own, so that a byte beyond them is found.
  const std::string_view export_part = input.substr(0, cut);
  const std::vector<unsigned char> bytes(export_part.begin(), export_part.end());
  std::vector<unsigned char> page;
  if (cut != std::string_view::npos)
    page.assign(input.begin() + static_cast<std::ptrdiff_t>(cut + kCut.size()), input.end());
  kvcc_file file;
  if (const char* error = kvcc_open(&file, bytes.data(), bytes.size())) throw bad_input("c_reader", error);
  int taken = 0;
  for (const char* tensor : {"key", "value"}) {
    for (uint32_t layer = 0; layer < 3; ++layer) {
      kvcc_head head;
      if (kvcc_open_head(&file, tensor, layer, 0, &head) != nullptr) continue;
      ++taken;
      std::vector<float> rows(static_cast<size_t>(KVCC_PAGE_TOKENS) * head.dim);
      kvcc_decode_head(&head, page.data(), page.size(), 32, KVCC_PAGE_TOKENS, rows.data());
    }
  }
  if (taken == 0) throw bad_input("c_reader", "no head of the first layers");
}
