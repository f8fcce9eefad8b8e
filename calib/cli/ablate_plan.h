// What kvcc ablate runs: points, which differ from a base in one thing each, and the collections they share. Programs
// only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calib/cli/text_options.h"

namespace kvcc::cli {

struct AblateOptions {
  std::string model, output, html;
  TextOptions text;                      ///< of the base
  std::vector<std::string> domains;      ///< other calibration texts, each as --dataset has it
  std::vector<std::string> evaluations;  ///< as --dataset of kvcc eval has it
  std::vector<std::string> schemes;
  std::vector<int64_t> samples{1, 2, 4, 8, 16}, seqlens{512, 1024, 2048}, seeds{0, 1, 2};
  int64_t windows = 8, eval_seqlen = 0;  ///< 0: the longest of seqlens
  std::string acts_dtype = "f32", max_memory;
  bool keep = false, beyond_context = false;
};

/// A fit: of the first `samples` samples of a collection.
struct AblatePoint {
  int64_t samples = 0, seqlen = 0;
  size_t domain = 0;  ///< 0: the base's text
  int64_t seed = 0;
  bool operator==(const AblatePoint&) const = default;
  bool same_collection(const AblatePoint& other) const {
    return seqlen == other.seqlen && domain == other.domain && seed == other.seed;
  }
};

struct AblateCollection {
  AblatePoint most;  ///< with the samples of its greatest point
  std::vector<size_t> points;
};

struct AblatePlan {
  AblatePoint base;                 ///< the most samples, the longest, the first text and seed
  std::vector<AblatePoint> points;  ///< the base first; each once
  std::vector<size_t> by_samples, by_seqlen, by_domain, by_seed;  ///< points of each axis, the base among them
  std::vector<AblateCollection> collections;
};

/// Throws Error(usage) for an axis with a value given twice or none at all.
AblatePlan plan_ablation(const AblateOptions& options);

/// "n16_l2048_d0_s0", for files.
std::string point_name(const AblatePoint& point);

}  // namespace kvcc::cli
