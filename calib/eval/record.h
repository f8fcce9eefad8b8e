// What is measured of one scheme in one mode on one window, and where such records are kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "calib/eval/attention_error.h"
#include "calib/eval/comparison.h"
#include "calib/eval/key_errors.h"

namespace kvcc {

/// Mean KL over the window's predictions when `percent` of the coded tokens are exact: the worst, or the rest.
struct RepairedKl {
  double percent = 0, worst_exact = 0, rest_exact = 0;
};

struct WindowRecord {
  Predictions predictions;
  KeyErrors key_errors;
  int64_t key_outliers = 0, key_elements = 0;
  std::vector<RepairedKl> repairs;
  AttentionErrors attention;  ///< windows is 0: not measured
  double kept = 1;            ///< share of the keys that a query sees which eviction left, mean over the window
  double seconds = 0;         ///< forward pass and comparison
};

/// Records of an evaluation that may be interrupted. Runs are told apart by name; a record that is found must be the
/// one that would be made again.
class EvalJournal {
 public:
  virtual ~EvalJournal() = default;
  virtual std::optional<WindowRecord> find(const std::string& run, size_t window) = 0;
  virtual void add(const std::string& run, size_t window, const WindowRecord& record) = 0;
};

}  // namespace kvcc
