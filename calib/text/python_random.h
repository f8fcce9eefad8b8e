// Python's random module, as far as samples need it: the same numbers from the same seed.
#pragma once

#include <cstdint>

namespace kvcc {

/// Mersenne Twister MT19937, seeded as random.seed(seed) does for a natural number.
/// M. Matsumoto, T. Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform pseudo-random number
/// generator", 1998; initialisation by array of 2002.
class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);
  uint32_t bits32();
  uint64_t bits(int count);                      ///< random.getrandbits(count), count from 1 to 64
  int64_t randint(int64_t first, int64_t last);  ///< both ends included; first <= last

 private:
  static constexpr int kSize = 624;
  uint32_t state_[kSize];
  int at_ = kSize;
};

}  // namespace kvcc
