// The journal of kvcc eval: JSON lines, a header and then one record a line, so that a killed evaluation goes on where
// it was. Programs only.
#pragma once

#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "calib/eval/record.h"

namespace kvcc::cli {

/// Records are found by run and by the ids of their window, so that an evaluation of more windows or schemes of the
/// same model uses those there are. A last line that a kill left unfinished is dropped. The file is locked as long as
/// the object lives.
class JournalFile : public EvalJournal {
 public:
  /// Reads `path` when `resume`, else starts it anew; a missing file is an empty one. `identity`: what the records
  /// depend on beside run and window. Throws Error(bad_input) for a file that is no journal, one of another identity or
  /// one that another process writes, Error(failed, resource) when it can't be written.
  JournalFile(std::string path, const std::string& identity, const std::vector<std::vector<int32_t>>& windows,
              bool resume);
  ~JournalFile() override;
  JournalFile(const JournalFile&) = delete;
  std::optional<WindowRecord> find(const std::string& run, size_t window) override;
  void add(const std::string& run, size_t window, const WindowRecord& record) override;
  const std::string& path() const { return path_; }
  size_t records() const { return lines_.size(); }  ///< read at the start

 private:
  void take();

  std::string path_;
  int lock_ = -1;
  std::vector<std::string> window_keys_;
  std::map<std::pair<std::string, std::string>, std::string> lines_;  ///< by run and window
  std::ofstream out_;
};

}  // namespace kvcc::cli
