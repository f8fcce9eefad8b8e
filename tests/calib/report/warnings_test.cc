// Each warning with a case that raises it and one that does not.
#include "calib/report/warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "tests/formats/store/made.h"

namespace kvcc {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

/// Element 3 of [L, H] is head 1 of layer 2; its channels are 24 to 31 of [L, H, D].
constexpr size_t kHead = 3, kFirstChannel = 24, kChannels = 8;

struct Case {
  std::string name;
  std::string scheme;  ///< of an artifact without any warning
  std::function<void(Codebook&)> raise;
  std::function<void(Codebook&)> almost;  ///< to just before it is raised
  std::string cause;                      ///< part of the warning's
};

void set_fisher(Codebook& c, float value) {
  for (size_t i = kFirstChannel; i < kFirstChannel + kChannels; ++i) c.key.stats.fisher[i] = value;
}

void set_mean(Codebook& c, float deviations) {
  c.key.stats.mean[26] = deviations * std::sqrt(c.key.stats.variance[26]);
}

const std::vector<Case>& cases() {
  static const std::string kScheme = "kvcc-nuq3-1%-sink1";
  static const std::vector<Case> all = {
      {"no-fisher", kScheme, [](Codebook& c) { set_fisher(c, 0); },
       [](Codebook& c) {
         set_fisher(c, 0);
         c.key.stats.fisher[kFirstChannel] = 1e-8f;
       },
       "the Fisher mass is 0"},
      {"little-fisher", kScheme, [](Codebook& c) { set_fisher(c, 1e-13f); }, [](Codebook& c) { set_fisher(c, 1e-11f); },
       "of the median key head's"},
      {"thin", kScheme, [](Codebook& c) { c.key.stats.reached[kHead] = 327; },
       [](Codebook& c) { c.key.stats.reached[kHead] = 328; }, "gradients at 327 of 32768 tokens"},
      {"constant-channels", kScheme, [](Codebook& c) { c.key.stats.min[25] = c.key.stats.max[25]; },
       [](Codebook& c) { c.key.stats.min[25] = std::nextafter(c.key.stats.max[25], -1.0f); }, "1 of 8 channels"},
      {"offset", kScheme, [](Codebook& c) { set_mean(c, -65); }, [](Codebook& c) { set_mean(c, -60); },
       "65.0 standard deviations"},
      {"offset", "k=int3@prerope/token,v=nuq3@token,sparse=1%,sink=1", [](Codebook& c) { set_mean(c, -8.5f); },
       [](Codebook& c) { set_mean(c, -7.5f); }, "8.5 standard deviations"},
      {"first-token", "kvcc-nuq3-1%", [](Codebook& c) { c.key.stats.first_token_share[kHead] = 0.9f; },
       [](Codebook& c) { c.key.stats.first_token_share[kHead] = 0.49f; }, "90 % of the Fisher mass"},
      {"one-token", kScheme, [](Codebook& c) { c.key.stats.token_share[kHead] = 0.8f; },
       [](Codebook& c) { c.key.stats.token_share[kHead] = 0.49f; }, "token 35 of sample 4 carries 80 %"},
      {"one-sample", kScheme, [](Codebook& c) { c.key.stats.sample_share[kHead] = 0.6f; },
       [](Codebook& c) { c.key.stats.sample_share[kHead] = 0.5f; }, "sample 3 of 16 carries 60 %"},
      {"held-out-outliers", kScheme, [](Codebook& c) { c.key.stats.held_out_outliers[kHead] = 0.021f; },
       [](Codebook& c) { c.key.stats.held_out_outliers[kHead] = 0.019f; },
       "2.10 % outliers on held-out text, 1 % asked"},
      {"few-levels", kScheme, [](Codebook& c) { c.key.stats.distinct[kHead] = 5; },
       [](Codebook& c) { c.key.stats.distinct[kHead] = 8; }, "5 different levels for 8 codes"},
      {"unused-codes", kScheme, [](Codebook& c) { c.key.stats.code_use[kHead * 8 + 2] = 0; },
       [](Codebook& c) { c.key.stats.code_use[kHead * 8 + 2] = 1e-9f; }, "1 of 8 levels are never used"},
      {"drift", kScheme, [](Codebook& c) { c.key.stats.drift[kHead] = 0.6f; },
       [](Codebook& c) { c.key.stats.drift[kHead] = 0.4f; }, "0.60 standard deviations"},
      {"thin-data", kScheme, [](Codebook& c) { c.provenance.samples_asked = 20; },
       [](Codebook& c) { c.provenance.samples_asked = 16; }, "16 samples of 2048 tokens, 20 asked for"},
      {"few-tokens", kScheme, [](Codebook& c) { c.provenance.tokens = 1000; },
       [](Codebook& c) { c.provenance.tokens = 1600; }, "5.0 of a channel lie beyond each threshold"},
      {"tokens-flavour", kScheme, [](Codebook& c) { c.provenance.dataset_flavour = "tokens"; },
       [](Codebook& c) { c.provenance.dataset_flavour = "raw"; }, "<unk>"},
      {"tokens-flavour", kScheme, [](Codebook& c) { c.provenance.sources_json = R"([{"text_flavour":"tokens"}])"; },
       [](Codebook& c) { c.provenance.sources_json = R"([{"text_flavour":"raw"}])"; }, "<unk>"},
  };
  return all;
}

std::vector<std::string> names(const std::vector<Warning>& warnings) {
  std::vector<std::string> out;
  for (const Warning& warning : warnings) out.push_back(warning.name);
  return out;
}

class EachWarning : public ::testing::TestWithParam<size_t> {};

TEST_P(EachWarning, IsRaisedWithCauseAndCureAndOnlyThen) {
  const Case& the = cases()[GetParam()];
  ASSERT_THAT(report_data(made::codebook(the.scheme)).warnings, IsEmpty());
  Codebook almost = made::codebook(the.scheme), raised = almost;
  the.almost(almost);
  EXPECT_THAT(names(report_data(almost).warnings), Not(Contains(the.name)));
  the.raise(raised);
  const ReportData data = report_data(raised);
  ASSERT_THAT(names(data.warnings), Contains(the.name));
  const Warning& warning = *std::find_if(data.warnings.begin(), data.warnings.end(),
                                         [&](const Warning& found) { return found.name == the.name; });
  EXPECT_THAT(warning.cause, HasSubstr(the.cause));
  EXPECT_FALSE(warning.cure.empty());
  if (warning.heads.empty()) {
    EXPECT_EQ(warning.where, "calibration text");
    return;
  }
  EXPECT_EQ(warning.where, "layer 2 key head 1");
  EXPECT_THAT(warning.heads, SizeIs(1));
  EXPECT_THAT(data.heads[warning.heads[0]].flags, Contains(the.name));
}

INSTANTIATE_TEST_SUITE_P(All, EachWarning, ::testing::Range<size_t>(0, cases().size()),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(Warnings, EachHasACaseAndAMeaning) {
  std::map<std::string, int> tried;
  for (const Case& each : cases()) ++tried[each.name];
  for (const char* name : warning_names()) {
    EXPECT_EQ(tried.count(name), 1u) << name;
    EXPECT_FALSE(warning_meaning(name).empty()) << name;
  }
  EXPECT_EQ(tried.size(), warning_names().size());
  EXPECT_EQ(warning_meaning("nonsense"), "");
}

TEST(Warnings, TheWorstHeadComesFirst) {
  Codebook codebook = made::codebook();
  codebook.key.stats.drift[0] = 0.7f;
  codebook.value.stats.drift[5] = 1.5f;
  codebook.key.stats.drift[2] = 0.9f;
  const ReportData data = report_data(codebook);
  ASSERT_THAT(data.warnings, SizeIs(1));
  EXPECT_EQ(data.warnings[0].where, "layer 4 value head 1 and 2 more");
  ASSERT_THAT(data.warnings[0].heads, SizeIs(3));
  EXPECT_EQ(data.heads[data.warnings[0].heads[2]].layer, 0);
}

TEST(Warnings, WhatTheSchemeTakesCareOfIsNone) {
  // The first token: kept exactly and left out of the fit. Fisher: not used by uniform levels.
  for (const char* scheme : {"kvcc-nuq3-1%-sink1", "int4-channel-prerope"}) {
    Codebook codebook = made::codebook(scheme);
    std::fill(codebook.key.stats.fisher.begin(), codebook.key.stats.fisher.end(), 0.0f);
    codebook.key.stats.first_token_share.assign(6, 0.9f);
    const auto found = names(report_data(codebook).warnings);
    EXPECT_EQ(std::count(found.begin(), found.end(), "no-fisher"), codebook.scheme.key.grid == Grid::nuq);
    EXPECT_EQ(std::count(found.begin(), found.end(), "first-token"), codebook.scheme.sink == 0);
  }
}

TEST(Warnings, WithoutStatisticsThereAreNone) {
  Codebook codebook = made::codebook();
  codebook.key.stats = {};
  codebook.value.stats = {};
  EXPECT_THAT(report_data(codebook).warnings, IsEmpty());
}

}  // namespace
}  // namespace kvcc
