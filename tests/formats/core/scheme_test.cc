#include "formats/core/scheme.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

// After gtest: RapidCheck's generators of the scheme space.
#include <rapidcheck.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include "formats/core/error.h"

namespace kvcc {
namespace {

using ::testing::HasSubstr;

/// Any scheme that the grammar can say and kvcc accepts.
rc::Gen<Scheme> any_scheme() {
  return rc::gen::exec([] {
    const auto grid_bits = [](TensorScheme& tensor, bool nuq) {
      tensor.grid = nuq ? *rc::gen::element(Grid::integer, Grid::normal_float, Grid::nuq)
                        : *rc::gen::element(Grid::integer, Grid::normal_float);
      tensor.bits = tensor.grid == Grid::normal_float ? *rc::gen::inRange(2, 5) : *rc::gen::inRange(1, 9);
    };
    Scheme scheme;
    if (*rc::gen::inRange(0, 20) == 0) return scheme;  // fp
    const bool channel = *rc::gen::arbitrary<bool>();
    grid_bits(scheme.key, channel);
    scheme.key.axis = channel ? Axis::channel : Axis::token;
    scheme.key.site = channel ? Site::pre_rope : *rc::gen::element(Site::pre_rope, Site::post_rope);
    grid_bits(scheme.value, true);
    // Per-mille, percents, and fractions that no decimal percentage gives.
    switch (*rc::gen::inRange(0, 4)) {
      case 0:
        scheme.sparse = 0;
        break;
      case 1:
        scheme.sparse = *rc::gen::inRange(1, 50) / 100.0;
        break;
      case 2:
        scheme.sparse = *rc::gen::inRange(1, 500) / 1000.0;
        break;
      default:
        scheme.sparse = *rc::gen::inRange<int64_t>(1, int64_t{1} << 52) * 0x1p-53;
    }
    scheme.sink = *rc::gen::element(0, 1, 4, 128, 1 << 30);
    scheme.residual = *rc::gen::element(0, 1, 32, 128);
    scheme.codebook = *rc::gen::element(CodebookScope::layer, CodebookScope::head);
    scheme.weight = *rc::gen::element(FitWeight::none, FitWeight::f, FitWeight::fs2);
    scheme.first_in_thresholds = *rc::gen::arbitrary<bool>();
    scheme.first_in_kmeans = *rc::gen::arbitrary<bool>();
    return scheme;
  });
}

TEST(Scheme, TextRoundTrip) {
  const bool holds = rc::check("parse(to_string(s)) == s, parse(short_name(s)) == s", [] {
    const Scheme scheme = *any_scheme();
    RC_ASSERT(parse_scheme(to_string(scheme)) == scheme);
    RC_ASSERT(parse_scheme(short_name(scheme)) == scheme);
    RC_ASSERT(nlohmann::json::accept(scheme_json(scheme)));
  });
  EXPECT_TRUE(holds);
}

TEST(Scheme, EveryPresetParsesAndKeepsItsName) {
  for (const PresetInfo& preset : presets()) {
    EXPECT_EQ(short_name(parse_scheme(preset.example)), preset.example) << preset.pattern;
  }
  for (const char* name : {"int2", "int8-sink4", "nf3", "kvcc-nuq5", "kvcc-nuq2-0.5%-sink4", "kvquant-nuq2",
                           "kvquant-nuq3-1%", "int4-channel-prerope-1%-sink1", "nf2-channel-prerope"}) {
    EXPECT_EQ(short_name(parse_scheme(name)), name);
  }
}

TEST(Scheme, PresetsMeanWhatTheDesignSays) {
  const Scheme ours = parse_scheme("kvcc-nuq4-1%-sink1");
  EXPECT_EQ(to_string(ours),
            "k=nuq4@prerope/channel,v=nuq4@token,sparse=1%,sink=1,residual=0,codebook=head,weight=fs2,"
            "first-thresholds=out,first-kmeans=out");
  EXPECT_DOUBLE_EQ(ours.sparse, 0.01);
  const Scheme kvquant = parse_scheme("kvquant-nuq3-1%-sink1");
  EXPECT_EQ(kvquant.codebook, CodebookScope::layer);
  EXPECT_EQ(kvquant.weight, FitWeight::f);
  EXPECT_TRUE(kvquant.first_in_thresholds);
  EXPECT_FALSE(kvquant.first_in_kmeans);
  EXPECT_TRUE(parse_scheme("kvquant-nuq3-1%").first_in_kmeans) << "without a sink the first token has to be encoded";
  const Scheme online = parse_scheme("int4");
  EXPECT_EQ(online.key, (TensorScheme{Grid::integer, 4, Site::post_rope, Axis::token}));
  EXPECT_FALSE(online.needs_calibration());
  EXPECT_FALSE(parse_scheme("fp").needs_calibration());
  EXPECT_TRUE(parse_scheme("fp").is_full());
  EXPECT_TRUE(ours.needs_calibration());
  EXPECT_TRUE(parse_scheme("int4-channel-prerope").needs_calibration());
  EXPECT_EQ(parse_scheme("k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=1,codebook=head"),
            parse_scheme("kvcc-nuq3-1%-sink1"));
}

TEST(Scheme, JsonHoldsTheParts) {
  const auto json = nlohmann::json::parse(scheme_json(parse_scheme("kvcc-nuq3-1%-sink1")));
  EXPECT_EQ(json.at("k"), nlohmann::json::parse(R"({"grid":"nuq","bits":3,"site":"prerope","axis":"channel"})"));
  EXPECT_EQ(json.at("v"), nlohmann::json::parse(R"({"grid":"nuq","bits":3,"axis":"token"})"));
  EXPECT_EQ(json.at("sparse"), 0.01);
  EXPECT_EQ(json.at("sink"), 1);
  EXPECT_EQ(json.at("first-kmeans"), "out");
}

struct Refused {
  const char* text;
  const char* message;  ///< a part of it
};

void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.text; }  // the test's name in ctest

class RefusedScheme : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedScheme, NamesTheBadPart) {
  try {
    parse_scheme(GetParam().text);
    FAIL() << GetParam().text << " was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
    EXPECT_THAT(error.place(), HasSubstr(GetParam().text));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Catalogue, RefusedScheme,
    ::testing::Values(Refused{"", "unknown preset"}, Refused{"kvvc-nuq3-1%-sink1", "did you mean 'kvcc-nuq3-1%-sink1'"},
                      Refused{"kvcc-nuqq4", "did you mean 'kvcc-nuq4'"}, Refused{"inf4", "did you mean 'int4'"},
                      Refused{"int0", "0 bits"}, Refused{"int9", "9 bits"}, Refused{"kvcc-nuq6", "6 bits"},
                      Refused{"kvquant-nuq5", "5 bits"}, Refused{"nf5", "5 bits"}, Refused{"int4-1%", "no sparse part"},
                      Refused{"kvcc-nuq4-50%", "below 50%"}, Refused{"kvcc-nuq4--1%", "unknown part"},
                      Refused{"kvcc-nuq4-sink", "sink is ''"}, Refused{"kvcc-nuq4-sink1-sink2", "given twice"},
                      Refused{"kvcc-nuq4-1%-2%", "given twice"}, Refused{"kvcc-nuq4-sunk1", "unknown part 'sunk1'"},
                      Refused{"kivi-2", "not in this release"}, Refused{"kvarn-2", "not in this release"},
                      Refused{"turboquant-3", "not in this release"},
                      Refused{"k=nuq3@prerope/channel", "'v' is missing"}, Refused{"v=nuq3@token", "'k' is missing"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,k=nuq3@prerope/channel", "'k' is given twice"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,sink=1,sink=1", "'sink' is given twice"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,", "'' is not KEY=VALUE"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,snik=1", "did you mean 'sink'"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,sink=-1", "sink is '-1'"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,sink=1.5", "sink is '1.5'"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,residual=x", "residual is 'x'"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,sparse=60%", "below 50%"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,sparse=-1%", "below 50%"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,sparse=nan%", "sparse is 'nan%'"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,sparse=1", "write 1% for a percentage"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,codebook=heads", "did you mean 'head'"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,weight=fs", "one of none, f, fs2"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@token,first-kmeans=yes", "one of in, out"},
                      Refused{"k=nuq0@prerope/channel,v=nuq3@token", "1 to 8 bits"},
                      Refused{"k=nuq9@prerope/channel,v=nuq3@token", "1 to 8 bits"},
                      Refused{"k=nuq@prerope/channel,v=nuq3@token", "the width of k is ''"},
                      Refused{"k=nuq3x@prerope/channel,v=nuq3@token", "the width of k is '3x'"},
                      Refused{"k=ints3@prerope/channel,v=nuq3@token", "did you mean 'int'"},
                      Refused{"k=nuq3@channel,v=nuq3@token", "names no site"},
                      Refused{"k=nuq3,v=nuq3@token", "has no '@'"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@prerope/token", "names a site"},
                      Refused{"k=nuq3@prerop/channel,v=nuq3@token", "did you mean 'prerope'"},
                      Refused{"k=nuq3@postrope/channel,v=nuq3@token", "keys per channel after RoPE"},
                      Refused{"k=int4@postrope/channel,v=int4@token", "keys per channel after RoPE"},
                      Refused{"k=nuq3@prerope/token,v=nuq3@token", "nuq keys per token"},
                      Refused{"k=nuq3@prerope/channel,v=nuq3@channel", "values per channel"},
                      Refused{"k=nf1@prerope/channel,v=nuq3@token", "nf with 1 bits"},
                      Refused{"k=nuq3@prerope/channel,v=nf5@token", "nf with 5 bits"},
                      Refused{"k=fp,v=nuq3@token", "one of k and v is fp"},
                      Refused{"k=nuq3@prerope/channel,v=fp", "one of k and v"},
                      Refused{"k=fp,v=fp,sink=1", "fp with outliers, sinks"}));

TEST(Outliers, PerTailMatchesTheLinearInterpolationQuantile) {
  EXPECT_EQ(outliers_per_tail(0.01, 192), 1);
  EXPECT_EQ(outliers_per_tail(0.01, 4096), 21);
  EXPECT_EQ(outliers_per_tail(0.01, 201), 2) << "t (channels - 1) is whole: the quantile is the element itself";
  EXPECT_EQ(outliers_per_tail(0, 192), 0);
  EXPECT_EQ(outliers_per_tail(0.1, 2), 0) << "something has to remain";
  const bool holds = rc::check("as many as lie at or above the quantile", [] {
    const int channels = *rc::gen::inRange(3, 9000);
    const int per_mille = *rc::gen::inRange(1, 499);
    // Exact: the elements i of 0 … n-1 with i >= t (n - 1), t = 1 - per_mille / 2000.
    const int64_t position = (2000 - per_mille) * int64_t{channels - 1};
    const int64_t expected = channels - (position + 1999) / 2000;
    RC_ASSERT(outliers_per_tail(per_mille / 1000.0, channels) == expected);
    RC_ASSERT(2 * expected < channels);
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace kvcc
