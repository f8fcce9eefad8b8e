// What every kvcc program shares: options, logging, errors, exit codes, progress. Programs only.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace kvcc::cli {

struct Common {
  bool json = false, quiet = false, resume = false, force = false, dry_run = false;
  int verbosity = 0;
  int threads = 0;  ///< resolved: >= 1
  std::string device = "cpu";
  std::string cache_dir;  ///< resolved: --cache-dir, else $XDG_CACHE_HOME/kvcc, else ~/.cache/kvcc
};

/// Which of the common options a verb takes.
enum : unsigned { kJson = 1, kResume = 2, kForce = 4, kThreads = 8, kDevice = 16, kDryRun = 32, kCacheDir = 64 };

/// main() of a program: parses, sets up spdlog to stderr, runs `body`, turns exceptions into one clear line on stderr
/// (with --json: {"error":{"code","message","hint"}} on stdout) and the exit code of DESIGN.md. A misspelt option gets
/// the nearest right one suggested. After an interrupt prints the command that resumes, when the verb takes --resume.
int run(int argc, char** argv, const std::string& verb, const std::string& summary, unsigned common,
        const std::function<void(CLI::App&)>& define, const std::function<int(const Common&)>& body);

/// A bar with time left on stderr when it is a terminal, else a plain line at most every 10 s. Nothing with --quiet.
class Progress {
 public:
  /// total 0: unknown. Calls may come from several threads.
  Progress(std::string label, uint64_t total, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(uint64_t by = 1);
  void set(uint64_t done);
  /// Shown after the time left from now on, such as "310 tokens/s".
  void tell(std::string more);

 private:
  struct State;
  State* state_;
};

/// Prints one JSON document, "schema_version" first, to stdout.
/// `text` with control characters as \x1b, so that a name from a file commands no terminal; with `lines`, line breaks
/// stay.
std::string printable(std::string_view text, bool lines = false);
void print_json(const nlohmann::ordered_json& document);

/// Text table, first column left, the rest right aligned; plain ASCII separators.
std::string table(const std::vector<std::vector<std::string>>& rows);

}  // namespace kvcc::cli
