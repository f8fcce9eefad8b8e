// The kernels under test. A set is a pair of a key and a value configuration with the kernels of every family, one
// source in units/ each; the sets that are linked are those that run.
#pragma once

#include <string>
#include <vector>

#include "formats/layout/mma.h"
#include "kernels/device/common.cuh"
#include "tests/gpu/kernel.h"

namespace kvcc::gpu {

enum class Layout { linear, mma };

/// What the kernels of a tensor were made for.
struct Spec {
  mma::Tensor tensor = mma::Tensor::key;
  int bits = 0;  ///< when mixed, head h has mixed_bits(h)
  int head_dim = 0;
  device::Axis axis = device::Axis::channel;
  linear::Sparse sparse = linear::Sparse::none;
  device::Rope rope = device::Rope::none;
  int rotary = 0, group_tile = 0;
  device::Dtype dtype = device::Dtype::f16;       ///< of queries and weights
  device::Dtype pack_dtype = device::Dtype::f16;  ///< of what is packed
  bool mixed = false;
};

/// Kernels of one tensor. Those that its layout or tensor does not have are not there.
struct TensorKernels {
  Kernel select, pack, dequantise, key_scores, value_mix, value_merge;
};

/// One unit's kernels; a mixed set has one for each width.
struct Part {
  TensorKernels key, value;
  Kernel attention, attention_merge;
};

struct Set {
  std::string name;
  Layout layout = Layout::mma;
  Spec key, value;
  std::vector<Part> parts;
};

/// The sets that are linked, by name.
const std::vector<Set>& sets();
bool add_set(Set set);
/// Serves every layout and configuration.
Kernel copy_pages_kernel();

std::string describe(const Spec& spec);

}  // namespace kvcc::gpu
