#include "tests/bench/cpu_measure.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

namespace kvcc::bench {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void run_next(Contestant& c, int cycle) {
  c.run(c.at);
  c.at = (c.at + 1) % std::min(c.copies, cycle);
}

}  // namespace

void measure(std::vector<Contestant>& contestants, int rounds, double sample, int cycle, bool warm) {
  std::vector<int> runs;
  for (Contestant& c : contestants) {
    c.times.clear();
    c.at = 0;
    double least = 1e9;
    for (int i = 0; i < 3; ++i) {
      const double start = now();
      run_next(c, cycle);
      least = std::min(least, now() - start);
    }
    runs.push_back(std::max(1, static_cast<int>(sample / least)));
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < contestants.size(); ++i) {
      const size_t which = (i + round) % contestants.size();  // nobody always follows the same one
      Contestant& c = contestants[which];
      const int round_trip = std::min(c.copies, cycle);
      if (warm) {
        for (int k = 0; k < round_trip; ++k) run_next(c, cycle);
      }
      const double start = now();
      for (int k = 0; k < runs[which]; ++k) run_next(c, cycle);
      c.times.push_back((now() - start) / runs[which]);
    }
  }
}

Times times_of(const Contestant& contestant) {
  auto sorted = contestant.times;
  std::sort(sorted.begin(), sorted.end());
  return {sorted.front(), sorted[sorted.size() / 2]};
}

size_t last_level_cache() {
  // Not sysconf: on AMD it adds up the caches of the whole socket, of which a core has one.
  std::ifstream in("/sys/devices/system/cpu/cpu0/cache/index3/size");
  size_t size = 0;
  char unit = 0;
  if (!(in >> size >> unit) || size == 0) return size_t{32} << 20;
  return size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
}

size_t free_memory() {
  return static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace kvcc::bench
