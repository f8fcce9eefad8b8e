// A parity case in progress, and the checks of each family. Used by the sources parity*.cc only.
#pragma once

#include <cmath>
#include <random>
#include <string>

#include "tests/gpu/case.h"
#include "tests/gpu/launcher.h"
#include "tests/gpu/parity.h"

namespace kvcc::gpu {

/// A case in progress.
struct Run {
  Case c;
  const Set& set;
  std::mt19937 random;
  HostTensor key, value;
  Rotary rotary;
  std::vector<float> query;  ///< [S, H * group, D]
  int longest = 0;

  Run(const Case& c, const Set& set);
  int64_t sequences() const { return static_cast<int64_t>(c.lengths.size()); }
  const HostTensor& host(mma::Tensor t) const { return t == mma::Tensor::key ? key : value; }
  const TensorKernels& kernels(const Part& part, mma::Tensor t) const {
    return t == mma::Tensor::key ? part.key : part.value;
  }
  float multiplier() const { return 1.0f / std::sqrt(static_cast<float>(set.key.head_dim)); }
};

// "" or what differs.
std::string check_pack(Launcher& launcher, Run& run, mma::Tensor t);
/// mma-1 with outliers: a call that lists are too short for, repeated on larger pages.
std::string check_repeat(Launcher& launcher, Run& run, mma::Tensor t);
std::string check_dequantise(Launcher& launcher, Run& run, mma::Tensor t);
std::string check_copy(Launcher& launcher, Run& run, mma::Tensor t);
std::string check_key_scores(Launcher& launcher, Run& run);
std::string check_value_mix(Launcher& launcher, Run& run);
std::string check_attention(Launcher& launcher, Run& run);

}  // namespace kvcc::gpu
