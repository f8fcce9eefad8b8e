// The journal of kvcc eval: JSON lines, a header and then one record a line, so that a killed evaluation goes on where
// it was. Programs only.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calib/eval/record.h"

namespace kvcc::cli {

/// Records are found by run and by the ids of their window, so that an evaluation of more windows or schemes of the
/// same model uses those there are. A last line that a kill left unfinished is dropped.
class JournalFile : public EvalJournal {
 public:
  /// Reads `path` when `resume`, else starts it anew; a missing file is an empty one. `identity`: what the records
  /// depend on beside run and window. Throws Error(bad_input) for a file that is no journal, which is left as it is,
  /// one of another identity when it is read, and one that another process is writing; Error(failed, resource) when it
  /// can't be written.
  JournalFile(std::string path, const std::string& identity, const std::vector<std::vector<int32_t>>& windows,
              bool resume);
  ~JournalFile() override;
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;
  /// Throws Error(bad_input), naming the line, for a damaged record.
  std::optional<WindowRecord> find(const std::string& run, size_t window) override;
  void add(const std::string& run, size_t window, const WindowRecord& record) override;
  const std::string& path() const { return path_; }
  size_t records() const { return lines_.size(); }  ///< read at the start

 private:
  void open();
  size_t read(const std::string& text, const std::string& header);
  void append(std::string_view line);

  struct Line {
    std::string text, place;
  };

  std::string path_;
  std::vector<std::string> window_keys_;
  std::map<std::pair<std::string, std::string>, Line> lines_;  ///< by run and window
  int file_ = -1;
};

}  // namespace kvcc::cli
