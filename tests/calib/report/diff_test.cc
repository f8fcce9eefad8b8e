#include "calib/report/codebook_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "formats/codec/reference.h"
#include "tests/formats/store/made.h"

namespace kvcc {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Codebook finished(Codebook codebook) {
  codebook_tree(codebook);  // sets the hash
  return codebook;
}

/// With thresholds where a fit has them: at the ends of the range.
Codebook fitted() {
  Codebook codebook = made::codebook();
  for (size_t i = 0; i < codebook.key.scale.size(); ++i) {
    codebook.key.threshold_lower[i] = codebook.key.zero[i] - codebook.key.scale[i];
    codebook.key.threshold_upper[i] = codebook.key.zero[i] + codebook.key.scale[i];
  }
  return codebook;
}

double distance_of(const CodebookDifference& difference, int layer, const std::string& kind, int head) {
  for (const HeadDifference& each : difference.heads) {
    if (each.layer == layer && each.kind == kind && each.head == head) return each.distance;
  }
  ADD_FAILURE() << "no such head";
  return -1;
}

TEST(Diff, EqualArtifactsAreEqual) {
  const Codebook a = finished(made::codebook());
  const CodebookDifference difference = diff_codebooks(a, finished(made::codebook()));
  EXPECT_TRUE(difference.equal && difference.same_decoding);
  EXPECT_THAT(difference.values, IsEmpty());
  EXPECT_THAT(difference.datasets, IsEmpty());
  for (const HeadDifference& head : difference.heads) EXPECT_EQ(head.distance, 0);
  EXPECT_EQ(diff_text(difference, 10, {}), "equal\n");
}

TEST(Diff, OtherTextWithTheSameConstantsDecodesTheSame) {
  Codebook b = made::codebook();
  b.provenance.seed = 8;
  b.key.stats.drift[3] = 0.3f;
  b.value.outlier_fraction[1] = 0.5f;
  const CodebookDifference difference = diff_codebooks(finished(made::codebook()), finished(b));
  EXPECT_FALSE(difference.equal);
  EXPECT_TRUE(difference.same_decoding);
  ASSERT_EQ(difference.values.size(), 1u);
  EXPECT_EQ(difference.values[0].name, "provenance.seed");
  EXPECT_EQ(difference.values[0].a, "7");
  EXPECT_EQ(difference.values[0].b, "8");
  EXPECT_THAT(difference.datasets, Contains(Field(&DatasetDifference::path, "/key/stats/drift")));
  EXPECT_EQ(distance_of(difference, 2, "key", 1), 0);
  EXPECT_THAT(diff_text(difference, 10, {}), HasSubstr("decode the same"));
}

TEST(Diff, OnlyTheHeadThatChangedHasADistance) {
  Codebook b = fitted();
  b.value.codebook[3 * 8 + 4] += 0.01f;  // layer 2, head 1
  b.key.threshold_upper[8] += 0.5f;      // layer 0, head 1
  const CodebookDifference difference = diff_codebooks(finished(fitted()), finished(b));
  EXPECT_FALSE(difference.same_decoding);
  for (const HeadDifference& head : difference.heads) {
    const bool changed = (head.layer == 2 && head.kind == std::string("value") && head.head == 1) ||
                         (head.layer == 0 && head.kind == std::string("key") && head.head == 1);
    EXPECT_EQ(head.distance > 0, changed) << head.layer << head.kind << head.head;
  }
  const auto document = diff_json(difference);
  EXPECT_EQ(document["value"]["different"], 1);
  EXPECT_EQ(document["datasets"][0]["path"], "/key/threshold_upper");
  EXPECT_EQ(document["datasets"][0]["what"], "1 of 48 values");
}

TEST(Diff, IsSymmetric) {
  Codebook b = fitted();
  for (float& level : b.key.codebook) level *= 0.9f;
  for (float& scale : b.key.scale) scale *= 1.1f;
  const Codebook first = finished(fitted()), second = finished(b);
  const double there = distance_of(diff_codebooks(first, second), 0, "key", 0);
  EXPECT_GT(there, 0.1);
  EXPECT_NEAR(there, distance_of(diff_codebooks(second, first), 0, "key", 0), 1e-9);
}

/// The definition, with elements drawn instead of a histogram's bins, and the reference codec.
TEST(Diff, DistanceIsTheDefinitionsOnDrawnElements) {
  Codebook a = made::codebook("kvcc-nuq3-1%-sink1", 1);
  Codebook b = a;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.4f);
  // Elements of head 0: y drawn, and the histogram that they have.
  std::vector<float> drawn(200000);
  std::vector<float> histogram(kNormalisedBins);
  for (float& y : drawn) {
    y = normal(random);
    histogram[static_cast<size_t>(normalised_bin(y))] += 1.0f / 200000;
  }
  std::copy(histogram.begin(), histogram.end(), a.key.stats.histogram.begin());
  // The same levels shifted by some, and other fractions of the range: small changes and large ones.
  for (int c = 0; c < 8; ++c) b.key.codebook[c] = std::clamp(a.key.codebook[c] * 0.93f + 0.01f, -1.0f, 1.0f);
  b.key.stats.histogram = a.key.stats.histogram;
  const auto quantiser = [](const Codebook& book) {
    return ChannelQuantiser{2,
                            8,
                            {2, 8, book.key.codebook, book.key.bits},
                            book.key.scale,
                            book.key.zero,
                            book.key.threshold_lower,
                            book.key.threshold_upper};
  };
  double between = 0, error = 0;
  for (size_t i = 0; i < drawn.size(); ++i) {
    std::vector<float> x(16), in_a(16), in_b(16);
    for (size_t c = 0; c < 8; ++c) x[c] = decode_element(drawn[i], a.key.scale[c], a.key.zero[c]);
    round_trip(quantiser(a), x, in_a);
    round_trip(quantiser(b), x, in_b);
    for (size_t c = 0; c < 8; ++c) {
      const double f = a.key.stats.fisher[c];
      between += f * (in_a[c] - in_b[c]) * (in_a[c] - in_b[c]);
      error += 0.5 * f * ((in_a[c] - x[c]) * (in_a[c] - x[c]) + (in_b[c] - x[c]) * (in_b[c] - x[c]));
    }
  }
  const double found = distance_of(diff_codebooks(finished(a), finished(b)), 0, "key", 0);
  EXPECT_NEAR(found, std::sqrt(between / error), 0.03 * found);
}

TEST(Diff, UnrelatedQuantisersAreAboutSqrt2Apart) {
  // Uniform levels of 5 bits, one set shifted by half a step.
  Codebook a = made::codebook("k=nuq5@prerope/channel,v=nuq5@token", 1), b = a;
  for (size_t i = 0; i < a.key.codebook.size(); ++i) {
    const int code = static_cast<int>(i % 32);
    a.key.codebook[i] = static_cast<float>(code) / 16 - 1;
    b.key.codebook[i] = std::min(1.0f, static_cast<float>(code) / 16 - 1 + 1.0f / 32);
  }
  a.key.stats.histogram.assign(a.key.stats.histogram.size(), 0.0f);
  for (size_t h = 0; h < 2; ++h) {
    for (int bin = 40; bin < 88; ++bin) a.key.stats.histogram[h * kNormalisedBins + bin] = 1.0f / 48;
  }
  b.key.stats.histogram = a.key.stats.histogram;
  // Half a step apart everywhere: (s/2)^2 over s^2/12 is 3.
  EXPECT_NEAR(distance_of(diff_codebooks(finished(a), finished(b)), 0, "key", 0), std::sqrt(3.0), 0.02);
}

TEST(Diff, WhatCannotBeComparedHasNoDistance) {
  const Codebook a = finished(made::codebook());
  const CodebookDifference geometry = diff_codebooks(a, finished(made::codebook("kvcc-nuq3-1%-sink1", 2)));
  EXPECT_THAT(geometry.heads, IsEmpty());
  EXPECT_THAT(geometry.no_heads, HasSubstr("geometries"));
  const CodebookDifference axis =
      diff_codebooks(a, finished(made::codebook("k=int3@prerope/token,v=nuq3@token,sparse=1%,sink=1")));
  EXPECT_TRUE(std::isnan(distance_of(axis, 0, "key", 0)));
  EXPECT_EQ(distance_of(axis, 0, "value", 0), 0);
  EXPECT_TRUE(diff_json(axis)["heads"][0]["distance"].is_null());
  EXPECT_THAT(diff_text(axis, 10, {}), HasSubstr("per token in the other"));
  // Other widths can be compared.
  const CodebookDifference bits = diff_codebooks(a, finished(made::codebook("kvcc-nuq2-1%-sink1")));
  EXPECT_GT(distance_of(bits, 0, "key", 0), 0.1);
}

TEST(Diff, ArtifactsWithoutStatisticsAreComparedToo) {
  Codebook a = made::codebook(), b = made::codebook();
  a.key.stats = a.value.stats = {};
  b.key.stats = b.value.stats = {};
  b.key.codebook[2] += 0.05f;
  const CodebookDifference difference = diff_codebooks(finished(a), finished(b));
  EXPECT_GT(distance_of(difference, 0, "key", 0), 0);
  EXPECT_EQ(distance_of(difference, 0, "key", 1), 0);
}

}  // namespace
}  // namespace kvcc
