#include "calib/fit/excess.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvcc {
namespace {

/// `groups` groups of a tensor in a place: log ratios `level` at 0 bits, more by `more` at 4.
void add(std::vector<HeldOutRatio>& to, int tensor, int place, int groups, double level, double more) {
  for (int g = 0; g < groups; ++g) {
    to.push_back({tensor, 4, place, 0, level});
    to.push_back({tensor, 4, place, 4, level + more});
  }
}

TEST(Excess, IsOneWhereNothingIsHeldOut) { EXPECT_EQ(Excess({}).factor(0, 4, 0, 4), 1.0); }

TEST(Excess, TextsWithHeavierTokensCountForNothing) {
  std::vector<HeldOutRatio> ratios;
  add(ratios, 0, 0, 10, 0.0, 0.3);
  add(ratios, 1, 0, 10, 0.9, 0.3);
  const Excess excess(ratios);
  for (const int tensor : {0, 1}) {
    EXPECT_NEAR(excess.factor(tensor, 4, 0, 0), 1.0, 1e-12);
    EXPECT_NEAR(excess.factor(tensor, 4, 0, 4), std::exp(0.3), 1e-12);
  }
  EXPECT_EQ(excess.factor(0, 2, 0, 4), 1.0) << "no group of that width";
}

TEST(Excess, PlacesThatHeldOutTextSpreadsMoreInCostMoreAtAllBits) {
  std::vector<HeldOutRatio> ratios;
  add(ratios, 0, 0, 10, -0.2, 0.1);
  add(ratios, 0, 7, 10, 0.2, 0.1);
  const Excess excess(ratios);
  EXPECT_NEAR(excess.factor(0, 4, 0, 0), std::exp(-0.2), 1e-12);
  EXPECT_NEAR(excess.factor(0, 4, 7, 0), std::exp(0.2), 1e-12);
  EXPECT_NEAR(excess.factor(0, 4, 7, 4), std::exp(0.3), 1e-12);
}

TEST(Excess, ATensorsOwnDepartureCountsByItsGroups) {
  std::vector<HeldOutRatio> ratios;
  add(ratios, 0, 0, 16, 0.0, 0.0);
  add(ratios, 1, 0, 16, 0.0, 0.4);
  const Excess excess(ratios);
  EXPECT_NEAR(std::log(excess.factor(0, 4, 0, 4)), 0.2 - 0.2 / 2, 1e-12) << "16 groups beside 16 of the model's";
  EXPECT_NEAR(std::log(excess.factor(1, 4, 0, 4)), 0.2 + 0.2 / 2, 1e-12);
}

}  // namespace
}  // namespace kvcc
