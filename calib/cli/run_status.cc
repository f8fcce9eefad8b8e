#include "calib/cli/run_status.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "formats/core/text.h"

namespace kvcc::cli {

uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  statm >> all >> resident;
  return statm ? resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

std::string run_status(double tokens, double seconds, uint64_t written) {
  std::string text;
  if (tokens > 0 && seconds > 0) {
    const double rate = tokens / seconds;
    text = rate < 10 ? fmt::format("{:.2g} tokens/s, ", rate) : fmt::format("{:.0f} tokens/s, ", rate);
  }
  text += human_bytes(resident_bytes()) + " used";
  if (written > 0) text += ", " + human_bytes(written) + " written";
  return text;
}

std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += std::to_string(numbers[i]);
    if (end > i) text += (end == i + 1 ? ", " : " to ") + std::to_string(numbers[end]);
    i = end + 1;
  }
  return text;
}

}  // namespace kvcc::cli
