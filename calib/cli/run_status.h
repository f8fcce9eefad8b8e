// What the progress of a long run shows beside the time left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcc::cli {

/// Bytes that this process has resident; 0 where the system does not tell.
uint64_t resident_bytes();

/// "310 tokens/s, 1.2 GiB used", and "340 MiB written" when anything was. `tokens` in `seconds`; the rate is left
/// out before there is one.
std::string run_status(double tokens, double seconds, uint64_t written);

/// Ascending numbers in few words: "0 to 4, 7".
std::string ranges_text(const std::vector<int>& numbers);

}  // namespace kvcc::cli
