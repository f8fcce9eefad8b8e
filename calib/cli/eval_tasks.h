// Tasks of kvcc eval: questions, answers over each scheme's cache, scores. Programs only.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calib/eval/evaluate.h"
#include "datasets/tasks.h"
#include "formats/cli/program.h"
#include "formats/weights/model_files.h"

namespace kvcc::cli {

struct TaskOptions {
  std::vector<std::string> tasks;  ///< "passkey", "lines:100" (synthetic, with a size) or "gsm8k=FILE"
  int64_t samples = 0;             ///< of each; 0: 10 of a synthetic task, all of a file
  uint64_t seed = 1;
  bool run_code = false, beyond_context = false;
  bool prompt_quantised = false;  ///< the prompt's tokens see the quantised cache too
};

/// Throws Error(usage) for a task that is not there, Error(bad_input) for its file.
std::vector<Task> read_tasks(const TaskOptions& options);

struct TaskScore {
  Estimate score;  ///< mean over samples that are scored; NaN without one
  int64_t scored = 0;
  std::vector<double> further;  ///< of Task::further_metrics; NaN where nothing is scored
  double seconds = 0;
};

struct TaskReport {
  std::vector<Task> tasks;
  std::vector<std::vector<TaskScore>> scores;  ///< [1 + subjects, full precision first][tasks]
};

/// Greedy answers of full precision and every subject.
TaskReport run_tasks(const ModelFiles& files, const ModelInfo& model, const std::vector<EvalSubject>& subjects,
                     const TaskOptions& options, const Common& common);

nlohmann::ordered_json task_json(const TaskReport& report, size_t subject);
/// A line a scheme, a column a task.
std::string task_table(const TaskReport& report, const std::vector<EvalSubject>& subjects);

}  // namespace kvcc::cli
