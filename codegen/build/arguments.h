// The members of the launch structs, read from the text of formats/layout/launch.h and mma_launch.h, so that
// kernels.json can't differ from the header.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/store/kernels_manifest.h"

namespace kvcc::codegen {

/// Members of struct `name` in order, members of nested structs as "cache.pages". The shape is the bracket that begins
/// the member's comment. Throws Error(failed) when the struct or a line of it can't be read.
std::vector<KernelArgument> members_of(std::string_view launch_header, const std::string& name);

}  // namespace kvcc::codegen
