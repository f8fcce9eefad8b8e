// The tables of formats/spec/online-values.md and schemes.md against the code.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <sstream>

#include "formats/codec/reference.h"
#include "formats/codec/tails.h"
#include "formats/codec/tensor_codec.h"
#include "formats/core/scheme.h"
#include "tests/spec_tables.h"

namespace kvcc {
namespace {

std::map<std::string, Rows> tables_of_page() { return spec_tables("online-values.md", SIZE_MAX, " "); }

float number(const std::string& text) { return std::strtof(text.c_str(), nullptr); }
int whole(const std::string& text) { return static_cast<int>(std::strtol(text.c_str(), nullptr, 0)); }

TEST(OnlineValuesPage, CountsOfOutliers) {
  const Rows rows = tables_of_page()["sparse n k"];
  ASSERT_GE(rows.size(), 6u);
  for (const auto& row : rows) {
    EXPECT_EQ(outliers_per_tail(std::strtod(row[0].c_str(), nullptr) / 100, whole(row[1])), whole(row[2]))
        << row[0] << " of " << row[1];
  }
}

TEST(OnlineValuesPage, Ranges) {
  const Rows rows = tables_of_page()["low high scale zero"];
  ASSERT_GE(rows.size(), 6u);
  for (const auto& row : rows) {
    const TokenRange range = token_range(number(row[0]), number(row[1]));
    EXPECT_EQ(range.scale, whole(row[2])) << row[0] << " to " << row[1];
    EXPECT_EQ(range.zero, whole(row[3])) << row[0] << " to " << row[1];
  }
}

TEST(OnlineValuesPage, WorkedExample) {
  const Rows rows = tables_of_page()["column x outlier y code decoded"];
  ASSERT_EQ(rows.size(), 8u);
  std::vector<float> x, back(8);
  for (const auto& row : rows) x.push_back(number(row[1]));
  const TokenQuantiser q{2, 4, {2, 4, {-1, -0.25f, 0.25f, 1, -0.8f, -0.1f, 0.3f, 0.9f}, {2, 2}}, 1};
  EncodedToken token;
  encode(q, x, token);
  decode(q, token, back);
  EXPECT_EQ(token.range.scale, 0x4066);
  EXPECT_EQ(token.range.zero, 0x3b33);
  std::map<int, int> stored;
  for (const SparseEntry& entry : token.sparse) stored[entry.column] = entry.value;
  for (const auto& row : rows) {
    const int column = whole(row[0]);
    EXPECT_EQ(stored.contains(column), row[2] != "no") << column;
    if (stored.contains(column)) {
      EXPECT_EQ(stored[column], whole(row[2]));
    }
    const float scale = half_to_float(token.range.scale), zero = half_to_float(token.range.zero);
    EXPECT_EQ(normalise(x[column], scale, zero), number(row[3])) << column;  // outliers here equal the inlier ends
    EXPECT_EQ(token.codes[column], whole(row[4])) << column;
    EXPECT_EQ(back[column], number(row[5])) << column;
  }
}

TEST(SchemesPage, PackedExample) {
  const Rows rows = spec_tables("schemes.md", SIZE_MAX, " ")["part of the example bits bytes"];
  const auto codec = make_codec(parse_scheme("k=int2@postrope/token:4,v=int2@token:4").value, 0, 1, 6);
  const std::vector<float> x = {0.5f, -1, 2, 1.25f, 3, 3};
  CodedTokens coded;
  codec->encode(x, coded, "example");
  ASSERT_EQ(rows.size(), coded.size());
  std::vector<uint8_t> stated;
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i][0], coded[i].name);
    EXPECT_EQ(whole(rows[i][1]), coded[i].bits);
    std::istringstream bytes(rows[i][2]);
    for (std::string byte; bytes >> byte;) stated.push_back(static_cast<uint8_t>(std::stoi(byte, nullptr, 16)));
  }
  EXPECT_EQ(pack(coded), stated);
  std::vector<float> back(x.size());
  codec->decode(unpack(*codec, 1, stated, "example"), back);
  EXPECT_EQ(back, (std::vector<float>{1, -1, 2, 1, 3, 3}));
}

TEST(SchemesPage, PresetsAreWhatTheTableSays) {
  const Rows rows =
      spec_tables("schemes.md", SIZE_MAX, " ")["name text without sparse, codebook, weight and first tokens"];
  ASSERT_GE(rows.size(), 20u);
  for (const auto& row : rows) {
    EXPECT_EQ(parse_scheme(row[0]), parse_scheme(row[1])) << row[0];
    EXPECT_EQ(short_name(parse_scheme(row[1])), row[0]);
  }
}

}  // namespace
}  // namespace kvcc
