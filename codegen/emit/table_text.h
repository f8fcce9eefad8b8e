// Tables as C++ text. Internal to codegen/emit.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "codegen/plan/plan.h"

namespace kvcc::codegen {

/// Rows of `per_line` values, each row of the table after a comment that says whose it is.
template <class T, class Format>
std::string table_text(const KernelSpec& spec, const std::vector<T>& values, size_t per_row, size_t per_line,
                       const Format& format) {
  std::string out;
  for (size_t row = 0; row * per_row < values.size(); ++row) {
    out += per_row == static_cast<size_t>(spec.heads)
               ? fmt::format("    // layer {}\n", row)
               : fmt::format("    // layer {}, head {}\n", row / spec.heads, row % spec.heads);
    for (size_t i = 0; i < per_row; ++i) {
      if (i % per_line == 0) out += "    ";
      out += format(values[row * per_row + i]);
      out += (i + 1) % per_line == 0 || i + 1 == per_row ? ",\n" : ", ";
    }
  }
  return out;
}

/// Levels, exact.
inline std::string levels_text(const KernelSpec& spec, const TensorSpec& tables, size_t codes) {
  return table_text(spec, tables.levels, codes, 8, [](float level) { return fmt::format("{:a}f", level); });
}
/// Widths of heads.
inline std::string widths_text(const KernelSpec& spec, const TensorSpec& tables) {
  return table_text(spec, tables.bits, spec.heads, 32, [](uint8_t b) { return fmt::format("{}", b); });
}

}  // namespace kvcc::codegen
