#include "codegen/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

std::string refusal(const Artifact& artifact, ErrorKind kind) {
  try {
    plan(artifact, {});
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
  EXPECT_THAT(names_of(p), ElementsAre("pack_key_nuq3_channel_d64_csr_f16__linear1",   //
                                       "pack_value_nuq3_token_d64_tail_f16__linear1",  //
                                       "key_scores_nuq3_channel_d64_csr_half64_g3_f16__linear1",
                                       "value_mix_nuq3_token_d64_tail_g3_f16__linear1",
                                       "dequantise_key_nuq3_channel_d64_csr_f32__linear1",
                                       "dequantise_value_nuq3_token_d64_tail_f32__linear1"));
  EXPECT_TRUE(p.skipped.empty());
  for (const KernelSpec& spec : p.kernels) {
    EXPECT_EQ(spec.symbol, "kvcc_" + spec.name);
    EXPECT_EQ(spec.tail, of_keys(spec.configuration.family) ? 0 : 1);  // 192 channels at 1 %
    EXPECT_EQ(spec.levels, of_keys(spec.configuration.family) ? artifact.key.levels : artifact.value.levels);
  }
}

TEST(Plan, WidthsDimensionsAndGroupsOfKeysAndValuesAreTheirOwn) {
  Artifact artifact = made::kernel_artifact("k=nuq4@prerope/channel,v=int2@token,sparse=0%,sink=0", 2, 2, 16, 128, 64);
  artifact.rope.kind = "interleaved";
  artifact.rope.rotary_dim = 32;
  const Plan p = plan(artifact, {{}, Dtype::bf16});
  EXPECT_THAT(names_of(p), ElementsAre("pack_key_nuq4_channel_d128_none_bf16__linear1",  //
                                       "pack_value_int2_token_d64_none_bf16__linear1",   //
                                       "key_scores_nuq4_channel_d128_none_interleaved32_g8_bf16__linear1",
                                       "value_mix_int2_token_d64_none_g8_bf16__linear1",
                                       "dequantise_key_nuq4_channel_d128_none_f32__linear1",
                                       "dequantise_value_int2_token_d64_none_f32__linear1"));
}

TEST(Plan, PostRopeKeysAreNotTurned) {
  const Plan p = plan(made::kernel_artifact("k=int4@postrope/token,v=int4@token", 2, 2, 2, 64, 64), {});
  EXPECT_THAT(names_of(p), testing::Contains("key_scores_int4_token_d64_none_norope_g2_f16__linear1"));
}

TEST(Plan, MixedWidthsGiveAUnitAWidth) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.key.bits = {3, 2, 2, 3};
  const Plan p = plan(artifact, {});
  ASSERT_EQ(p.kernels.size(), 9u);
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

TEST(Plan, FullPrecisionTensorsAreSkippedByName) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.scheme.key = TensorScheme{};  // the text form has no such scheme, but others may write one
  const Plan p = plan(artifact, {});
  EXPECT_EQ(p.kernels.size(), 3u);
  ASSERT_EQ(p.skipped.size(), 3u);
  EXPECT_EQ(p.skipped[0].family, Family::pack_key);
  EXPECT_EQ(p.skipped[0].reason, "keys stay at full precision");
}

TEST(Plan, RefusalsNameWhatIsMissing) {
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
