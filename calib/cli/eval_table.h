// What kvcc eval prints: the table and the JSON document. Programs only.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calib/eval/evaluate.h"
#include "formats/core/effective_bits.h"

namespace kvcc::cli {

/// The text that was evaluated on, or what tasks were made from.
struct EvalText {
  std::string name, sha256;
  int64_t tokens = 0;
  std::vector<std::vector<int32_t>> windows;
  nlohmann::ordered_json parts =
      nullptr;  ///< of several texts: name, sha256, weight, windows and tokens of each; else null
  int64_t longest() const;
  bool has_one_length() const;
};

/// Everything that the table says beside the report.
struct EvalTable {
  std::string model;
  CacheShape shape;
  const std::vector<EvalSubject>& subjects;
  const EvalOptions& options;
  EffectiveBitsQuery bits;
  bool same_exact_tokens = false;  ///< --sink or --tail gave all schemes the same
  std::string weights_path;        ///< of options.weights
};

/// Contexts for which every row has its effective bits.
constexpr int64_t kContexts[] = {2048, 32768, 131072};

/// What documents say of the weights that the schemes ran on.
nlohmann::ordered_json weights_json(const QuantisedWeights& weights, const std::string& path);

/// `--json`'s document (formats/spec/eval.md), without "schema_version".
nlohmann::ordered_json eval_json(const EvalTable& table, const EvalText& text, const EvalReport& report);

/// A line a scheme: perplexity in each mode, the rest in the first one.
std::string eval_table(const EvalTable& table, const EvalReport& report);

}  // namespace kvcc::cli
