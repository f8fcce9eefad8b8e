#include "calib/fit/allocate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvcc {
namespace {

RateCurve curve(double start, double factor, int most) {
  RateCurve out;
  for (int b = 0; b <= most; ++b) {
    out.error.push_back(start * std::pow(factor, b));
    out.cost.push_back(b);
  }
  return out;
}

struct Total {
  double error = 0, cost = 0;
};
Total total(const std::vector<GroupChoice>& choices, const std::vector<GroupBits>& bits) {
  Total sum;
  for (size_t c = 0; c < choices.size(); ++c) {
    const auto& groups = choices[c].ways[bits[c].way];
    for (size_t g = 0; g < groups.size(); ++g) {
      sum.error += groups[g].error[bits[c].bits[g]];
      sum.cost += groups[g].cost[bits[c].bits[g]];
    }
  }
  return sum;
}

TEST(Allocate, GivesEqualGroupsTheSameAndHeavyOnesMore) {
  const std::vector<GroupChoice> choices{{{{curve(1, 0.5, 10)}}}, {{{curve(1, 0.5, 10)}}}, {{{curve(16, 0.5, 10)}}}};
  const std::vector<GroupBits> bits = allocate(choices, 10);
  EXPECT_EQ(bits[0].bits[0], 2);
  EXPECT_EQ(bits[1].bits[0], 2);
  EXPECT_EQ(bits[2].bits[0], 6);
}

TEST(Allocate, TakesTheWayThatCodesBetter) {
  GroupChoice choice;
  choice.ways = {{curve(8, 0.5, 10)}, {curve(2, 0.5, 10), curve(2, 0.5, 10)}};
  const std::vector<GroupChoice> choices{choice, choice};
  // 4 are less than 8 without bits; halving one error takes half the bits of halving two; in the end two have more.
  for (const auto& [budget, way] : {std::pair{0.0, 1}, {15.0, 0}, {40.0, 1}}) {
    const std::vector<GroupBits> bits = allocate(choices, budget);
    EXPECT_EQ(bits[0].way, way) << budget;
    EXPECT_LE(total(choices, bits).cost, budget);
  }
}

TEST(Allocate, IsNearTheBestOfAllForAnyCurves) {
  // Against dynamic programming over whole costs: nothing better than a step of one group is left.
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0.2, 0.95);
  for (int turn = 0; turn < 40; ++turn) {
    std::vector<GroupChoice> choices;
    const int budget = 5 + turn;
    for (int c = 0; c < 8; ++c) {
      RateCurve one;
      double error = std::exp(4 * uniform(random));
      for (int b = 0; b <= 6; ++b, error *= uniform(random)) {
        one.error.push_back(error);
        one.cost.push_back(b);
      }
      choices.push_back({{{one}}});
    }
    std::vector<double> best(budget + 1, 0.0);
    for (const GroupChoice& choice : choices) {
      std::vector<double> next(budget + 1, INFINITY);
      for (int r = 0; r <= budget; ++r) {
        for (int b = 0; b <= std::min(6, r); ++b) next[r] = std::min(next[r], best[r - b] + choice.ways[0][0].error[b]);
      }
      best = next;
    }
    const Total got = total(choices, allocate(choices, budget));
    EXPECT_LE(got.cost, budget);
    double step = 0;  // the greatest fall that one bit gives
    for (const GroupChoice& choice : choices) {
      const auto& e = choice.ways[0][0].error;
      for (int b = 0; b < 6; ++b) step = std::max(step, e[b] - e[b + 1]);
    }
    EXPECT_LE(got.error, best[budget] + step);
  }
}

TEST(Allocate, NothingToSpendAndEverythingToSpend) {
  const std::vector<GroupChoice> choices{{{{curve(1, 0.5, 4)}}}, {{{curve(0, 0.5, 4)}}}};
  EXPECT_EQ(allocate(choices, -1)[0].bits[0], 0);
  EXPECT_EQ(allocate(choices, 0)[0].bits[0], 0);
  const std::vector<GroupBits> all = allocate(choices, 1e9);
  EXPECT_EQ(all[0].bits[0], 4);
  EXPECT_EQ(all[1].bits[0], 0) << "no bits where they save nothing";
}

}  // namespace
}  // namespace kvcc
