#include "formats/core/scheme.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

// After gtest: RapidCheck's generators of the scheme space.
#include <rapidcheck.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include "formats/core/effective_bits.h"
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
    if (!channel && *rc::gen::inRange(0, 3) == 0) {  // on-line, with further dimensions
      scheme.sparse = 0;
      scheme.key = {};
      scheme.key.grid = Grid::integer;
      scheme.key.bits = *rc::gen::inRange(2, 8);
      scheme.key.site = Site::post_rope;
      scheme.key.axis = *rc::gen::element(Axis::token_group, Axis::channel_group);
      scheme.key.group = *rc::gen::element(1, 32, 128);
      scheme.key.rotation =
          *rc::gen::element(Rotation::none, Rotation::hadamard, Rotation::hadamard_64, Rotation::random);
      scheme.value = scheme.key;
      scheme.value.site = Site::pre_rope;
      scheme.value.axis = Axis::token_group;
      scheme.value.group = *rc::gen::element(0, 64);
      scheme.value.rounding = *rc::gen::element(Rounding::ends, Rounding::zero, Rounding::zero_inside,
                                                Rounding::zero_clamped, Rounding::symmetric, Rounding::inverse);
      scheme.value.clip = *rc::gen::inRange(1, 1001) / 1000.0;
      if (scheme.key.axis == Axis::channel_group) {
        switch (*rc::gen::inRange(0, 4)) {
          case 0:
            scheme.key.norm = Norm::token;
            break;
          case 1:
            scheme.key.norm = *rc::gen::element(Norm::varn, Norm::varn_rms);
            scheme.key.group = scheme.key.tile = *rc::gen::element(2, 64);
            scheme.key.iterations = *rc::gen::inRange(1, 65);
            scheme.key.half_scales = *rc::gen::arbitrary<bool>();
            break;
          case 2:
            scheme.key.wide = *rc::gen::inRange(1, 1000) / 1000.0;
            scheme.key.wide_bits = *rc::gen::element(8, 16);
            break;
          default:
            break;
        }
      }
    }
    scheme.sink = *rc::gen::element(0, 1, 4, 128, 1 << 30);
    scheme.residual = *rc::gen::element(0, 1, 32, 128);
    scheme.codebook = *rc::gen::element(CodebookScope::layer, CodebookScope::head);
    scheme.weight = *rc::gen::element(FitWeight::none, FitWeight::f, FitWeight::fs2);
    scheme.first_in_thresholds = *rc::gen::arbitrary<bool>();
    scheme.first_in_kmeans = *rc::gen::arbitrary<bool>();
    scheme.capped = channel && scheme.sparse > 0 && *rc::gen::arbitrary<bool>();
    scheme.qnorm = scheme.key.grid == Grid::nuq && scheme.value.grid == Grid::nuq && *rc::gen::arbitrary<bool>();
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
  for (const char* name :
       {"int2", "int8-sink4", "nf3", "kvcc-nuq5", "kvcc-nuq2-0.5%-sink4", "kvquant-nuq2", "kvquant-nuq3-1%",
        "kvquant-nuq3-5%-sink1", "kvquant-nuq2-1%-cap-qnorm-sink1", "kvquant-nuq2-qnorm-fs2-head",
        "kvcc-nuq3-1%-cap-f-layer-sink5", "int4-channel-prerope-1%-sink1", "nf2-channel-prerope"}) {
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

TEST(Scheme, VectorPresetsAndTheirText) {
  const Scheme two = parse_scheme("kvcc-2");
  EXPECT_EQ(
      to_string(two),
      "k=vq10@prerope/tensor,v=vq10@tensor,sparse=0%,sink=1,residual=0,codebook=head,weight=f,first-thresholds=out,"
      "first-kmeans=out,budget=2.05,k-rotate=fklt-layer,v-rotate=fklt-layer");
  EXPECT_EQ(scheme_json(two).substr(scheme_json(two).find("first-kmeans")), R"(first-kmeans":"out","budget":2.05})");
  EXPECT_TRUE(two.is_vector() && two.needs_calibration() && two.is_extended());
  EXPECT_FALSE(two.key.is_plain());
  for (const char* name : {"kvcc-1", "kvcc-1.5", "kvcc-2", "kvcc-2.5", "kvcc-3", "kvcc-4"}) {
    for (const char* form : {"", "-predict", "-head", "-channels", "-sink0", "-head-sink4", "-predict-sink4",
                             "-head-predict", "-head-predict-sink0"}) {
      const std::string text = std::string(name) + form;
      EXPECT_EQ(short_name(parse_scheme(text)), text);
      EXPECT_EQ(parse_scheme(to_string(parse_scheme(text))), parse_scheme(text));
      EXPECT_EQ(preset_of(parse_scheme(text))->example, "kvcc-2");
    }
  }
  EXPECT_EQ(parse_scheme("kvcc-2-head").key.rotation, Rotation::fklt_head);
  EXPECT_EQ(to_string(parse_scheme("kvcc-2-predict")), to_string(two) + ",v-predict=key");
  EXPECT_THAT(scheme_json(parse_scheme("kvcc-2-predict")),
              ::testing::HasSubstr(R"("rotate":"fklt-layer","predict":"key"})"));
  EXPECT_EQ(parse_scheme(to_string(two) + ",v-predict=none"), two);
  EXPECT_EQ(parse_scheme("kvcc-2-channels").key.width, 4);
  EXPECT_EQ(parse_scheme("kvcc-3-channels").key.width, 2);
  EXPECT_EQ(nominal_bits(two), 2.05);
}

TEST(Scheme, RefusesVectorsThatMeanNothing) {
  const std::string good = "k=vq10@prerope/tensor,v=vq8@tensor,weight=f,budget=1.5,k-rotate=fklt-head,v-width=2";
  EXPECT_EQ(parse_scheme(good).value.bits, 8);
  EXPECT_EQ(parse_scheme(good + ",k-width=auto"), parse_scheme(good));
  for (const char* bad :
       {"k=vq10@prerope/tensor,v=vq10@tensor,weight=f,k-width=4,v-width=4",                          // no budget
        "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,k-width=4,budget=2",                           // no width
        "k=vq10@prerope/tensor,v=int4@token,weight=f,k-width=4,budget=2",                            // one of them
        "k=vq10@postrope/tensor,v=vq10@tensor,weight=f,k-width=4,v-width=4,budget=2",                // after RoPE
        "k=vq10@prerope/channel,v=vq10@tensor,weight=f,k-width=4,v-width=4,budget=2",                // scaled
        "k=vq13@prerope/tensor,v=vq10@tensor,weight=f,k-width=4,v-width=4,budget=2",                 // 13 bits
        "k=vq10@prerope/tensor,v=vq10@tensor,k-width=4,v-width=4,budget=2",                          // fs2
        "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,k-width=3,v-width=4,budget=2",                 // 3 coordinates
        "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,k-width=4,v-width=4,budget=17",                // more than fp16
        "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,k-width=4,v-width=4,budget=0",                 //
        "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,k-width=4,v-width=4,budget=2,codebook=layer",  //
        "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,k-width=4,v-width=4,budget=2,sparse=1%",       //
        "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,k-rotate=hadamard,v-width=4,budget=2",         //
        "k=int4@postrope/token,v=int4@token,k-rotate=fklt-head",
        "k=int4@postrope/token,v=int4@token,k-width=2",
        "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,budget=2,k-rotate=fklt-layer,v-rotate=fklt-layer,k-predict=key",
        "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,budget=2,k-rotate=fklt-layer,v-rotate=fklt-layer,v-predict=yes",
        "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,budget=2,k-rotate=fklt-head,v-rotate=fklt-layer,v-predict=key",
        "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,budget=2,k-width=4,v-width=4,v-predict=key",
        "k=int4@postrope/token,v=int4@token,v-predict=key",
        "kvcc-nuq4-budget",
        "k=int4@postrope/token,v=int4@token,budget=4",
        "kvcc-2-layer",
        "kvcc-5"}) {
    EXPECT_THROW(parse_scheme(bad), Error) << bad;
  }
  const std::string open = "k=vq10@prerope/tensor,v=vq10@tensor,weight=f,k-width=4,v-width=4,budget=";
  EXPECT_EQ(parse_scheme(to_string(parse_scheme(open + "0.01"))), parse_scheme(open + "0.01"));
  EXPECT_THROW(parse_scheme(open + "0.00001"), Error);  // to_string() would print 1e-05, which is none
}

TEST(Scheme, KvQuantsVariantsAreItsPresetsOptions) {
  const Scheme plain = parse_scheme("kvquant-nuq2-1%-sink1"),
               all = parse_scheme("kvquant-nuq2-1%-cap-qnorm-fs2-head-sink1");
  EXPECT_FALSE(plain.capped || plain.qnorm || plain.is_extended());
  EXPECT_TRUE(all.capped && all.qnorm && all.is_extended());
  EXPECT_EQ(all.weight, FitWeight::fs2);
  EXPECT_EQ(all.codebook, CodebookScope::head);
  EXPECT_TRUE(all.first_in_thresholds) << "still the release's";
  EXPECT_EQ(to_string(all).substr(to_string(all).find("first-kmeans")), "first-kmeans=out,cap=token,qnorm=on");
  EXPECT_EQ(nlohmann::json::parse(scheme_json(all)).at("qnorm"), "on");
  EXPECT_FALSE(nlohmann::json::parse(scheme_json(plain)).contains("cap")) << "older artifacts stay as they are";
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
    ::testing::Values(
        Refused{"", "unknown preset"}, Refused{"kvvc-nuq3-1%-sink1", "did you mean 'kvcc-nuq3-1%-sink1'"},
        Refused{"kvcc-nuqq4", "did you mean 'kvcc-nuq4'"}, Refused{"inf4", "did you mean 'int4'"},
        Refused{"int0", "0 bits"}, Refused{"int9", "9 bits"}, Refused{"kvcc-nuq6", "6 bits"},
        Refused{"kvquant-nuq5", "5 bits"}, Refused{"nf5", "5 bits"}, Refused{"int4-1%", "no sparse part"},
        Refused{"kvcc-nuq4-50%", "below 50%"}, Refused{"kvcc-nuq4--1%", "unknown part"},
        Refused{"kvcc-nuq4-sink", "sink is ''"}, Refused{"kvcc-nuq4-sink1-sink2", "given twice"},
        Refused{"kvcc-nuq4-1%-2%", "given twice"}, Refused{"kvquant-nuq3-cap", "cap=token without outliers"},
        Refused{"kvquant-nuq3-1%-cap-cap", "cap is given twice"},
        Refused{"int4-channel-prerope-1%-cap", "unknown part 'cap'"},
        Refused{"k=int3@prerope/channel,v=nuq3@token,qnorm=on", "qnorm=on with levels"},
        Refused{"k=nuq3@prerope/channel,v=nuq3@token,qnorm=yes", "one of on, off"},
        Refused{"k=nuq3@prerope/channel,v=nuq3@token,cap=layer", "one of token, none"},
        Refused{"kvcc-nuq4-sunk1", "unknown part 'sunk1'"}, Refused{"sinq-4", "not in this release"},
        Refused{"kivi-3", "did you mean 'kivi-"}, Refused{"kivi", "did you mean 'kivi-"},
        Refused{"kvarn-2-rmz", "unknown part 'rmz'"}, Refused{"kvarn-2-g64-g32", "g is given twice"},
        Refused{"kvarn-2-rms-rms", "rms is given twice"}, Refused{"turboquant-3-g64", "unknown part 'g64'"},
        Refused{"kitty-1%", "unknown part '1%'"}, Refused{"kvarn-2-g0", "is '0'"}, Refused{"kvarn-2-it99", "is '99'"},
        Refused{"atom-4-gx", "unknown part 'gx'"}, Refused{"turboqant-3", "did you mean 'turboquant-3'"},
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
        Refused{"k=nuq3@channel,v=nuq3@token", "names no site"}, Refused{"k=nuq3,v=nuq3@token", "has no '@'"},
        Refused{"k=nuq3@prerope/channel,v=nuq3@prerope/token", "names a site"},
        Refused{"k=nuq3@prerop/channel,v=nuq3@token", "did you mean 'prerope'"},
        Refused{"k=nuq3@postrope/channel,v=nuq3@token", "keys per channel after RoPE"},
        Refused{"k=int4@postrope/channel,v=int4@token", "keys per channel after RoPE"},
        Refused{"k=nuq3@prerope/token,v=nuq3@token", "nuq keys per token"},
        Refused{"k=nuq3@prerope/channel,v=nuq3@channel", "values per channel"},
        Refused{"k=nf1@prerope/channel,v=nuq3@token", "nf with 1 bits"},
        Refused{"k=nuq3@prerope/channel,v=nf5@token", "nf with 5 bits"},
        Refused{"k=fp,v=nuq3@token", "one of k and v is fp"}, Refused{"k=nuq3@prerope/channel,v=fp", "one of k and v"},
        Refused{"k=fp,v=fp,sink=1", "fp with outliers, sinks"}));

#define KVCC_ONLINE "k=int2@postrope/channel:32,v=int2@token:32"
INSTANTIATE_TEST_SUITE_P(
    Dimensions, RefusedScheme,
    ::testing::Values(
        Refused{"k=int2@postrope/channel:0,v=int2@token:32", "the group of k is '0'"},
        Refused{"k=int2@postrope/channel:32,v=int2@token:half", "the group of v is 'half'"},
        Refused{"k=int2@postrope/channel:head,v=int2@token:32", "the group of k is 'head'"},
        Refused{"k=fp8@postrope/tensor:4,v=fp8@tensor", "groups of a tensor"},
        Refused{"k=fp7@postrope/tensor,v=fp8@tensor", "fp with 7 bits"},
        Refused{"k=fp8@postrope/token,v=fp8@tensor", "fp8 with a scale"},
        Refused{"k=int8@postrope/tensor,v=fp8@tensor", "k has no scale"},
        Refused{"k=nuq3@postrope/channel:32,v=int2@token:32", "k is nuq in groups"},
        Refused{"k=nf3@postrope/channel:32,v=int2@token:32", "k is nf in groups"},
        Refused{"k=nuq3@prerope/channel,v=int2@token:32", "one of k and v is calibrated"},
        Refused{KVCC_ONLINE ",sparse=1%", "outliers with groups"},
        Refused{KVCC_ONLINE ",k-rotat=hadamard", "did you mean 'k-rotate'"},
        Refused{KVCC_ONLINE ",k-rotate=hadamart", "did you mean 'hadamard'"},
        Refused{"k-rotate=hadamard," KVCC_ONLINE, "'k-rotate' comes before 'k'"},
        Refused{KVCC_ONLINE ",k-norm=varn:32", "the iterations of k-norm is ''"},
        Refused{KVCC_ONLINE ",k-norm=varn8", "varnN:G"},
        Refused{KVCC_ONLINE ",k-norm=varn0:32", "iterations of k-norm"},
        Refused{KVCC_ONLINE ",k-norm=varn8:64", "another range than one a tile's row"},
        Refused{KVCC_ONLINE ",v-norm=varn8:32", "another range than one a tile's row"},
        Refused{KVCC_ONLINE ",k-norm=head", "k-norm with this grid"},
        Refused{KVCC_ONLINE ",k-norm=token8", "iterations of varn"},
        Refused{"k=int4@postrope/token,v=int4@token,k-norm=token", "k-norm=token with this grid"},
        Refused{KVCC_ONLINE ",k-round=up", "one of ends"}, Refused{KVCC_ONLINE ",k-round=ggml", "k-round=ggml"},
        Refused{"k=int1@postrope/token:32,v=int2@token:32,k-round=symmetric", "symmetric with 1 bit"},
        Refused{"k=nf4@postrope/token,v=nf4@token,k-round=zero", "k-round with this grid"},
        Refused{KVCC_ONLINE ",k-clip=0", "k-clip is '0'"}, Refused{KVCC_ONLINE ",k-clip=1.5", "at most 1"},
        Refused{"k=nf4@postrope/token,v=nf4@token,k-clip=0.9", "k-clip with this grid"},
        Refused{KVCC_ONLINE ",k-wide=12.5%", "SHARE:BITS"},
        Refused{KVCC_ONLINE ",k-wide=12.5%:2", "k-wide with 2 bits"},
        Refused{KVCC_ONLINE ",k-wide=12.5%:12", "k-wide with 12 bits"},
        Refused{KVCC_ONLINE ",k-wide=120%:4", "below 100%"},
        Refused{KVCC_ONLINE ",v-wide=10%:4", "v-wide with this grid"},
        Refused{KVCC_ONLINE ",k-wide=0%:4", "a share above 0"},
        Refused{KVCC_ONLINE ",k-wide=10%:4,k-round=zero", "k-wide with k-round"},
        Refused{KVCC_ONLINE ",k-scales=fp8", "k-scales with this grid"},
        Refused{KVCC_ONLINE ",k-sketch=1", "k-sketch with this grid"}, Refused{KVCC_ONLINE ",k-sketch=9", "0 to 8"},
        Refused{"k=lloyd3@postrope/token:head,v=int2@token:32", "lloyd without a norm"},
        Refused{"k=lloyd3@postrope/token:head,v=int2@token:32,k-norm=head", "lloyd without a rotation"},
        Refused{"k=lloyd6@postrope/token:head,v=int2@token:32", "lloyd with 6 bits"},
        Refused{"k=lloyd3@postrope/token:64,v=int2@token:32", "lloyd not per head"},
        Refused{"k=polar4@prerope/channel:128,v=int2@token:32", "k is polar"},
        Refused{"k=int2@postrope/channel:128,v=polar4@token:32", "v is polar"},
        Refused{"k=angles4@postrope/token:16,v=int2@token:32", "k is angles"},
        Refused{"k=sign1@postrope/channel:32,v=int2@token:32", "k is sign"},
        Refused{"k=int2@postrope/channel:32,v=int2@channel", "values per channel"}));

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
