// Measures contestants in turns, so that a drift of the machine hits all of them alike.
#pragma once

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

/// `rounds` samples of each, a sample being as many runs as take about `sample` seconds, over the copies in a cycle.
/// `cycle` 1: the same copy over and over, run once more before each sample, as the others have driven it out of the
/// caches. Copies from `cycle` on are left out.
void measure(std::vector<Contestant>& contestants, int rounds, double sample, int cycle);

/// Bytes of the last-level cache; 32 MiB where the system does not say.
size_t last_level_cache();

}  // namespace kvcc::bench
