#include "formats/store/codebook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <ctime>
#include <limits>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "tests/formats/store/made.h"

namespace kvcc {
namespace {

using made::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void expect_equal(const TensorCodebooks& a, const TensorCodebooks& b) {
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_EQ(std::memcmp(a.codebook.data(), b.codebook.data(), a.codebook.size() * sizeof(float)), 0);
  EXPECT_EQ(a.bits, b.bits);
  EXPECT_EQ(a.scale, b.scale);
  EXPECT_EQ(a.zero, b.zero);
  EXPECT_EQ(a.threshold_lower, b.threshold_lower);
  EXPECT_EQ(a.threshold_upper, b.threshold_upper);
  EXPECT_EQ(a.norm_scale, b.norm_scale);
  EXPECT_EQ(a.norm_offset, b.norm_offset);
  EXPECT_EQ(a.outlier_fraction, b.outlier_fraction);
  EXPECT_EQ(a.units, b.units);
  EXPECT_EQ(a.coordinates, b.coordinates);
  EXPECT_EQ(a.group_width, b.group_width);
  EXPECT_EQ(a.group_bits, b.group_bits);
  EXPECT_EQ(a.vectors, b.vectors);
  EXPECT_EQ(a.forward, b.forward);
  EXPECT_EQ(a.inverse, b.inverse);
  EXPECT_EQ(a.rotation_mean, b.rotation_mean);
  EXPECT_EQ(a.channel_order, b.channel_order);
  EXPECT_EQ(a.stats.predicted_fitted, b.stats.predicted_fitted);
  EXPECT_EQ(a.stats.predicted_held_out, b.stats.predicted_held_out);
  EXPECT_EQ(a.stats.energy, b.stats.energy);
  EXPECT_EQ(a.stats.min, b.stats.min);
  EXPECT_EQ(a.stats.max, b.stats.max);
  EXPECT_EQ(a.stats.mean, b.stats.mean);
  EXPECT_EQ(a.stats.variance, b.stats.variance);
  EXPECT_EQ(a.stats.fisher, b.stats.fisher);
  EXPECT_EQ(a.stats.weighted_sse, b.stats.weighted_sse);
  EXPECT_EQ(a.stats.sqnr_db, b.stats.sqnr_db);
  EXPECT_EQ(a.stats.first_token_share, b.stats.first_token_share);
  EXPECT_EQ(a.stats.fit_gap_bound, b.stats.fit_gap_bound);
  EXPECT_EQ(a.stats.distinct, b.stats.distinct);
  EXPECT_EQ(a.stats.histogram, b.stats.histogram);
  EXPECT_EQ(a.stats.code_use, b.stats.code_use);
  EXPECT_EQ(a.stats.held_out_outliers, b.stats.held_out_outliers);
  EXPECT_EQ(a.stats.drift, b.stats.drift);
  EXPECT_EQ(a.stats.sample_share, b.stats.sample_share);
  EXPECT_EQ(a.stats.token_share, b.stats.token_share);
  EXPECT_EQ(a.stats.heaviest_sample, b.stats.heaviest_sample);
  EXPECT_EQ(a.stats.token_sample, b.stats.token_sample);
  EXPECT_EQ(a.stats.token_position, b.stats.token_position);
  EXPECT_EQ(a.stats.reached, b.stats.reached);
}

class RoundTrip : public ::testing::TestWithParam<const char*> {};

TEST_P(RoundTrip, KeepsEveryField) {
  const TemporaryFolder folder;
  Codebook written = made::codebook(GetParam());
  written.provenance.date = "2026-11-29";
  written.provenance.samples_asked = 20;
  written.provenance.quantised_weights = sha256_hex("weights file");
  write_codebook(folder / "a.kvcb", written);
  const Codebook read = read_codebook(folder / "a.kvcb");
  EXPECT_EQ(read.format_version, written.scheme.is_vector() ? "1.5" : written.scheme.is_extended() ? "1.3" : "1.2");
  EXPECT_EQ(read.scheme, written.scheme);
  EXPECT_EQ(read.content_sha256, written.content_sha256);
  EXPECT_EQ(read.content_sha256.size(), 64u);
  EXPECT_EQ(read.layer_index, written.layer_index);
  EXPECT_EQ(read.model.name, written.model.name);
  EXPECT_EQ(read.model.architecture, written.model.architecture);
  EXPECT_EQ(read.model.weights_sha256, written.model.weights_sha256);
  EXPECT_EQ(read.model.shape, written.model.shape);
  EXPECT_EQ(read.model.rope, written.model.rope);
  EXPECT_EQ(read.model.qk_norm, written.model.qk_norm);
  EXPECT_EQ(read.model.sliding_window_layers, written.model.sliding_window_layers);
  EXPECT_EQ(read.model.dtype, written.model.dtype);
  EXPECT_EQ(read.provenance.tool_version, written.provenance.tool_version);
  EXPECT_EQ(read.provenance.dataset_name, written.provenance.dataset_name);
  EXPECT_EQ(read.provenance.dataset_sha256, written.provenance.dataset_sha256);
  EXPECT_EQ(read.provenance.dataset_flavour, written.provenance.dataset_flavour);
  EXPECT_EQ(read.provenance.tokenizer_sha256, written.provenance.tokenizer_sha256);
  EXPECT_EQ(read.provenance.bos, written.provenance.bos);
  EXPECT_EQ(read.provenance.samples, written.provenance.samples);
  EXPECT_EQ(read.provenance.seqlen, written.provenance.seqlen);
  EXPECT_EQ(read.provenance.seed, written.provenance.seed);
  EXPECT_EQ(read.provenance.tokens, written.provenance.tokens);
  EXPECT_EQ(read.provenance.samples_asked, 20);
  EXPECT_EQ(read.provenance.quantised_weights, sha256_hex("weights file"));
  EXPECT_EQ(read.provenance.held_out, written.provenance.held_out);
  EXPECT_EQ(read.provenance.activations_sha256, written.provenance.activations_sha256);
  EXPECT_EQ(read.provenance.date, written.provenance.date);
  EXPECT_TRUE(read.extras.empty());
  expect_equal(read.key, written.key);
  expect_equal(read.value, written.value);
  EXPECT_THAT(validate_codebook(folder / "a.kvcb"), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Schemes, RoundTrip,
                         ::testing::Values("kvcc-nuq3-1%-sink1", "kvcc-nuq4", "kvquant-nuq2-1%", "int4-channel-prerope",
                                           "kvquant-nuq2-1%-cap-qnorm-sink1", "kvcc-2", "kvcc-1.5-head",
                                           "kvcc-3-channels-sink4", "k=int4@postrope/token,v=nuq2@token,sparse=1%"));

TEST(Codebook, F41EqualContentGivesEqualBytes) {
  const TemporaryFolder folder;
  Codebook first = made::codebook(), second = made::codebook();
  write_codebook(folder / "a.kvcb", first);
  write_codebook(folder / "другой.kvcb", second);
  EXPECT_EQ(read_text_file(folder / "a.kvcb"), read_text_file(folder / "другой.kvcb"));
  second.key.zero[5] += 1;
  write_codebook(folder / "c.kvcb", second);
  EXPECT_NE(first.content_sha256, second.content_sha256);
}

TEST(Codebook, LeavesNothingBesideItsName) {
  const TemporaryFolder folder;
  Codebook codebook = made::codebook();
  write_codebook(folder / "a.kvcb", codebook);
  codebook.key.scale[3] = -1;
  try {
    write_codebook(folder / "b.kvcb", codebook);
    FAIL() << "a negative scale was written";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/key/scale"));
    EXPECT_EQ(error.kind(), ErrorKind::failed);
  }
  size_t files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 1u);
}

TEST(Codebook, F32ConstantChannelWithTheLeastScaleIsSound) {
  const TemporaryFolder folder;
  Codebook codebook = made::codebook();
  codebook.key.scale[4] = 1.17549435e-38f;
  codebook.key.zero[4] = codebook.key.threshold_lower[4] = codebook.key.threshold_upper[4] = 0.7f;
  codebook.key.stats.min[4] = codebook.key.stats.max[4] = 0.7f;
  codebook.key.stats.sqnr_db[0] = std::numeric_limits<float>::infinity();
  write_codebook(folder / "a.kvcb", codebook);
  EXPECT_EQ(read_codebook(folder / "a.kvcb").key.scale[4], 1.17549435e-38f);
}

TEST(Codebook, F50LayersKeepTheirOrder) {
  const TemporaryFolder folder;
  Codebook codebook = made::codebook("kvcc-nuq2-1%", 130);
  write_codebook(folder / "a.kvcb", codebook);
  const Codebook read = read_codebook(folder / "a.kvcb");
  EXPECT_EQ(read.layer_index[100], 200);
  EXPECT_EQ(read.key.scale, codebook.key.scale);
}

TEST(Codebook, UnknownDatasetsAndAttributesAreKeptOnRewrite) {
  const TemporaryFolder folder;
  Codebook codebook = made::codebook();
  TreeObject unknown;
  unknown.dataset = true;
  unknown.value = array_value<float>(Element::f32, {2, 2}, {1, 2, 3, 4});
  unknown.attributes["axes"] = text_value("a,b");
  codebook.extras["/future/thing"] = unknown;
  codebook.extras["/model"].attributes["colour"] = text_value("blue");
  codebook.extras["/key/scale"].dataset = true;
  codebook.extras["/key/scale"].attributes["note"] = integer_value(5);
  codebook.format_version = "1.7";
  write_codebook(folder / "a.kvcb", codebook);
  Codebook read = read_codebook(folder / "a.kvcb");
  EXPECT_EQ(read.format_version, "1.7");
  EXPECT_EQ(read.extras.at("/future/thing"), unknown);
  EXPECT_EQ(read.extras.at("/model").attributes.at("colour"), text_value("blue"));
  write_codebook(folder / "b.kvcb", read);
  EXPECT_EQ(read_text_file(folder / "a.kvcb"), read_text_file(folder / "b.kvcb"));
}

TEST(Codebook, ReadsAThirtyLayerArtifactInMilliseconds) {
  const TemporaryFolder folder;
  Codebook codebook = made::codebook("kvcc-nuq4-1%-sink1", 30);
  write_codebook(folder / "a.kvcb", codebook);
  const std::clock_t start = std::clock();  // processor time: other work on the machine must not fail the test
  read_codebook(folder / "a.kvcb");
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 0.1);
}

}  // namespace
}  // namespace kvcc
