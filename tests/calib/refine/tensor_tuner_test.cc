// Steps of vector codebooks on numbers that are small enough to follow.
#include "calib/refine/tensor_tuner.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace kvcc {
namespace {

/// One head of two channels, not turned: coordinate 0 in 1 bit, coordinate 1 in none.
VectorQuantiser two_groups() {
  VectorQuantiser q{1, 2, 1, {0, 0}, {1, 0, 0, 1}, {1, 0, 0, 1}, {1, 1}, {1, 0}, {-1, 1, 0}};
  return q;
}

at::Tensor rows(std::vector<float> values) {
  return at::tensor(values).view({1, static_cast<int64_t>(values.size()) / 2, 1, 2});
}

TEST(TensorTuner, GivesWhatTheCacheGives) {
  TensorTuner tuner(two_groups(), 1, 1, true);
  const at::Tensor x = rows({0.1f, 5, 0.5f, 1, -2, 3, 7, 1.0f / 3});
  const at::Tensor out = tuner.quantise(x, 2, "made").view({-1});
  const at::Tensor wanted =
      at::tensor({0.1f, 5.0f, 1.0f, 0.0f, -1.0f, 0.0f, 7.0f, 1.0f / 3}).to(at::kHalf).to(at::kFloat);
  EXPECT_TRUE(at::equal(out, wanted)) << "first and last token are exact, in fp16";
  EXPECT_EQ(x[0][1][0][0].item<float>(), 0.5f) << "x stays";
}

TEST(TensorTuner, FirstStepIsTheRateInErrors) {
  TensorTuner tuner(two_groups(), 0, 0, false);
  const at::Tensor x = rows({-2, 3, 0, 4, 1.5f, 0, 1.5f, 5});  // codes 0, 1 (0 is as near to -1: the first), 1, 1
  tuner.quantise(x, 1, "made");
  tuner.add(rows({0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(tuner.vector_gradient(), (std::vector<double>{0, 0, 4}));
  tuner.step(0.5);
  const double error = std::sqrt((9.0 + 16 + 0 + 25) / 4);
  EXPECT_NEAR(tuner.quantiser().vectors[2], -0.5 * error, 1e-5) << "one vector, which is a shift alone";
  EXPECT_EQ(tuner.quantiser().vectors[0], -1.0f) << "no gradient";
  EXPECT_EQ(tuner.vector_gradient(), (std::vector<double>{0, 0, 0})) << "sums begin anew";
  EXPECT_EQ(tuner.quantiser().inverse, two_groups().inverse);
}

TEST(TensorTuner, FewTokensMoveAVectorLess) {
  TensorTuner tuner(two_groups(), 0, 0, false);
  std::vector<float> x, gradient;
  for (int t = 0; t < 100; ++t) {
    x.insert(x.end(), {t == 0 ? -2.0f : 2.0f, 0});
    gradient.insert(gradient.end(), {t == 0 ? -1.0f : 1.0f / 99, 0});  // no shift
  }
  tuner.quantise(rows(x), 1, "made");
  tuner.add(rows(gradient));
  tuner.step(0.1);
  const double rare = tuner.quantiser().vectors[0] + 1, frequent = tuner.quantiser().vectors[1] - 1;
  EXPECT_GT(rare, 0);
  EXPECT_LT(frequent, 0);
  EXPECT_NEAR(rare / -frequent, (99.0 + 50) / (1 + 50), 1e-2) << "sums over own tokens and a mean vector's";
}

TEST(TensorTuner, DescendsOnWhatItIsGiven) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({1, 500, 1, 2}),
                   target = x.matmul(at::tensor({1.0f, 0.3f, -0.2f, 0.8f}).view({2, 2})) + 0.5;
  for (const bool transforms : {false, true}) {
    TensorTuner tuner(two_groups(), 0, 0, transforms);
    const auto loss = [&] { return (tuner.quantise(x, 1, "made") - target).square().mean().item<double>(); };
    const double before = loss();
    for (int step = 0; step < 200; ++step) {
      tuner.quantise(x, 1, "made");
      tuner.add(tuner.coded() - target);
      tuner.step(0.05 * (1 - step / 200.0));
    }
    const double after = loss();
    // The best that the codes, which are of one coordinate, give: the target's mean for each.
    const float middle = (tuner.quantiser().vectors[0] + tuner.quantiser().vectors[1]) / 2;
    const at::Tensor code = (x.select(3, 0).flatten() > middle).to(at::kFloat);
    EXPECT_LT(after, 0.9 * before);
    if (!transforms) continue;
    double best = 0;
    for (int k = 0; k < 2; ++k) {
      const at::Tensor wanted = target.select(3, k).flatten();
      for (const at::Tensor& side : {code, 1 - code}) {
        const at::Tensor mean = (wanted * side).sum() / side.sum();
        best += ((wanted - mean).square() * side).sum().item<double>() / 1000;
      }
    }
    EXPECT_LT(after, 1.02 * best) << "the inverse carries one coordinate's code to the other";
  }
}

TEST(TensorTuner, StepsNeedGradients) {
  TensorTuner tuner(two_groups(), 0, 0, true);
  tuner.step(1);
  EXPECT_EQ(tuner.quantiser().vectors, two_groups().vectors);
  tuner.quantise(rows({-2, 3}), 1, "made");
  tuner.add(rows({0, 0}));
  tuner.step(1);
  EXPECT_EQ(tuner.quantiser().vectors, two_groups().vectors) << "a gradient of 0";
  EXPECT_EQ(tuner.quantiser().inverse, two_groups().inverse);
}

}  // namespace
}  // namespace kvcc
