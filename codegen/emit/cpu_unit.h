// Units of the CPU. Internal to codegen/emit; emit_unit() goes by the spec's machine.
#pragma once

#include <string>

#include "codegen/emit/emit.h"

namespace kvcc::codegen {

/// The unit: banner, levels and Config, bodies that are compiled for each instruction set, entries that choose among
/// them at run time.
std::string emit_cpu_unit(const Artifact& artifact, const KernelSpec& spec, const Templates& templates,
                          const std::string& tool_version);

}  // namespace kvcc::codegen
