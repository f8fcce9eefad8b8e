// What the script prints and writes: a table of times, and one JSON document.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu/bench.h"
#include "tests/gpu/launcher.h"

namespace kvcc::gpu {

struct Parity {
  int total = 0, passed = 0, failed = 0, skipped = 0;
  std::vector<std::string> failures;  ///< case, check, first element that differs
};

void print_table(const Bench& bench);

/// Throws std::runtime_error when the file can't be written. Keys: schema_version (1), tool, device (null without one),
/// reason, parity, copy_gb_per_s, times, not_timed. Times that were not measured are null.
void write_json(const std::string& path, const Device& device, const Parity& parity, const Bench& bench);

}  // namespace kvcc::gpu
