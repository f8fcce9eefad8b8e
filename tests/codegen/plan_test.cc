#include "codegen/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "formats/core/error.h"
#include "tests/codegen/made.h"

namespace kvcc::codegen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names_of(const Plan& plan) {
  std::vector<std::string> names;
  for (const KernelSpec& spec : plan.kernels) names.push_back(spec.name);
  return names;
}

Targets linear(Dtype dtype = Dtype::f16) { return {{}, dtype, Layout::linear, {}}; }

std::string refusal(const Artifact& artifact, ErrorKind kind, const Targets& targets = {}) {
  try {
    plan(artifact, targets);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "planned";
}

// SmolLM2: 9 query heads over 3 key/value heads.
TEST(F64_Plan, OneUnitAFamilyOfSmolLM2) {
  const Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 30, 3, 3, 64, 64);
  const Plan p = plan(artifact, {});
  EXPECT_EQ(p.layout, Layout::mma);
  EXPECT_EQ(p.layout_reason, "");
  EXPECT_THAT(names_of(p),
              ElementsAre("pack_key_nuq3_channel_d64_csr_f16__mma1", "pack_value_nuq3_token_d64_tail_f16__mma1",
                          "attention_nuq3_channel_d64_csr_half64_v_nuq3_token_d64_tail_g8_f16__mma1",
                          "key_scores_nuq3_channel_d64_csr_half64_g8_f16__mma1",
                          "value_mix_nuq3_token_d64_tail_g8_f16__mma1", "dequantise_key_nuq3_channel_d64_csr_f32__mma1",
                          "dequantise_value_nuq3_token_d64_tail_f32__mma1", "copy_pages__any"));
  EXPECT_TRUE(p.skipped.empty());
  for (const KernelSpec& spec : p.kernels) {
    EXPECT_EQ(spec.symbol, "kvcc_" + spec.name);
    if (spec.configuration.family == Family::copy_pages) continue;
    EXPECT_EQ(spec.tail, of_keys(spec.configuration.family) ? 0 : 1);
    EXPECT_EQ(spec.levels, of_keys(spec.configuration.family) ? artifact.key.levels : artifact.value.levels);
  }
  EXPECT_EQ(p.kernels[2].value.tail, 1);
  EXPECT_EQ(p.kernels[2].value.levels, artifact.value.levels);
}

TEST(F64_Plan, OneUnitAFamilyOfSmolLM2InLinearOne) {
  const Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 30, 3, 3, 64, 64);
  const Plan p = plan(artifact, linear());
  EXPECT_THAT(names_of(p), ElementsAre("pack_key_nuq3_channel_d64_csr_f16__linear1",   //
                                       "pack_value_nuq3_token_d64_tail_f16__linear1",  //
                                       "key_scores_nuq3_channel_d64_csr_half64_g3_f16__linear1",
                                       "value_mix_nuq3_token_d64_tail_g3_f16__linear1",
                                       "dequantise_key_nuq3_channel_d64_csr_f32__linear1",
                                       "dequantise_value_nuq3_token_d64_tail_f32__linear1", "copy_pages__any"));
  EXPECT_TRUE(p.skipped.empty());
  for (const KernelSpec& spec : p.kernels) {
    if (spec.configuration.family == Family::copy_pages) continue;
    EXPECT_EQ(spec.symbol, "kvcc_" + spec.name);
    EXPECT_EQ(spec.tail, of_keys(spec.configuration.family) ? 0 : 1);  // 192 channels at 1 %
    EXPECT_EQ(spec.levels, of_keys(spec.configuration.family) ? artifact.key.levels : artifact.value.levels);
  }
}

TEST(Plan, WidthsDimensionsAndGroupsOfKeysAndValuesAreTheirOwn) {
  Artifact artifact = made::kernel_artifact("k=nuq4@prerope/channel,v=int2@token,sparse=0%,sink=0", 2, 2, 16, 128, 64);
  artifact.rope.kind = "interleaved";
  artifact.rope.rotary_dim = 32;
  const Plan p = plan(artifact, linear(Dtype::bf16));
  EXPECT_THAT(names_of(p), ElementsAre("pack_key_nuq4_channel_d128_none_bf16__linear1",  //
                                       "pack_value_int2_token_d64_none_bf16__linear1",   //
                                       "key_scores_nuq4_channel_d128_none_interleaved32_g8_bf16__linear1",
                                       "value_mix_int2_token_d64_none_g8_bf16__linear1",
                                       "dequantise_key_nuq4_channel_d128_none_f32__linear1",
                                       "dequantise_value_int2_token_d64_none_f32__linear1", "copy_pages__any"));
  const Plan mma = plan(artifact, {{}, Dtype::bf16, {}, {}});
  EXPECT_EQ(mma.layout, Layout::mma);
  EXPECT_THAT(names_of(mma), testing::Contains("key_scores_nuq4_channel_d128_none_interleaved32_g16_bf16__mma1"));
  ASSERT_EQ(mma.skipped.size(), 1u);
  EXPECT_EQ(mma.skipped[0].family, Family::attention);
  EXPECT_THAT(mma.skipped[0].reason, HasSubstr("head dimensions of keys and values differ (128 and 64)"));
}

TEST(Plan, PostRopeKeysAreNotTurned) {
  const Plan p = plan(made::kernel_artifact("k=int4@postrope/token,v=int4@token", 2, 2, 2, 64, 64), linear());
  EXPECT_THAT(names_of(p), testing::Contains("key_scores_int4_token_d64_none_norope_g2_f16__linear1"));
}

TEST(Plan, MixedWidthsGiveAUnitAWidth) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.key.bits = {3, 2, 2, 3};
  const Plan p = plan(artifact, linear());
  ASSERT_EQ(p.kernels.size(), 10u);
  const KernelSpec& two = p.kernels[0];
  EXPECT_EQ(two.name, "pack_key_nuq2mixed_channel_d64_csr_f16__linear1");
  EXPECT_EQ(p.kernels[1].name, "pack_key_nuq3mixed_channel_d64_csr_f16__linear1");
  EXPECT_EQ(two.bits, artifact.key.bits);
  ASSERT_EQ(two.levels.size(), 4u * 4u);
  for (int row = 0; row < 4; ++row) {
    for (int j = 0; j < 4; ++j) {
      EXPECT_EQ(two.levels[row * 4 + j], artifact.key.bits[row] == 2 ? artifact.key.levels[row * 8 + j] : 0.0f);
    }
  }
}

TEST(Plan, AttentionOfMixedWidthsHasAUnitAPairOfWidths) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.key.bits = {3, 2, 2, 3};
  artifact.value.bits = {3, 3, 2, 3};
  Targets targets;
  targets.families = {Family::attention};
  const Plan p = plan(artifact, targets);
  const char *key = "attention_nuq", *middle = "mixed_channel_d64_csr_half64_v_nuq",
             *end = "mixed_token_d64_tail_g8_f16__mma1";
  const auto unit = [&](int k, int v) { return key + std::to_string(k) + middle + std::to_string(v) + end; };
  EXPECT_THAT(names_of(p), ElementsAre(unit(2, 2), unit(2, 3), unit(3, 3)));  // no head has 3 and 2
  EXPECT_EQ(p.kernels[1].bits, artifact.key.bits);
  EXPECT_EQ(p.kernels[1].value.bits, artifact.value.bits);
  artifact.value.bits = {3, 3, 3, 3};
  const Plan uniform = plan(artifact, targets);
  ASSERT_EQ(uniform.kernels.size(), 2u);
  EXPECT_EQ(uniform.kernels[0].name, "attention_nuq2mixed_channel_d64_csr_half64_v_nuq3_token_d64_tail_g8_f16__mma1");
  EXPECT_TRUE(uniform.kernels[0].value.bits.empty());
}

TEST(Plan, WhatMmaDoesNotHaveFallsBackWithItsReason) {
  const auto made = [](const char* scheme, int dim, int rotary) {
    Artifact artifact = made::kernel_artifact(scheme, 2, 2, 3, dim, dim);
    artifact.rope.rotary_dim = rotary;
    return artifact;
  };
  const auto reason = [](const Artifact& artifact, const Targets& targets = {}) {
    const Plan p = plan(artifact, targets);
    EXPECT_EQ(p.layout, Layout::linear);
    EXPECT_EQ(p.kernels.size(), 7u);
    return p.layout_reason;
  };
  const Artifact five = made("kvcc-nuq5-1%-sink1", 64, 64);
  EXPECT_EQ(reason(five), "mma-1 has no 5 bits (it has 2, 3, 4, 8); has no values of 5 bits (it has 2, 3, 4, 8)");
  EXPECT_THAT(refusal(five, ErrorKind::usage, {{}, Dtype::f16, Layout::mma, {}}),
              HasSubstr("layout mma-1: has no 5 bits"));
  EXPECT_THAT(refusal(five, ErrorKind::usage, {{}, Dtype::f16, {}, {Family::attention}}), HasSubstr("has no 5 bits"));
  EXPECT_THAT(reason(made("kvcc-nuq3-1%-sink1", 32, 32)), HasSubstr("head dimension 32"));
  EXPECT_THAT(reason(made("kvcc-nuq3-1%-sink1", 64, 24)), HasSubstr("24 channels of 64 (it takes a multiple of 16)"));
  const Artifact good = made("kvcc-nuq3-1%-sink1", 64, 64);
  EXPECT_THAT(reason(good, {{}, Dtype::f32, {}, {}}), HasSubstr("dtype f32"));
  EXPECT_THAT(reason(good, {{"sm_75", "sm_80"}, Dtype::f16, {}, {}}), HasSubstr("sm_80 and later (sm_75)"));
  EXPECT_EQ(plan(good, {{"sm_80", "sm_120a"}, Dtype::f16, {}, {}}).layout, Layout::mma);
}

TEST(Plan, LinearIsAdvisedOnlyWhereItServes) {
  const auto mma_of = [](int dim, std::vector<Family> families) {
    return refusal(made::kernel_artifact("kvcc-nuq3-1%-sink1", 1, 2, 1, dim, dim), ErrorKind::usage,
                   {{}, Dtype::f16, Layout::mma, std::move(families)});
  };
  EXPECT_THAT(mma_of(32, {}), HasSubstr("(use --layout linear-1)"));
  EXPECT_THAT(mma_of(32, {Family::attention, Family::pack_key}),
              HasSubstr("(leave attention out and use --layout linear-1)"));
  EXPECT_THAT(mma_of(32, {Family::attention}), testing::Not(HasSubstr("linear-1")));
  EXPECT_THAT(mma_of(72, {}), testing::Not(HasSubstr("linear-1")));
}

TEST(Plan, KeysThatFp16CannotHoldAreRefusedByChannel) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  const size_t at = (1 * 2 + 0) * 64 + 17;
  const float most = *std::max_element(artifact.key.levels.begin() + 16, artifact.key.levels.begin() + 24,
                                       [](float a, float b) { return std::abs(a) < std::abs(b); });
  artifact.key.scale[at] = 46000.0f / std::abs(most);  // below the limit for turned keys
  artifact.key.zero[at] = 0.0f;
  ASSERT_LT(artifact.key.scale[at], 65504.0f * 1.5f);
  const auto outcome = [&] { return plan(artifact, {}).layout_reason; };
  artifact.key.scale[at] = std::min(artifact.key.scale[at], 46000.0f);
  EXPECT_EQ(outcome(), "");
  artifact.key.zero[at] = std::copysign(46400.0f, most);
  EXPECT_THAT(outcome(), HasSubstr("keys within 46318 in fp16 (layer 1, head 0, channel 17 reaches"));
  EXPECT_THAT(refusal(artifact, ErrorKind::usage, {{}, Dtype::f16, Layout::mma, {}}), HasSubstr("channel 17"));
  // Kernels that write f32 do not mind, and neither does linear-1.
  EXPECT_EQ(plan(artifact, {{}, Dtype::f16, {}, {Family::dequantise_key, Family::pack_key}}).layout, Layout::mma);
  EXPECT_EQ(plan(artifact, linear()).layout_reason, "");
  artifact.key.scale.pop_back();
  EXPECT_THAT(refusal(artifact, ErrorKind::bad_input), HasSubstr("255 scales, 256 zeros"));
}

TEST(Plan, FamiliesCanBeChosen) {
  const Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  EXPECT_THAT(parse_families("copy_pages,pack_key,copy_pages"), ElementsAre(Family::pack_key, Family::copy_pages));
  EXPECT_THROW(parse_families("pack"), Error);
  EXPECT_THROW(parse_families(""), Error);
  const Plan p = plan(artifact, {{}, Dtype::f16, Layout::linear, parse_families("value_mix,copy_pages")});
  EXPECT_THAT(names_of(p), ElementsAre("value_mix_nuq3_token_d64_tail_g3_f16__linear1", "copy_pages__any"));
  EXPECT_THAT(refusal(artifact, ErrorKind::usage, {{}, Dtype::f16, Layout::linear, {Family::attention}}),
              HasSubstr("layout mma-1 has it"));
}

TEST(Plan, FullPrecisionTensorsAreSkippedByName) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.scheme.key = TensorScheme{};  // the text form has no such scheme, but others may write one
  const Plan p = plan(artifact, {});
  EXPECT_EQ(p.kernels.size(), 4u);
  ASSERT_EQ(p.skipped.size(), 4u);
  EXPECT_EQ(p.skipped[0].family, Family::pack_key);
  EXPECT_EQ(p.skipped[0].reason, "keys stay at full precision");
  EXPECT_EQ(p.skipped[1].family, Family::attention);
  artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.scheme.value = TensorScheme{};
  EXPECT_EQ(plan(artifact, {}).skipped[1].reason, "values stay at full precision");
}

TEST(Plan, VectorCodebooksHaveALayoutOfTheirOwn) {
  const Artifact artifact = made::kernel_artifact("kvcc-2-head", 2, 2, 3, 64, 128);
  EXPECT_TRUE(artifact.key_vectors.transform && artifact.value_vectors.transform);
  const Plan p = plan(artifact, {});
  EXPECT_EQ(p.layout, Layout::vector);
  EXPECT_EQ(p.layout_reason, "");
  EXPECT_THAT(names_of(p),
              ElementsAre("pack_key_vq_head_d64_f16__vector1", "pack_value_vq_head_d128_f16__vector1",
                          "key_scores_vq_head_d64_s4_b48_t4_half64_g8_f16__vector1",
                          "value_mix_vq_head_d128_g3_f16__vector1", "dequantise_key_vq_head_d64_f32__vector1",
                          "dequantise_value_vq_head_d128_f32__vector1", "copy_pages__any"));
  ASSERT_EQ(p.skipped.size(), 1u);
  EXPECT_THAT(p.skipped[0].reason, HasSubstr("head dimensions of keys and values differ (64 and 128)"));
  const Plan chosen = plan(artifact, {{"sm_75"}, Dtype::bf16, Layout::vector, {Family::key_scores}});
  EXPECT_THAT(names_of(chosen), ElementsAre("key_scores_vq_head_d64_half64_g3_bf16__vector1"));
  EXPECT_THAT(chosen.layout_reason, HasSubstr("on tensor cores it needs the tensor cores of sm_80 and later (sm_75)"));
  const Plan old = plan(artifact, {{"sm_75"}, Dtype::f16, {}, {}});
  ASSERT_EQ(old.skipped.size(), 1u);
  EXPECT_EQ(old.skipped[0].family, Family::attention);
  const Plan channels = plan(made::kernel_artifact("kvcc-2-channels", 1, 1, 9, 64, 64), {});
  EXPECT_THAT(names_of(channels), testing::Contains("key_scores_vq_channels_d64_s3_b32_t4_half64_g16_f16__vector1"));
  EXPECT_THAT(names_of(channels),
              testing::Contains("attention_vq_channels_d64_s3_b32_t4_half64_v_vq_channels_d64_s4_b32_t4_g16_f16__"
                                "vector1"));
  const Plan wide = plan(made::kernel_artifact("kvcc-2-head", 1, 2, 3, 256, 256), {});
  EXPECT_THAT(names_of(wide), testing::Contains("key_scores_vq_head_d256_half256_g3_f16__vector1"));
  EXPECT_THAT(wide.layout_reason, HasSubstr("key_scores is scalar: on tensor cores it has no"));
}

TEST(Plan, WhatVectorCodebooksDoNotHaveIsRefused) {
  const Artifact artifact = made::kernel_artifact("kvcc-2-head", 2, 2, 3, 64, 64);
  EXPECT_THAT(refusal(artifact, ErrorKind::usage, {{}, Dtype::f16, Layout::mma, {}}),
              HasSubstr("mma-1 for vector codebooks"));
  EXPECT_THAT(refusal(artifact, ErrorKind::usage, {{"sm_75"}, Dtype::f16, {}, {Family::attention}}),
              HasSubstr("nothing to compile of the families asked for"));
  Artifact predicted = artifact;  // as one KV head can be: no kernel adds what its keys predict
  predicted.scheme.value.predicted = true;
  EXPECT_THAT(refusal(predicted, ErrorKind::usage), HasSubstr("values that are predicted from keys"));
  Targets cpu;
  cpu.cpu = true;
  EXPECT_THAT(refusal(artifact, ErrorKind::usage, cpu), HasSubstr("are built into the runtime"));
  EXPECT_THAT(refusal(made::kernel_artifact("kvcc-2-head", 1, 2, 3, 48, 48), ErrorKind::usage),
              HasSubstr("layout vector-1 has no head dimension 48"));
  EXPECT_THAT(refusal(made::kernel_artifact("kvcc-nuq3-1%-sink1", 1, 2, 3, 64, 64), ErrorKind::usage,
                      {{}, Dtype::f16, Layout::vector, {}}),
              HasSubstr("vector-1 for a scheme of scalar levels"));
  try {  // across the heads of a layer
    made::kernel_artifact("kvcc-2", 1, 2, 3, 64, 64);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("tiny-3, vector codebooks: a transform across the heads"),
                                             HasSubstr("kvcc-2-head")));
  }
}

TEST(Plan, OneLayerThatNeedsATransformGivesAllLayersOne) {
  Codebook book = made::kernel_codebook("kvcc-2-head", 2, 2, 3, 64, 64);
  std::fill_n(book.key.inverse.begin(), 2 * 64 * 64, 0.0f);
  for (size_t i = 0; i < 2 * 64; ++i) book.key.inverse[i * 64 + i % 64] = 0.5f;
  const Artifact artifact = describe(book, "tiny-3");
  EXPECT_TRUE(artifact.key_vectors.transform);
  for (const auto& places : artifact.key_vectors.places) EXPECT_GE(places[KVCC_VECTOR_INVERSE], 0);
}

TEST(Plan, RefusalsNameWhatIsMissing) {
  EXPECT_THAT(refusal(made::kernel_artifact("kvcc-nuq3-1%-cap-qnorm-sink1", 2, 2, 3, 64, 64), ErrorKind::usage),
              HasSubstr("without cap and qnorm"));
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.scheme = parse_scheme("fp");
  EXPECT_THAT(refusal(artifact, ErrorKind::usage), HasSubstr("scheme fp leaves keys and values at full precision"));
  EXPECT_THAT(refusal(made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 72, 72), ErrorKind::usage),
              HasSubstr("head dimension 72"));
  artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.rope.kind = "spiral";
  EXPECT_THAT(refusal(artifact, ErrorKind::usage), HasSubstr("\"spiral\""));
  artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.key.levels.pop_back();
  EXPECT_THAT(refusal(artifact, ErrorKind::bad_input), HasSubstr("31 levels"));
  artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.key.levels[13] = NAN;
  EXPECT_THAT(refusal(artifact, ErrorKind::bad_input), HasSubstr("layer 0, head 1, level 5 is not finite"));
  artifact.key.bits[1] = 2;  // beyond 2^bits it is padding
  EXPECT_EQ(refusal(artifact, ErrorKind::bad_input), "planned");
  artifact.key.bits[1] = 4;
  EXPECT_THAT(refusal(artifact, ErrorKind::bad_input), HasSubstr("4 bits with 8 codes"));
}

}  // namespace
}  // namespace kvcc::codegen
