// Text with named placeholders. The mark @name@ does not occur in C++, so braces stay single.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace kvcc::codegen {

/// Replaces every @name@ of `text` by its value; values are not searched again. Throws Error(failed), naming `place`,
/// for a placeholder without a value, a value without a placeholder, and a lone @.
std::string fill(std::string_view text, const std::map<std::string, std::string>& values, const std::string& place);

}  // namespace kvcc::codegen
