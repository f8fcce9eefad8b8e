// Which sample is of which text.
#include "calib/text/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "formats/core/error.h"

namespace kvcc {
namespace {

TEST(Mixture, EachPartHasItsShareOfEveryBeginningWithinOne) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> weights(2 + random() % 7);
    double sum = 0;
    for (double& w : weights) sum += w = 0.01 + static_cast<double>(random() % 1000);
    const std::vector<int> order = spread_parts(weights, 300);
    std::vector<int> had(weights.size());
    for (int n = 1; n <= 300; ++n) {
      ++had[static_cast<size_t>(order[static_cast<size_t>(n - 1)])];
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_LT(std::fabs(had[i] - weights[i] / sum * n), 1) << "part " << i << " of " << weights.size() << ", " << n;
      }
    }
    const std::vector<int> fewer = spread_parts(weights, 100);
    EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), order.begin()));
  }
}

TEST(Mixture, WholeSharesAreExact) {
  for (const auto& [weights, count, wanted] : std::vector<std::tuple<std::vector<double>, int, std::vector<int>>>{
           {{0.7, 0.3}, 10, {7, 3}},
           {{1, 1, 1}, 999, {333, 333, 333}},
           {{0.1, 0.2, 0.3, 0.4}, 1000, {100, 200, 300, 400}},
           {{3, 1}, 16, {12, 4}}}) {
    std::vector<int> had(weights.size());
    for (const int part : spread_parts(weights, count)) ++had[static_cast<size_t>(part)];
    EXPECT_EQ(had, wanted);
  }
}

TEST(Mixture, WordsAreReadAsNamesAndWeights) {
  const auto parts = parse_datasets({"wikitext-2:0.7,c4:validation:0.3"});
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].name, "wikitext-2");
  EXPECT_EQ(parts[0].weight, 0.7);
  EXPECT_EQ(parts[1].name, "c4:validation");
  EXPECT_EQ(parts[1].weight, 0.3);
  EXPECT_EQ(parse_datasets({"wikitext-2:evaluation"})[0].name, "wikitext-2:evaluation");
  EXPECT_EQ(parse_datasets({"self", "ptb"}).size(), 2u);
  for (const std::string bad : {"a:0.5,b", "a:0", "a:-1", "a:inf", "a,a", "a,,b", ""}) {
    EXPECT_THROW(parse_datasets({bad}), Error) << bad;
  }
}

}  // namespace
}  // namespace kvcc
