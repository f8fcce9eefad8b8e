// How much more codebooks lose on text that they have not seen, for the allocation of bits.
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <utility>

namespace kvcc {

/// One group's codebook of `bits` bits: the logarithm of its error a token on held-out text over that on fitted text.
struct HeldOutRatio {
  int tensor = 0;  ///< of one layer
  int width = 0;
  int place = 0;  ///< of the group among the transform's coordinates, in kExcessPlaces equal parts
  int bits = 0;
  double logarithm = 0;
};

constexpr int kExcessPlaces = 8;

/// A group's own ratio on little text is too uncertain. Expected is the mean over the model of groups of its width,
/// place and bits, and of its tensor's departure from that as much as its groups of the width bear witness to. The
/// level that a tensor has at 0 bits in all places says how heavy the texts' tokens are, and counts for nothing.
class Excess {
 public:
  explicit Excess(std::span<const HeldOutRatio> ratios);
  /// Of errors, 1 where nothing was held out.
  double factor(int tensor, int width, int place, int bits) const;

 private:
  struct Mean {
    double sum = 0, count = 0;
    double of(double prior) const { return count > 0 ? sum / (count + prior) : 0; }
  };
  std::map<std::tuple<int, int, int>, Mean> places_;   ///< width, place, bits
  std::map<std::tuple<int, int, int>, Mean> tensors_;  ///< tensor, width, bits
};

}  // namespace kvcc
