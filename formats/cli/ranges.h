// Checks of options' values. Programs only.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

namespace kvcc::cli {

/// As CLI::Range, which lets NaN through.
inline CLI::Validator number_in(double low, double high) {
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return std::string();
        return fmt::format("Value {} not in range {} to {}", text, low, high);
      },
      "");
}

}  // namespace kvcc::cli
