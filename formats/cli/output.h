// Names of results under which something else may lie.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace kvcc::cli {

/// Throws Error(bad_input) when the file `path` is there, is not empty, and has not all of `marks`, which results of
/// this kind have, in its first 64 KiB. So a rerun replaces its result, and a mistyped name harms no model, artifact or
/// text. `option`: what the name was given with, for the message.
void check_replaced(const std::string& path, std::initializer_list<std::string_view> marks, const std::string& option);

}  // namespace kvcc::cli
