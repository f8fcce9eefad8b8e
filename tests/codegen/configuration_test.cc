// Names of kernels are a grammar: what is printed parses back, names are unique, and the lists say what exists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "codegen/plan/configuration.h"
#include "formats/core/error.h"

namespace kvcc::codegen {
namespace {

Configuration any_configuration() {
  Configuration c;
  c.family = *rc::gen::elementOf(families());
  c.grid = *rc::gen::element(Grid::integer, Grid::normal_float, Grid::nuq);
  c.bits = *rc::gen::inRange(1, 9);
  c.mixed = *rc::gen::arbitrary<bool>();
  c.axis = *rc::gen::element(Axis::channel, Axis::token);
  c.head_dim = *rc::gen::inRange(1, 513);
  c.sparse = *rc::gen::element(Sparse::none, Sparse::csr, Sparse::tail);
  if (takes_rope(c.family)) {
    c.rope = *rc::gen::element(RopeKind::none, RopeKind::half, RopeKind::interleaved);
    if (c.rope != RopeKind::none) c.rotary_dim = *rc::gen::inRange(1, 513);
  }
  if (takes_group(c.family)) c.group_tile = *rc::gen::inRange(1, 9);
  c.dtype = *rc::gen::element(Dtype::f16, Dtype::bf16, Dtype::f32);
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
  EXPECT_THAT(message("pack_key_nuq3_channel_d64_csr_f16__mma1"), HasSubstr("linear1"));
  EXPECT_THAT(message("pack_key_nuq3_channel_d64_csr_f16__linear1x"), HasSubstr("nothing more"));
  EXPECT_THAT(message("pack_key_nuq3_channel_d64_csr_g3_f16__linear1"), HasSubstr("f16, bf16 or f32"));
  EXPECT_THAT(message("pack_key_nuq3_channel_d64"), HasSubstr("it ends"));
  EXPECT_THAT(message(""), HasSubstr("it ends"));
}

TEST(Lists, EveryListedConfigurationExistsAndNamesAreUnique) {
  std::set<std::string> names;
  size_t count = 0;
  for (const Family family : families()) {
    for (const Configuration& c : listed(family, {1, 3, 8})) {
      ASSERT_EQ(missing(c), std::vector<std::string>{}) << name(c);
      names.insert(name(c));
      ++count;
    }
  }
  EXPECT_EQ(names.size(), count);
  EXPECT_GT(count, 5000u);
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
  EXPECT_THAT(reasons, testing::Contains(testing::HasSubstr("head dimension 72 (listed: 16, 32, 64")));
}

}  // namespace
}  // namespace kvcc::codegen
