#include <algorithm>
#include <filesystem>

#include "datasets/manifest.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/process.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

namespace fs = std::filesystem;

using Log = std::function<void(const std::string&)>;

bool is_right(const std::string& path, uint64_t bytes, const std::string& sha256) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && fs::file_size(path, ignored) == bytes && sha256_file(path) == sha256;
}

/// Runs a program whose standard output goes to the file `output` ("": nowhere); the result holds the end of what it
/// wrote to stderr.
ProcessResult run_helper(const std::vector<std::string>& words, const std::string& output = "") {
  ProcessOptions options;
  options.standard_output = Stream::discard;
  options.output_file = output;
  options.keep = 4096;
  ProcessResult result = run_process(words, options);
  result.output.erase(result.output.find_last_not_of(" \t\r\n") + 1);
  return result;
}

// "" or why it failed. Slow and dead servers are given up after half a minute, so that the next mirror gets its turn.
std::string download(const std::string& url, uint64_t bytes, const std::string& target) {
  ProcessResult result = run_helper({"curl",
                                     "--fail",
                                     "--location",
                                     "--silent",
                                     "--show-error",
                                     "--proto",
                                     "=https,http,file",
                                     "--proto-redir",
                                     "=https,http",
                                     "--connect-timeout",
                                     "15",
                                     "--speed-limit",
                                     "1000",
                                     "--speed-time",
                                     "30",
                                     "--max-filesize",
                                     std::to_string(bytes),
                                     "--output",
                                     target,
                                     "--",
                                     url});
  if (result.missing) {
    result = run_helper({"wget", "--quiet", "--tries=1", "--timeout=30", "--output-document=" + target, "--", url});
    if (result.missing) return "neither curl nor wget is installed";
    if (result.status != 0 && result.output.empty())
      result.output = "wget failed with " + std::to_string(result.status);
  }
  if (result.status == 0) return "";
  return result.output.empty() ? "exit code " + std::to_string(result.status) : result.output;
}

void fetch_archive(const ManifestArchive& archive, const std::string& path, const Log& log) {
  if (is_right(path, archive.bytes, archive.sha256)) return;
  std::string reasons;
  for (const std::string& url : archive.mirrors) {
    check_interrupt();
    log("downloading " + url + " (" + human_bytes(archive.bytes) + ")");
    AtomicFile file(path);
    file.check_room(archive.bytes);
    std::string reason = download(url, archive.bytes, file.temporary());
    check_interrupt();
    if (reason.empty() && !is_right(file.temporary(), archive.bytes, archive.sha256)) {
      reason = "the file has another sha256 than the manifest's";
    }
    if (reason.empty()) {
      file.commit();
      return;
    }
    log("failed: " + reason);
    reasons.append(reasons.empty() ? "" : "; ").append(url).append(": ").append(reason);
  }
  throw bad_input(archive.file, "no mirror could be used: " + reasons, "sha256 " + archive.sha256,
                  "put the file at " + path + ", or set KVCC_DATA to a folder that has the data");
}

void extract(const std::string& archive, const ManifestSplit& split, const std::string& path, const Log& log) {
  log("extracting " + split.member);
  AtomicFile file(path);
  file.check_room(split.file.bytes);
  const char* python = "import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]))";
  ProcessResult result = run_helper({"unzip", "-p", archive, split.member}, file.temporary());
  if (result.missing) result = run_helper({"python3", "-c", python, archive, split.member}, file.temporary());
  if (result.missing) {
    throw Error(ErrorKind::failed, archive, "neither unzip nor python3 is installed", "", "apt-get install unzip");
  }
  if (result.status != 0) {
    throw bad_input(archive, "cannot be unpacked: " + result.output, split.member);
  }
  if (!is_right(file.temporary(), split.file.bytes, split.file.sha256)) {
    throw bad_input(archive, split.member + " has another sha256 than the manifest's", split.file.sha256);
  }
  file.commit();
}

}  // namespace

void fetch_dataset(const std::string& name, const std::string& cache_dir, const Log& log) {
  const std::vector<ManifestDataset> all = read_manifest();
  std::string wanted;
  const ManifestDataset& dataset = find_dataset(all, name, wanted);
  const std::string cache = cache_dir.empty() ? default_cache_folder() : cache_dir;
  if (!wanted.empty() && find_split(dataset, wanted).archive.empty()) {
    for (const DatasetState& state : dataset_states(name, cache)) {
      if (!state.path.empty()) return;
    }
    throw bad_input("data set " + name, "it is not published for download", "",
                    "set KVCC_DATA to a folder that has " + find_split(dataset, wanted).file.file);
  }
  for (const ManifestSplit& split : dataset.splits) {
    if (split.archive.empty() || (!wanted.empty() && wanted != split.file.split)) continue;
    const std::vector<DatasetState> state = dataset_states(dataset.name + ":" + split.file.split, cache);
    if (!state.front().path.empty()) continue;
    const auto archive = std::find_if(dataset.archives.begin(), dataset.archives.end(),
                                      [&](const ManifestArchive& a) { return a.file == split.archive; });
    const std::string folder = cache + "/" + dataset.folder;
    make_folder(folder);
    fetch_archive(*archive, folder + "/" + archive->file, log);
    extract(folder + "/" + archive->file, split, cache + "/" + split.file.file, log);
  }
}

}  // namespace kvcc
