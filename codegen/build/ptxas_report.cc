#include "codegen/build/ptxas_report.h"

#include <algorithm>
#include <regex>
#include <sstream>

#include "formats/core/error.h"

namespace kvcc::codegen {

std::map<std::string, KernelUsage> parse_ptxas(std::string_view log) {
  static const std::regex entry("Compiling entry function '([^']+)'");
  static const std::regex stack("(\\d+) bytes stack frame, (\\d+) bytes spill stores, (\\d+) bytes spill loads");
  static const std::regex used("Used (\\d+) registers");
  static const std::regex cumulative("(\\d+) bytes cumulative stack size");
  static const std::regex shared("(\\d+) bytes smem");
  std::map<std::string, KernelUsage> kernels;
  std::string symbol;
  bool own_stack = false;
  std::istringstream lines{std::string(log)};
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_search(line, match, entry)) {
      if (!symbol.empty()) throw Error(ErrorKind::failed, "ptxas", "no report of registers for " + symbol);
      symbol = match[1];
      own_stack = true;
    } else if (!symbol.empty() && own_stack && std::regex_search(line, match, stack)) {
      kernels[symbol].stack_bytes = std::stoi(match[1]);
      kernels[symbol].spill_bytes = std::stoi(match[2]) + std::stoi(match[3]);
      own_stack = false;
    } else if (!symbol.empty() && std::regex_search(line, match, used)) {
      KernelUsage& usage = kernels[symbol];
      usage.registers = std::stoi(match[1]);
      if (std::regex_search(line, match, cumulative)) {
        usage.stack_bytes = std::max(usage.stack_bytes, std::stoi(match[1]));
      }
      if (std::regex_search(line, match, shared)) usage.shared_bytes = std::stoi(match[1]);
      symbol.clear();
    }
  }
  if (!symbol.empty()) throw Error(ErrorKind::failed, "ptxas", "no report of registers for " + symbol);
  return kernels;
}

}  // namespace kvcc::codegen
