// The caches that kvcc eval compares: artifacts, and schemes by name. Programs only.
#pragma once

#include <string>
#include <vector>

#include "calib/cli/eval_options.h"
#include "calib/eval/evaluate.h"
#include "formats/cli/program.h"
#include "formats/weights/model_files.h"

namespace kvcc::cli {

/// Those of --codebook, --scheme and --schemes-all, in this order, each once. `weights_sha256`: of the quantised
/// weights that they run on, "" for the model's own. Throws Error(bad_input) for an artifact of another geometry,
/// Error(usage) for a scheme that needs an artifact.
std::vector<EvalSubject> eval_subjects(const EvalSettings& settings, const ModelFiles& files, const ModelInfo& model,
                                       const std::string& weights_sha256);

/// Makes the rotations of the subjects whose schemes need them, from --calibration; equal schemes but for their exact
/// tokens share them.
void add_rotations(std::vector<EvalSubject>& subjects, const EvalSettings& settings, const ModelFiles& files,
                   const Common& common);

}  // namespace kvcc::cli
