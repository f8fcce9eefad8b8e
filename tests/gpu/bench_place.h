// What the times of one model at one length of the context share. Used by the sources bench*.cc only.
#pragma once

#include <functional>
#include <string>

#include "tests/gpu/bench.h"
#include "tests/gpu/case.h"
#include "tests/gpu/sets.h"

namespace kvcc::gpu {

constexpr int kHeadDim = 128;
constexpr double kOutliers = 0.01;  ///< of all elements, in sets with a sparse part
constexpr float kThreshold = 2.5758f;

struct Model {
  const char* name;
  int heads, group;
};

/// One model at one length of the context: what all kernels share.
class Place {
 public:
  Place(Launcher& launcher, Bench& bench, const Model& model, int tokens, const Rotary& rotary);

  void time_fp16();
  void time_kvquant(int bits);
  void time_set(const Set& set);

 private:
  struct Packed;

  void fill(void* to, size_t bytes, uint32_t seed, bool normal);
  /// Times launch(i), i counting up, and adds a row. most: launches that one repetition may have.
  double add(
      const std::string& family, const std::string& kernel, int bits, double bytes,
      const std::function<void(int)>& launch, int most = 1 << 20, const std::function<void()>& reset = [] {});
  /// An output that is not finite, or all zeros, was not computed.
  void expect_results(const Array<float>& results, const std::string& what);

  Launcher& launcher_;
  Bench& bench_;
  Model model_;
  int tokens_, rows_, pages_;
  size_t tensor_bytes_;  ///< of one tensor in fp16
  int copies_ = 1, splits_ = 1;
  Array<uint8_t> key_, value_;  ///< [copies] in fp16: any numbers are a cache, in the order of fp16.cuh and by rows
  Array<uint16_t> query_, weights_, relative_cosine_, relative_sine_;
  Array<float> float_query_, float_weights_, scores_, out_, partial_, cosine_, sine_, base_cosine_, base_sine_;
  Array<int32_t> page_table_, length_;
};

}  // namespace kvcc::gpu
