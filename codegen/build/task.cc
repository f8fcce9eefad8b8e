#include "codegen/build/task.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>

#include "codegen/build/build_folder.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/process.h"

namespace kvcc::codegen {
namespace {

namespace fs = std::filesystem;

/// Writes a source with a fixed time: line information holds that too.
void write_source(const std::string& path, const std::string& text) {
  write_text_file(path, text);
  const timespec times[2] = {{0, 0}, {0, 0}};
  utimensat(AT_FDCWD, path.c_str(), times, 0);
}

/// The lines of a compiler's output that say what went wrong, a few.
std::string gist(const std::string& output) {
  std::string kept;
  int lines = 0;
  for (size_t at = 0; at < output.size() && lines < 8;) {
    const size_t end = std::min(output.find('\n', at), output.size());
    const std::string line = output.substr(at, end - at);
    if (line.find("error") != std::string::npos || line.find("warning") != std::string::npos ||
        line.find("fatal") != std::string::npos || line.find("pilled") != std::string::npos) {
      kept += (kept.empty() ? "" : "\n") + line;
      ++lines;
    }
    at = end + 1;
  }
  return kept.empty() ? output.substr(0, 2000) : kept;
}

constexpr const char* kMagic = "kvcc kept 1 ";

std::string to_entry(const Kept& kept) {
  const std::string rest = fmt::format("{} {}\n", kept.binary.size(), kept.log.size()) + kept.binary + kept.log;
  return kMagic + sha256_hex(rest) + "\n" + rest;
}

/// Nothing for an entry that is absent, can't be read or is damaged.
std::optional<Kept> look_up(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::string text;
  try {
    text = read_text_file(path);
  } catch (const Error&) {
    return std::nullopt;
  }
  const size_t first = text.find('\n'), second = text.find('\n', first + 1);
  if (first == std::string::npos || second == std::string::npos) return std::nullopt;
  const std::string rest = text.substr(first + 1);
  if (text.substr(0, first) != kMagic + sha256_hex(rest)) return std::nullopt;
  size_t binary = 0, log = 0;
  std::istringstream(rest) >> binary >> log;
  const size_t begin = second - first;
  if (begin + binary + log != rest.size()) return std::nullopt;
  return Kept{rest.substr(begin, binary), rest.substr(begin + binary), true};
}

}  // namespace

Kept run_task(const Task& task, const std::string& cache_folder) {
  const std::string path = cache_folder + "/kernels/" + task.key.substr(0, 2) + "/" + task.key + ".entry";
  if (std::optional<Kept> kept = look_up(path)) return *std::move(kept);
  const BuildFolder folder(task.key);
  // Another process may have compiled it while this one waited.
  if (std::optional<Kept> kept = look_up(path)) return *std::move(kept);
  for (const auto& [name, text] : task.sources) {
    make_folder((fs::path(folder.path()) / name).parent_path().string());
    write_source(folder.path() + "/" + name, text);
  }
  // The compiler's own files go where there is room to compile; a TMPDIR that is unfit does not matter then.
  std::vector<std::string> command = {"/usr/bin/env", "LC_ALL=C", "TMPDIR=" + folder.path()};
  command.insert(command.end(), task.command.begin(), task.command.end());
  ProcessResult run = run_process(command, {.folder = folder.path()});
  const std::string place = task.compiler + ", " + task.what;
  if (run.status != 0) {
    check_interrupt();  // an interrupt of all of us is no error of the compiler's
    throw Error(ErrorKind::failed, place, gist(run.output), "", fmt::format("exit status {}", run.status));
  }
  const std::string out = folder.path() + "/out" + task.extension;
  std::error_code error;
  if (!fs::is_regular_file(out, error) || fs::file_size(out, error) == 0) {
    throw Error(ErrorKind::failed, place, "the compiler wrote no output", "out" + task.extension,
                fmt::format("is {} a compiler?", task.program));
  }
  Kept result{read_text_file(out), std::move(run.output), false};
  if (task.finish) result.binary = task.finish(result.binary);
  make_folder(fs::path(path).parent_path().string());
  write_text_file(path, to_entry(result), true, AtomicFile::Busy::wait);
  return result;
}

}  // namespace kvcc::codegen
