#include "calib/report/codebook_report.h"
#include "calib/report/vector_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "formats/core/error.h"
#include "tests/formats/store/made.h"

namespace kvcc {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

/// Of layer number 2 (the second), head 1, key: element (1 * 2 + 1) of [L, H], channels 24 to 31 of [L, H, D].
const HeadReport& key_head(const std::vector<HeadReport>& heads) { return heads.at(4 + 1); }

TEST(Report, RowsHoldTheArtifactsNumbers) {
  const Codebook codebook = made::codebook();
  const std::vector<HeadReport> heads = report_data(codebook).heads;
  ASSERT_EQ(heads.size(), 3u * 2 * 2);
  const HeadReport& head = key_head(heads);
  EXPECT_EQ(head.layer, 2);
  EXPECT_STREQ(head.kind, "key");
  EXPECT_EQ(head.head, 1);
  EXPECT_EQ(head.bits, 3);
  EXPECT_EQ(head.codebook, std::vector<float>(codebook.key.codebook.begin() + 24, codebook.key.codebook.begin() + 32));
  EXPECT_EQ(head.range_min, codebook.key.stats.min[24]);
  EXPECT_EQ(head.range_max, codebook.key.stats.max[31]);
  EXPECT_EQ(head.outlier_fraction, codebook.key.outlier_fraction[3]);
  EXPECT_EQ(head.sqnr_db, codebook.key.stats.sqnr_db[3]);
  EXPECT_EQ(head.weighted_sse, codebook.key.stats.weighted_sse[3]);
  double fisher = 0;
  for (int c = 24; c < 32; ++c) fisher += codebook.key.stats.fisher[static_cast<size_t>(c)];
  EXPECT_DOUBLE_EQ(head.fisher_mass, fisher * 32768);
  for (const HeadReport& each : heads) EXPECT_THAT(each.flags, IsEmpty());
}

TEST(Report, NotesOfARefinementAreShownAsFarAsTheyAreOnes) {
  Codebook codebook = made::codebook();
  EXPECT_TRUE(refinement_json(codebook).is_null());
  EXPECT_EQ(refinement_text(codebook), "");
  codebook.extras["/refinement"].attributes = {{"artifact_sha256", text_value("0123456789abcdef")},
                                               {"steps", text_value("many")},
                                               {"windows", integer_value(12)},
                                               {"seqlen", array_value(Element::i64, {2}, std::vector<int64_t>{1, 2})},
                                               {"kl_before", float_value(0.25)},
                                               {"kl_after", float_value(std::nan(""))},
                                               {"other", integer_value(1)}};
  const nlohmann::ordered_json noted = refinement_json(codebook);
  EXPECT_EQ(noted.dump(), R"({"artifact_sha256":"0123456789abcdef","windows":12,"steps":"many","kl_before":0.25,)"
                          R"("kl_after":null})");
  EXPECT_EQ(refinement_text(codebook),
            "from 0123456789ab by many steps on -: 12 windows of - tokens; KL on - more -, before 0.25000");
}

TEST(Report, F32F40F37FlagsNameWhatDeservesALook) {
  Codebook codebook = made::codebook("kvcc-nuq3-1%");  // the first token is not kept exactly
  codebook.key.stats.min[25] = codebook.key.stats.max[25];
  codebook.key.stats.mean[26] = 700;  // a bias like Qwen2's, with variance about 1
  codebook.key.stats.first_token_share[3] = 0.9f;
  codebook.key.stats.distinct[3] = 5;
  codebook.key.stats.reached[3] = 300;  // of 32,768 tokens
  for (int c = 24; c < 32; ++c) codebook.key.stats.fisher[static_cast<size_t>(c)] = 0;
  const std::vector<HeadReport> heads = report_data(codebook).heads;
  EXPECT_THAT(key_head(heads).flags,
              ElementsAre("no-fisher", "thin", "constant-channels", "offset", "first-token", "few-levels"));
  EXPECT_EQ(key_head(heads).constant_channels, 1);
  const std::map<int, LayerSums> sums = layer_sums(heads);
  EXPECT_EQ(sums.at(2).flagged, 1);
  EXPECT_EQ(sums.at(0).flagged, 0);
}

TEST(Report, MissingStatisticsAreNotInvented) {
  Codebook codebook = made::codebook();
  codebook.key.stats = {};
  codebook.value.stats.sqnr_db[0] = std::numeric_limits<float>::infinity();
  const std::vector<HeadReport> heads = report_data(codebook).heads;
  EXPECT_TRUE(std::isnan(heads[0].sqnr_db));
  EXPECT_TRUE(std::isnan(layer_sums(heads).at(0).kinds[0].sqnr_db));
  const auto document = codebook_json(report_data(codebook), heads);
  EXPECT_TRUE(document["layers"][0]["key"][0]["sqnr_db"].is_null());
  EXPECT_TRUE(document["layers"][0]["key"][0]["distinct"].is_null());
  EXPECT_TRUE(document["layers"][0]["value"][0]["sqnr_db"].is_null());
  EXPECT_FALSE(document["layers"][0]["value"][1]["sqnr_db"].is_null());
}

TEST(Report, SortPutsUnknownLastEitherWay) {
  Codebook codebook = made::codebook();
  codebook.key.stats.sqnr_db.clear();
  for (const char* sort : {"sqnr_db", "-sqnr_db"}) {
    HeadFilter filter;
    filter.sort = sort;
    const auto heads = select_heads(report_data(codebook).heads, filter);
    ASSERT_EQ(heads.size(), 12u);
    for (size_t i = 0; i < heads.size(); ++i) EXPECT_EQ(std::isnan(heads[i].sqnr_db), i >= 6) << sort << i;
    for (size_t i = 1; i < 6; ++i) {
      EXPECT_TRUE(sort[0] == '-' ? heads[i - 1].sqnr_db <= heads[i].sqnr_db : heads[i - 1].sqnr_db >= heads[i].sqnr_db);
    }
  }
}

TEST(Report, FiltersNameWhatIsNotThere) {
  const Codebook codebook = made::codebook();
  HeadFilter filter;
  filter.layer = 1;
  EXPECT_THROW(select_heads(report_data(codebook).heads, filter), Error);
  filter.layer = 4;
  filter.head = 1;
  EXPECT_THAT(select_heads(report_data(codebook).heads, filter), SizeIs(2));
  filter.kind = "value";
  filter.top = 5;
  EXPECT_THAT(select_heads(report_data(codebook).heads, filter), SizeIs(1));
}

}  // namespace
}  // namespace kvcc
