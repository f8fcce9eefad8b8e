// What is done about spills: fewer blocks on a multiprocessor, then an error or a warning.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>

#include "codegen/build/nvcc.h"

namespace kvcc::codegen {
namespace {

/// Calls visit(symbol, place of the number, its length) for each entry that states a bound; length 0: it states none.
template <class Visit>
void each_bound(const std::string& ptx, const Visit& visit) {
  // Between an entry's parameters and its body stand only directives.
  static const std::regex entry("\\.entry\\s+(\\w+)"), bound("\\.minnctapersm\\s+(\\d+)");
  for (auto at = std::sregex_iterator(ptx.begin(), ptx.end(), entry); at != std::sregex_iterator(); ++at) {
    const auto begin = ptx.begin() + at->position() + at->length();
    const auto body = std::find(begin, ptx.end(), '{');
    std::smatch match;
    const bool stated = std::regex_search(begin, body, match, bound);
    visit((*at)[1].str(), stated ? static_cast<size_t>(match[1].first - ptx.begin()) : 0,
          stated ? static_cast<size_t>(match[1].length()) : 0);
  }
}

}  // namespace

std::map<std::string, int> min_blocks_of(const std::string& ptx) {
  std::map<std::string, int> bounds;
  each_bound(ptx, [&](const std::string& symbol, size_t place, size_t length) {
    bounds[symbol] = length == 0 ? 0 : std::stoi(ptx.substr(place, length));
  });
  return bounds;
}

std::string with_min_blocks(std::string ptx, const std::map<std::string, int>& bounds) {
  std::map<size_t, std::pair<size_t, int>> places;
  each_bound(ptx, [&](const std::string& symbol, size_t place, size_t length) {
    if (const auto bound = bounds.find(symbol); bound != bounds.end() && length > 0) {
      places[place] = {length, bound->second};
    }
  });
  for (auto at = places.rbegin(); at != places.rend(); ++at) {  // from the end: places before it stay
    ptx.replace(at->first, at->second.first, std::to_string(at->second.second));
  }
  return ptx;
}

Compiled assemble(const Nvcc& nvcc, const std::string& name, const std::string& ptx, const std::string& arch,
                  const std::string& cache_folder) {
  std::map<std::string, int> bounds = min_blocks_of(ptx);
  Compiled result = assemble_once(nvcc, name, ptx, arch, cache_folder);
  bool cached = result.cached, lowered = false;
  for (;;) {
    bool again = false;
    for (auto& [symbol, bound] : bounds) {
      const auto usage = result.usage.find(symbol);
      if (bound <= 1 || usage == result.usage.end() || usage->second.spill_bytes == 0) continue;
      --bound;
      again = true;
    }
    if (!again) break;
    lowered = true;
    result = assemble_once(nvcc, name, with_min_blocks(ptx, bounds), arch, cache_folder);
    cached = cached && result.cached;
  }
  result.lowered = lowered;
  result.cached = cached;
  return result;
}

std::vector<std::string> check_spills(const std::string& name, const std::string& arch, const Compiled& cubin,
                                      bool shipped) {
  std::vector<std::string> lines;
  for (const auto& [symbol, usage] : cubin.usage) {
    if (usage.spill_bytes == 0) continue;
    lines.push_back(
        fmt::format("{} for {}: {} spills {} bytes a thread to local memory, with {} registers and one block on a "
                    "multiprocessor",
                    name, arch, symbol, usage.spill_bytes, usage.registers));
  }
  if (shipped && !lines.empty()) {
    throw Error(ErrorKind::failed, "ptxas", fmt::format("{}", fmt::join(lines, "\n")),
                "no spill of a shipped configuration (kernels/list)");
  }
  return lines;
}

}  // namespace kvcc::codegen
