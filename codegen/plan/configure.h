// From an artifact to the configurations of one layout. Internal to codegen/plan.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codegen/plan/plan.h"

namespace kvcc::codegen {

/// Widths that some head of the family's tensor has; of attention pairs of its keys' and values'. Else second is 0; of
/// vector codebooks, whose units serve all widths, both are.
std::set<std::pair<int, int>> widths_of(const Artifact& artifact, Family family);

/// The family's configuration for one of widths_of(). Choices that the family does not depend on keep their neutral
/// value, so that equal kernels have equal names. Throws Error(usage) for a kind of RoPE that is not known.
Configuration configure(const Artifact& artifact, Layout layout, Family family, Dtype dtype, std::pair<int, int> widths,
                        bool on_tensor_cores = false);

/// Why a family of vector codebooks that tensor cores can read (key_scores, attention) has no such unit, or empty.
std::string obstacle_to_tensor_cores(const Artifact& artifact, const Targets& targets, Family family);

/// The targets' dtype for a machine.
Dtype dtype_of(const Targets& targets, Machine machine);

/// "keys stay at full precision", or another reason why the artifact has nothing for the family; else empty.
std::string why_skipped(const Artifact& artifact, Family family);

/// The targets' families, or all of the layout.
std::vector<Family> wanted_families(const Targets& targets, Layout layout);

}  // namespace kvcc::codegen
