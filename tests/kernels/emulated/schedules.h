// Under which schedules a launch is emulated, and that all of them must give the same bits. Compiled with
// -DKVCC_EMULATED_SMALL, for ThreadSanitizer, there are fewer and smaller launches: there what counts is which accesses
// are ordered, not which order came about.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/emulator/run_body.h"

namespace kvcc::test {

#if defined(KVCC_EMULATED_SMALL)
constexpr bool kSmall = true;
#else
constexpr bool kSmall = false;
#endif

struct Schedule {
  const char* name;
  emulator::Options options;
};
inline std::vector<Schedule> schedules() {
  using emulator::Order;
  if (kSmall)
    return {{"random, copies late", {Order::random, 1, false}},
            {"in order, copies early", {Order::sequential, 1, true}}};
  return {{"in order, copies late", {Order::sequential, 1, false}},
          {"in order, copies early", {Order::sequential, 1, true}},
          {"reversed, copies late", {Order::reversed, 1, false}},
          {"reversed, copies early", {Order::reversed, 1, true}},
          {"random 1, copies late", {Order::random, 1, false}},
          {"random 1, copies early", {Order::random, 1, true}},
          {"random 2, copies late", {Order::random, 2, false}},
          {"random 2, copies early", {Order::random, 2, true}}};
}

/// What run(options) gives, which must be the same under every schedule. Results compare with ==; floats go as bits.
template <class Run>
auto under_all_schedules(const Run& run) {
  const auto all = schedules();
  const auto first = run(all.front().options);
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_TRUE(run(all[i].options) == first) << "results differ: '" << all[i].name << "' and '" << all[0].name << "'";
  }
  return first;
}

inline std::vector<uint32_t> bits_of(const std::vector<float>& x) {
  std::vector<uint32_t> bits(x.size());
  for (size_t i = 0; i < x.size(); ++i) bits[i] = float_bits(x[i]);
  return bits;
}
inline std::vector<float> floats_of(const std::vector<uint32_t>& bits) {
  std::vector<float> x(bits.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = bits_float(bits[i]);
  return x;
}

}  // namespace kvcc::test
