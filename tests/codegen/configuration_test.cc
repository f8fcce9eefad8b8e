// Names of kernels are a grammar: what is printed parses back, names are unique, and the lists say what exists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "codegen/plan/configuration.h"
#include "formats/core/error.h"

namespace kvcc::codegen {
namespace {

void choose_tensor(TensorConfiguration& t) {
  t.grid = *rc::gen::element(Grid::integer, Grid::normal_float, Grid::nuq, Grid::vector);
  if (t.grid == Grid::vector) {
    t.transform = *rc::gen::arbitrary<bool>();
    t.head_dim = *rc::gen::inRange(1, 513);
    if (*rc::gen::arbitrary<bool>()) return;
    t.steps = *rc::gen::inRange(1, 12);
    t.token_bits = *rc::gen::inRange(1, 513);
    t.table_kib = *rc::gen::inRange(1, 129);
    return;
  }
  t.bits = *rc::gen::inRange(1, 9);
  t.mixed = *rc::gen::arbitrary<bool>();
  t.axis = *rc::gen::element(Axis::channel, Axis::token);
  t.head_dim = *rc::gen::inRange(1, 513);
  t.sparse = *rc::gen::element(Sparse::none, Sparse::csr, Sparse::tail);
}

Configuration any_configuration() {
  Configuration c;
  c.family = *rc::gen::elementOf(families());
  if (c.family == Family::copy_pages) {
    c.layout = Layout::any;
    return c;
  }
  choose_tensor(c);
  if (c.family == Family::attention) choose_tensor(c.value);
  if (takes_rope(c.family)) {
    c.rope = *rc::gen::element(RopeKind::none, RopeKind::half, RopeKind::interleaved);
    if (c.rope != RopeKind::none) c.rotary_dim = *rc::gen::inRange(1, 513);
  }
  if (takes_group(c.family)) c.group_tile = *rc::gen::inRange(1, 17);
  c.dtype = *rc::gen::element(Dtype::f16, Dtype::bf16, Dtype::f32);
  c.layout = *rc::gen::element(Layout::linear, Layout::mma, Layout::vector);
  return c;
}

TEST(Names, ParseBack) {
  EXPECT_TRUE(rc::check("parse(name(c)) == c, and other configurations have other names", [] {
    const Configuration a = any_configuration(), b = any_configuration();
    RC_ASSERT(parse_configuration(name(a)) == a);
    RC_ASSERT((name(a) == name(b)) == (a == b));
  }));
}

TEST(Names, AreAsDocumented) {
  Configuration c;
  c.bits = 3;
  c.head_dim = 64;
  c.sparse = Sparse::csr;
  c.rope = RopeKind::half;
  c.rotary_dim = 64;
  c.group_tile = 3;
  EXPECT_EQ(name(c), "key_scores_nuq3_channel_d64_csr_half64_g3_f16__linear1");
  c.mixed = true;
  c.rope = RopeKind::none;
  c.rotary_dim = 0;
  EXPECT_EQ(name(c), "key_scores_nuq3mixed_channel_d64_csr_norope_g3_f16__linear1");
  c.mixed = false;
  c.family = Family::attention;
  c.rope = RopeKind::half;
  c.rotary_dim = 64;
  c.value = {Grid::nuq, 3, false, Axis::token, 64, Sparse::tail};
  c.group_tile = 8;
  c.layout = Layout::mma;
  EXPECT_EQ(name(c), "attention_nuq3_channel_d64_csr_half64_v_nuq3_token_d64_tail_g8_f16__mma1");
  c = {};
  c.family = Family::value_mix;
  c.grid = Grid::vector;
  c.transform = true;
  c.head_dim = 128;
  c.group_tile = 4;
  c.layout = Layout::vector;
  EXPECT_EQ(name(c), "value_mix_vq_head_d128_g4_f16__vector1");
  c.family = Family::pack_key;
  c.transform = false;
  EXPECT_EQ(name(c), "pack_key_vq_channels_d128_f16__vector1");
  c.family = Family::key_scores;
  c.steps = 8;
  c.token_bits = 256;
  c.table_kib = 32;
  c.group_tile = 8;
  EXPECT_EQ(name(c), "key_scores_vq_channels_d128_s8_b256_t32_norope_g8_f16__vector1");
  c = {};
  c.family = Family::copy_pages;
  c.layout = Layout::any;
  EXPECT_EQ(name(c), "copy_pages__any");
}

TEST(Names, WrongOnesAreRefusedWithThePart) {
  const auto message = [](const char* text) -> std::string {
    try {
      parse_configuration(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "parsed";
  };
  using testing::HasSubstr;
  EXPECT_THAT(message("key_score_nuq3"), HasSubstr("a family"));
  EXPECT_THAT(message("pack_key_nuq9_channel_d64_csr_f16__linear1"), HasSubstr("\"9_channel"));
  EXPECT_THAT(message("pack_key_nuq03_channel_d64_csr_f16__linear1"), HasSubstr("bits"));
  EXPECT_THAT(message("pack_key_nuq3_channel_d64_csr_f16__mma2"), HasSubstr("linear1, mma1 or vector1"));
  EXPECT_THAT(message("attention_nuq3_channel_d64_csr_half64_g8_f16__mma1"), HasSubstr("\"_v\""));
  EXPECT_THAT(message("pack_key_vq_layer_d64_f16__vector1"), HasSubstr("head or channels"));
  EXPECT_THAT(message("pack_key_vq_head_d64_csr_f16__vector1"), HasSubstr("f16, bf16 or f32"));
  EXPECT_THAT(message("copy_pages__mma1"), HasSubstr("\"__any\""));
  EXPECT_THAT(message("pack_key_nuq3_channel_d64_csr_f16__linear1x"), HasSubstr("nothing more"));
  EXPECT_THAT(message("pack_key_nuq3_channel_d64_csr_g3_f16__linear1"), HasSubstr("f16, bf16 or f32"));
  EXPECT_THAT(message("pack_key_nuq3_channel_d64"), HasSubstr("it ends"));
  EXPECT_THAT(message(""), HasSubstr("it ends"));
}

TEST(Lists, EveryListedConfigurationExistsAndNamesAreUnique) {
  std::set<std::string> names;
  size_t count = 0;
  for (const Family family : families_of(Layout::linear)) {
    if (family == Family::copy_pages) continue;
    for (const Configuration& c : listed(family, {1, 3, 8})) {
      ASSERT_EQ(missing(c), std::vector<std::string>{}) << name(c);
      names.insert(name(c));
      ++count;
    }
  }
  for (const Family family : families_of(Layout::vector)) {
    if (family == Family::copy_pages || family == Family::attention)
      continue;  // of tensor cores: any room there may be
    for (const Configuration& c : listed(family, {1, 3, 8}, Layout::vector)) {
      ASSERT_EQ(missing(c), std::vector<std::string>{}) << name(c);
      names.insert(name(c));
      ++count;
    }
  }
  EXPECT_EQ(names.size(), count);
  EXPECT_GT(count, 5500u);
}

TEST(Lists, WhatIsMissingIsNamed) {
  Configuration c;
  c.bits = 9;
  c.head_dim = 72;
  c.sparse = Sparse::tail;  // with scales per channel
  c.rope = RopeKind::half;
  c.rotary_dim = 80;
  c.group_tile = 9;
  const std::vector<std::string> reasons = missing(c);
  EXPECT_EQ(reasons.size(), 5u) << testing::PrintToString(reasons);
  EXPECT_THAT(reasons, testing::Contains(testing::HasSubstr("no head dimension 72 (it has 16, 32, 64")));
}

TEST(Lists, WhatLayoutVectorIsMissingIsNamed) {
  Configuration c;
  c.layout = Layout::vector;
  c.grid = Grid::vector;
  c.head_dim = 48;
  c.rope = RopeKind::half;
  c.rotary_dim = 49;
  c.group_tile = 9;
  EXPECT_THAT(missing(c), testing::UnorderedElementsAre(testing::HasSubstr("has no head dimension 48 (it has 16, 32"),
                                                        testing::HasSubstr("has no rotation of 49 channels of 48"),
                                                        testing::HasSubstr("has no tile of 9 query heads")));
  c.family = Family::attention;  // on tensor cores
  c.head_dim = c.value.head_dim = 64;
  c.value.grid = Grid::vector;
  c.rotary_dim = 24;
  c.group_tile = 8;
  c.steps = 4;
  c.value.steps = kMostSteps + 2;
  EXPECT_THAT(missing(c),
              testing::UnorderedElementsAre(testing::HasSubstr("has no values of 12 steps of 16 coordinates"),
                                            testing::HasSubstr("24 channels of 64 (it takes a multiple of 16)")));
}

TEST(Lists, WhatLayoutMmaIsMissingIsNamed) {
  Configuration c;
  c.layout = Layout::mma;
  c.family = Family::attention;
  c.bits = 3;
  c.head_dim = 64;
  c.rope = RopeKind::half;
  c.rotary_dim = 24;
  c.group_tile = 4;
  c.value = {Grid::nuq, 5, false, Axis::token, 96, Sparse::csr};
  c.dtype = Dtype::f32;
  EXPECT_THAT(missing(c), testing::UnorderedElementsAre(
                              testing::HasSubstr("has no values of 5 bits (it has 2, 3, 4, 8)"),
                              testing::HasSubstr("values of head dimension 96 beside keys of 64"),
                              testing::HasSubstr("values of scales per token with sparse part csr"),
                              testing::HasSubstr("has no rotation of 24 channels of 64 (it takes a multiple of 16)"),
                              testing::HasSubstr("has no dtype f32 (it has f16, bf16)"),
                              testing::HasSubstr("has no tile of 4 query heads (it has 8 and 16)")));
  c.layout = Layout::linear;
  EXPECT_THAT(missing(c), testing::ElementsAre("has no attention (layout mma-1 has it)"));
  EXPECT_THROW(choices(Layout::linear, Family::attention), Error);
}

}  // namespace
}  // namespace kvcc::codegen
