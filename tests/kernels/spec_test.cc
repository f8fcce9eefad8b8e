// formats/spec/cache.md against the code: every table of the page, and its worked example to the byte.
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "formats/layout/linear.h"
#include "kernels/device/common.cuh"
#include "kernels/reference/cache.h"
#include "tests/spec_tables.h"

namespace kvcc {
namespace {

std::map<std::string, Rows> tables_of_page() { return spec_tables("cache.md", 2, ", "); }

Rows table(const std::string& header, size_t least) {
  const auto tables = tables_of_page();
  const auto found = tables.find(header);
  EXPECT_NE(found, tables.end()) << "cache.md has no table \"" << header << "\"";
  if (found == tables.end()) return {};
  EXPECT_GE(found->second.size(), least) << header;
  return found->second;
}

uint32_t number(const std::string& text) { return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 0)); }

std::vector<uint32_t> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<uint32_t> all;
  for (std::string word; in >> word;) all.push_back(number(word));
  return all;
}

TEST(CachePage, WordsOfARow) {
  for (const auto& row : table("bits, D", 8)) {
    EXPECT_EQ(linear::row_words(number(row[1]), number(row[0])), number(row[2])) << row[0] << " bits of " << row[1];
  }
}

TEST(CachePage, ExampleRows) {
  for (const auto& row : table("row, b", 9)) {
    const uint32_t bits = number(row[1]);
    const std::vector<uint32_t> codes = numbers(row[2]), words = numbers(row[3]);
    const uint32_t n = static_cast<uint32_t>(codes.size());
    ASSERT_EQ(words.size(), linear::row_words(n, bits)) << row[0];
    for (uint32_t w = 0; w < words.size(); ++w) {
      EXPECT_EQ(linear::make_word(w, n, bits, [&](uint32_t i) { return codes[i]; }), words[w]) << row[0];
    }
    for (uint32_t i = 0; i < n; ++i) EXPECT_EQ(linear::get_code(words.data(), i, bits), codes[i]) << row[0];
  }
}

TEST(CachePage, Sizes) {
  for (const auto& row : table("H, D", 7)) {
    linear::PageShape shape{};
    shape.code_words = linear::head_first_word(number(row[0]), number(row[1]), number(row[2]));
    shape.ranges = row[3] == "token";
    if (row[4] == "csr") {
      shape.sparse = linear::Sparse::csr;
      shape.entries = number(row[5]);
    } else if (row[4] == "tail") {
      shape.sparse = linear::Sparse::tail;
      shape.entries = linear::kPageTokens * 2 * number(row[5]);
    } else {
      EXPECT_EQ(row[4], "none");
    }
    EXPECT_EQ(linear::ranges_offset(shape), number(row[6]));
    EXPECT_EQ(linear::row_ends_offset(shape), number(row[7]));
    EXPECT_EQ(linear::entries_offset(shape), number(row[8]));
    EXPECT_EQ(linear::page_bytes(shape), number(row[9]));
  }
}

TEST(CachePage, RegionsOfTokens) {
  ASSERT_EQ(table("when, region", 3).size(), 3u);
  KvccCache c{};
  c.sink = 4;
  c.residual = 5;
  const int32_t length = 20;
  reference::LinearCache cache;
  cache.sink = c.sink;
  cache.residual = c.residual;
  cache.tokens = length;
  for (int32_t p = 0; p < length; ++p) {
    const int32_t wanted = p < 4 ? p : (p >= 15 ? 4 + (p - 4) % 5 : -1);
    EXPECT_EQ(device::exact_row(c, p, length), wanted);
    EXPECT_EQ(cache.exact_row(p), wanted);
  }
}

void expect_page(const std::string& header, const reference::LinearCache& cache, size_t bytes) {
  ASSERT_EQ(cache.pages.size(), bytes);
  std::vector<uint8_t> wanted(bytes, 0);
  for (const auto& row : table(header, 7)) {
    std::istringstream in(row[1]);
    size_t at = number(row[0]);
    for (std::string byte; in >> byte;) wanted.at(at++) = static_cast<uint8_t>(std::stoul(byte, nullptr, 16));
  }
  EXPECT_EQ(cache.pages, wanted) << header;
}

TEST(CachePage, WorkedExample) {
  LevelTable levels{1, 8, {}, {3}};
  for (int j = 0; j < 8; ++j) levels.levels.push_back(-0.875f + 0.25f * static_cast<float>(j));
  std::vector<float> x;
  for (int i = 0; i < 32; ++i) x.push_back(-1.25f + 0.25f * static_cast<float>(i % 16));
  x[16 + 3] = 5.0f;
  x[16 + 15] = -7.5f;
  const std::vector<float> scale(16, 2.0f), zero(16, 0.5f), lower(16, -1.5f), upper(16, 2.5f);
  const ChannelQuantiser key{1, 16, levels, scale, zero, lower, upper};
  expect_page("offset in the key page, bytes", reference::pack(key, x, {.capacity = 32}), 896);
  const TokenQuantiser value{1, 16, levels, 1};
  expect_page("offset in the value page, bytes", reference::pack(value, x, {}), 1280);
}

}  // namespace
}  // namespace kvcc
