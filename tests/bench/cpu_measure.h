// Measures contestants in turns, so that a drift of the machine hits all of them alike.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace kvcc::bench {

struct Contestant {
  std::string name;
  double bytes = 0;                ///< that one run reads
  int copies = 1;                  ///< run(copy) for 0 to copies - 1
  std::function<void(int)> run;    ///< one layer of one token
  int at = 0;                      ///< next copy
  std::vector<double> times = {};  ///< seconds a run, one for each sample
};

struct Times {
  double best, median;  ///< seconds a run
};
Times times_of(const Contestant& contestant);

/// `rounds` samples of each, a sample being as many runs as take about `sample` seconds, over the first `cycle` copies
/// in turn. `warm`: all of these are run once before each sample, as the others have driven them out of the caches.
void measure(std::vector<Contestant>& contestants, int rounds, double sample, int cycle, bool warm);

/// Bytes of the last-level cache that a core has; 32 MiB where the system does not say.
size_t last_level_cache();
/// Bytes of memory that nobody uses.
size_t free_memory();

}  // namespace kvcc::bench
