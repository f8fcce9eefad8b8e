// The options of kvcc eval. Programs only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calib/cli/eval_tasks.h"
#include "formats/cli/program.h"

namespace kvcc::cli {

/// As given; help texts and ranges are in define_eval().
struct EvalSettings {
  std::string model, dataset, ids, bos = "auto", journal, html, calibration;
  std::vector<std::string> codebooks, schemes, text, modes;
  std::string evict;
  std::vector<double> repairs;
  TaskOptions tasks;
  int64_t block = 128, prompt = 0, sink = -1, tail = -1, attention = 0;
  int64_t calibration_samples = 8;
  int64_t windows = 8, seqlen = 2048, seed = 1, context = 32768, amortise = 1 << 20;
  double max_ppl = 0;
  bool all_schemes = false, beyond_context = false;
};

void define_eval(CLI::App& app, EvalSettings& settings);

}  // namespace kvcc::cli
