#include "calib/fit/vector_kmeans.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvcc {
namespace {

struct Points {
  int width = 0;
  std::vector<float> z, weight;
  WeightedPoints view() const {
    const auto count = static_cast<int64_t>(weight.size());
    return {{width, count, z.data(), static_cast<ptrdiff_t>(count)}, weight.data()};
  }
};

/// Independent normal coordinates, each narrower than the one before, weights of very unequal size.
Points made_points(int width, int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Points points{width, {}, {}};
  for (int i = 0; i < width; ++i) {
    for (int t = 0; t < count; ++t) points.z.push_back(normal(random) / static_cast<float>(1 + i));
  }
  for (int t = 0; t < count; ++t) {
    const float g = normal(random);
    points.weight.push_back(t % 50 == 0 ? 0.0f : g * g);
  }
  return points;
}

double error_of(const Points& points, const std::vector<float>& vectors) {
  double error = 0;
  const size_t count = points.weight.size();
  for (size_t t = 0; t < count; ++t) {
    double least = INFINITY;
    for (size_t c = 0; c < vectors.size(); c += points.width) {
      double distance = 0;
      for (int i = 0; i < points.width; ++i) {
        distance += std::pow(double{points.z[i * count + t]} - vectors[c + i], 2);
      }
      least = std::min(least, distance);
    }
    error += points.weight[t] * least;
  }
  return error;
}

TEST(VectorKmeans, ErrorsAreThoseOfTheVectorsAndFallWithEveryBit) {
  for (const int width : {1, 2, 4, 7}) {
    const Points points = made_points(width, 1500, 3);
    const std::vector<VectorCodebook> books = grow_codebooks(points.view(), 6, 2);
    ASSERT_EQ(books.size(), 7u);
    for (size_t b = 0; b < books.size(); ++b) {
      ASSERT_EQ(books[b].vectors.size(), static_cast<size_t>(width) << b);
      EXPECT_NEAR(books[b].error, error_of(points, books[b].vectors), 1e-4 * books[b].error);
      EXPECT_NEAR(coding_error(points.view(), books[b].vectors), books[b].error, 1e-9 * books[b].error);
      if (b > 0) {
        EXPECT_LT(books[b].error, books[b - 1].error);
      }
    }
    VectorCodebook better = books[5];
    improve(points.view(), better, 30);
    EXPECT_LE(better.error, books[5].error);
    EXPECT_NEAR(better.error, error_of(points, better.vectors), 1e-4 * better.error);
  }
}

TEST(VectorKmeans, FindsSeparateClusters) {
  // 16 tight clusters at the corners of a cube: 4 bits leave next to nothing.
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  Points points{4, std::vector<float>(4 * 1600), std::vector<float>(1600, 1.0f)};
  for (int t = 0; t < 1600; ++t) {
    for (int i = 0; i < 4; ++i) points.z[i * 1600 + t] = ((t % 16) >> i & 1 ? 5.0f : -5.0f) + 0.01f * normal(random);
  }
  const std::vector<VectorCodebook> books = grow_codebooks(points.view(), 4, 2);
  EXPECT_LT(books[4].error, 1600 * 4 * 2e-4);
  EXPECT_GT(books[3].error, 1600);
}

TEST(VectorKmeans, IsNearTheBestKnownOfANormalDistribution) {
  // One-dimensional Lloyd-Max of the normal density (Max 1960): 2 bits leave 0.1175, 3 bits 0.03454.
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  Points points{1, {}, std::vector<float>(40000, 1.0f)};
  for (int t = 0; t < 40000; ++t) points.z.push_back(normal(random));
  std::vector<VectorCodebook> books = grow_codebooks(points.view(), 3, 2);
  improve(points.view(), books[2], 50);
  improve(points.view(), books[3], 50);
  EXPECT_NEAR(books[2].error / 40000, 0.1175, 0.002);
  EXPECT_NEAR(books[3].error / 40000, 0.03454, 0.001);
}

TEST(VectorKmeans, FewDifferentPointsAndNoWeights) {
  Points points{2, {1, 1, 3, 3, 2, 2, 5, 5}, {1, 1, 2, 1}};  // two different points
  std::vector<VectorCodebook> books = grow_codebooks(points.view(), 3, 3);
  EXPECT_EQ(books[1].error, 0);
  EXPECT_EQ(books[3].error, 0);
  EXPECT_EQ(books[3].vectors.size(), 16u);
  points.weight.assign(4, 0.0f);
  books = grow_codebooks(points.view(), 2, 3);
  for (const VectorCodebook& book : books) {
    EXPECT_EQ(book.error, 0);
    for (const float v : book.vectors) EXPECT_TRUE(std::isfinite(v));
  }
}

TEST(VectorKmeans, AVectorWithoutPointsTakesTheWorstOne) {
  Points points{1, {0, 0.1f, 5, 9}, {1, 1, 1, 1}};
  VectorCodebook book{{0, 100, 101}, 0};
  improve(points.view(), book, 10);
  EXPECT_LT(book.error, 0.1) << "three vectors for three clusters";
}

}  // namespace
}  // namespace kvcc
