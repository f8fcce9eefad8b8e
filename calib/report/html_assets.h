// Text of the files in calib/report/assets, and of formats/spec/statistics.md, which the build puts into the library
// (assets/embed.cmake).
#pragma once

#include <string_view>

namespace kvcc {

/// Content of the file "page.css", "base.js", …. Throws std::out_of_range for another name.
std::string_view html_asset(std::string_view name);

}  // namespace kvcc
