// From a spec to the text of a unit, and from a plan to the C header. Pure: templates come in as text.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"

namespace kvcc::codegen {

/// Texts of codegen/templates by file name.
using Templates = std::map<std::string, std::string>;

/// Names of the templates that emitting needs.
const std::vector<std::string>& template_names();

/// One entry point of a unit. value_mix has a second one that adds its splits.
struct Entry {
  std::string family;  ///< "key_scores", …, "value_merge"
  std::string name;    ///< of the unit; that of the merge ends in "_merge"
  std::string symbol;
  std::string body;            ///< C++ class of kernels/device
  std::string params;          ///< C struct of formats/layout/launch.h
  std::string grid_rule;       ///< C function of formats/layout/launch.h that computes the grid
  int tokens_per_block = 0;    ///< tokens a block reads or writes at a time
  std::string splits = "one";  ///< who divides the context among blocks: "host" (value_mix) or "one"
};
std::vector<Entry> entries_of(const KernelSpec& spec);

/// The generated unit: banner, include, table of codebooks, constants, entries.
std::string emit_unit(const Artifact& artifact, const KernelSpec& spec, const Templates& templates,
                      const std::string& tool_version);

/// kvcc_NAME.h: names of the kernels, geometry and layout constants of the artifact. Compiles as C99 and C++.
std::string emit_header(const Artifact& artifact, const Plan& plan, const Templates& templates,
                        const std::string& tool_version);

/// Text from elsewhere as part of one comment line: control characters and backslashes become '?', "*/" is broken up.
std::string comment_text(const std::string& text);

/// The artifact's name as a C identifier: letters, digits and underscores, not starting with a digit.
std::string identifier(const std::string& name);

}  // namespace kvcc::codegen
