// Times of every family against fp16 kernels written as well and against KVQuant-like ones.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu/launcher.h"

namespace kvcc::gpu {

struct BenchOptions {
  std::vector<int> tokens;  ///< of the context; multiples of 64
  double seconds = 270;     ///< what is left after that is not timed
};

struct Row {
  std::string model;
  int heads = 0, group = 0, head_dim = 0, tokens = 0;
  std::string family;  ///< key_scores, value_mix, attention, pack_key, …
  std::string kernel;  ///< "fp16", "KVQuant-like 4 bits, as deployed", or the set
  int bits = 16;
  double bytes = 0;         ///< read and written by a launch, each once
  double milliseconds = 0;  ///< median; 0 without a clock
  double to_fp16 = 0;       ///< fp16's time of the family over this one; 0: none
  double to_kvquant = 0;    ///< likewise of the KVQuant-like kernels as deployed, same bits
};

struct Bench {
  double copy_gigabytes = 0;  ///< a second, read and written, of the device's own copy of 512 MiB
  std::vector<Row> rows;
  std::vector<std::string> not_timed;  ///< and why
};

Bench run_bench(Launcher& launcher, const BenchOptions& options);

}  // namespace kvcc::gpu
