// What kvcc ablate prints: its document and its tables. Programs only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calib/cli/ablate_plan.h"
#include "formats/store/codebook.h"

namespace kvcc::cli {

/// Everything that was made and measured.
struct Ablation {
  const AblateOptions& options;
  const AblatePlan& plan;
  std::vector<std::string> schemes;                 ///< short names
  std::vector<std::vector<std::string>> artifacts;  ///< [points][schemes] paths
  std::vector<std::vector<Codebook>> books;         ///< [points][schemes]
  std::vector<nlohmann::ordered_json> evaluations;  ///< documents of kvcc eval
};

/// formats/spec/ablate.md, without "schema_version".
nlohmann::ordered_json ablation_json(const Ablation& ablation);

/// A table an axis, of the document.
std::string ablation_tables(const nlohmann::ordered_json& document);

}  // namespace kvcc::cli
