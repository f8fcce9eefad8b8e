// Questions for a model and how answers to them are scored: made on the spot, or read from local files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

/// Points of an answer under one more metric, which is the sum of points over the sum of what was possible.
struct Points {
  double got = 0, possible = 0;
};

struct TaskSample {
  std::string prompt;
  bool chat = true;         ///< a user's message; false: a text to go on from
  int64_t max_tokens = 32;  ///< of the answer
  /// 0 (wrong) to 1 (right) of the generated text; NaN where it is not scored.
  std::function<double(std::string_view answer)> score;
  /// Of Task::further_metrics, in their order; not set where there are none, empty where the sample is not scored.
  std::function<std::vector<Points>(std::string_view answer)> further;
};

struct Task {
  std::string name;    ///< "passkey", "longbench:hotpotqa"
  std::string metric;  ///< what the score is: "exact match", "F1", …
  std::vector<TaskSample> samples;
  std::vector<std::string> further_metrics;  ///< IFEval's others, as its source has four
};

struct SyntheticOptions {
  int64_t size = 2048;  ///< of passkey and needle: tokens, about; of lines and codes: lines
  int64_t samples = 10;
  uint64_t seed = 0;  ///< the same seed gives the same samples
};

/// "passkey": METHODS.md 11.4 (KVQuant's protocol: garbage sentences of 25 tokens around a key from 1 to 50,000; the
/// first integer of 10 tokens must be the key). "lines": 11.5 (LongEval: registers of named lines; the last integer).
/// "codes": 11.5 (KVarN's: ten characters on a numbered line; the last such word). "needle": 11.6 (a sentence at depths
/// 0.1 to 1 of a haystack; both words 1, one 0.5). Throws Error(usage) for another name, with those that there are.
Task synthetic_task(std::string_view name, const SyntheticOptions& options);
const std::vector<std::string>& synthetic_task_names();

struct FileTaskOptions {
  int64_t samples = 0;    ///< from the start of the file; 0: all
  bool run_code = false;  ///< HumanEval: execute the answers with python3; else they are not scored
};

/// "longbench", "ruler", "gsm8k", "math500", "humaneval" or "ifeval" from a local file of JSON lines, with the fields
/// of the published files (formats/spec/tasks.md). Throws Error(usage) for another name, Error(bad_input) for a file or
/// line that is not as it should be, with its number.
Task file_task(std::string_view name, const std::string& path, const FileTaskOptions& options);
const std::vector<std::string>& file_task_names();

}  // namespace kvcc
