// formats/spec/cache-mma.md against the code: every table of the page, and its worked example to the byte.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <sstream>

#include "formats/layout/mma.h"
#include "formats/layout/mma_launch.h"
#include "kernels/reference/mma_cache.h"
#include "tests/spec_tables.h"

namespace kvcc {
namespace {

using mma::Tensor;

Rows table(const std::string& header, size_t rows) {
  static const auto tables = spec_tables("cache-mma.md", 3, ", ");
  const auto found = tables.find(header);
  EXPECT_NE(found, tables.end()) << "cache-mma.md has no table \"" << header << "\"";
  if (found == tables.end()) return {};
  EXPECT_EQ(found->second.size(), rows) << header;
  return found->second;
}

uint32_t number(const std::string& text) {
  char* end = nullptr;
  const uint32_t n = static_cast<uint32_t>(std::strtoul(text.c_str(), &end, 0));
  EXPECT_TRUE(!text.empty() && *end == '\0') << text;
  return n;
}
std::vector<uint32_t> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<uint32_t> all;
  for (std::string word; in >> word;) all.push_back(number(word));
  return all;
}
Tensor tensor(const std::string& name) {
  EXPECT_TRUE(name == "key" || name == "value") << name;
  return name == "key" ? Tensor::key : Tensor::value;
}

TEST(MmaPageSpec, Owners) {
  std::set<std::string> tensors;
  for (const auto& row : table("tensor, D, token", 12)) {
    tensors.insert(row[0]);
    const uint32_t token = number(row[2]), channel = number(row[3]);
    const mma::Owner at = mma::owner(tensor(row[0]), number(row[1]), token, channel);
    EXPECT_EQ(at.lane, number(row[4])) << row[0] << " " << token << " " << channel;
    EXPECT_EQ(at.pair, number(row[5]));
    EXPECT_EQ(at.second, number(row[6]));
  }
  EXPECT_EQ(tensors.size(), 2u);
}

TEST(MmaPageSpec, Fields) {
  const auto rows = table("pair, b = 2, b = 3", 16);
  for (uint32_t e = 0; e < rows.size(); ++e) {
    EXPECT_EQ(number(rows[e][0]), e);
    const uint32_t widths[] = {2, 3, 4, 8};
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits = widths[i];
      const std::string& cell = rows[e][1 + i];
      if (bits == 3 && e == 15) {
        EXPECT_EQ(cell, "0-2:31");  // bit k of the pair lies in word k / 2, at bit 31 or 0
        for (uint32_t k = 0; k < 6; ++k) {
          uint32_t group[3] = {0, 0, 0};
          group[k / 2] = k % 2 == 0 ? 1u << 31 : 1u;
          EXPECT_EQ(mma::get_pair(group, 15, 3), 1u << k);
        }
        continue;
      }
      const size_t colon = cell.find(':');
      ASSERT_NE(colon, std::string::npos) << cell;
      EXPECT_EQ(mma::pair_word(e, bits), number(cell.substr(0, colon))) << e << " " << bits;
      EXPECT_EQ(mma::pair_bit(e, bits), number(cell.substr(colon + 1))) << e << " " << bits;
    }
  }
}

TEST(MmaPageSpec, ExampleGroups) {
  for (const auto& row : table("row, b, pairs", 7)) {
    const uint32_t bits = number(row[1]);
    const auto pairs = numbers(row[2]), words = numbers(row[3]);
    ASSERT_EQ(pairs.size(), 16u);
    ASSERT_EQ(words.size(), bits);
    for (uint32_t w = 0; w < bits; ++w) {
      EXPECT_EQ(mma::make_word(w, bits, [&](uint32_t e) { return pairs[e]; }), words[w]) << row[0];
    }
    for (uint32_t e = 0; e < 16; ++e) EXPECT_EQ(mma::get_pair(words.data(), e, bits), pairs[e]) << row[0];
  }
}

/// Planes of a share, from where its words lie: a plane of n words a lane has lane 1 n words after lane 0.
std::vector<uint32_t> planes(uint32_t words) {
  std::vector<uint32_t> count(5, 0);
  for (uint32_t word = 0; word < words;) {
    const uint32_t width = mma::word_place(word, 1, words) - mma::word_place(word, 0, words);
    if (width == 0 || width > 4) throw std::logic_error("no plane");
    ++count[width];
    word += width;
  }
  return count;
}

TEST(MmaPageSpec, Tiles) {
  std::set<uint32_t> dims;
  for (const auto& row : table("D, b, tile bytes", 28)) {
    const uint32_t dim = number(row[0]), bits = number(row[1]), words = number(row[3]);
    dims.insert(dim);
    EXPECT_TRUE(mma::supports(dim, bits));
    EXPECT_EQ(mma::tile_words(dim, bits) * 4, number(row[2]));
    EXPECT_EQ(mma::lane_words(dim, bits), words);
    const auto found = planes(words);
    EXPECT_EQ(found[4], number(row[4])) << dim << " " << bits;
    EXPECT_EQ(found[2], number(row[5])) << dim << " " << bits;
    EXPECT_EQ(found[1], number(row[6])) << dim << " " << bits;
    EXPECT_EQ(found[3], 0u);
  }
  EXPECT_EQ(dims, (std::set<uint32_t>{16, 64, 80, 96, 128, 192, 256}));
}

TEST(MmaPageSpec, PlacesOfWords) {
  for (const auto& row : table("words a lane, word, lane", 13)) {
    EXPECT_EQ(mma::word_place(number(row[1]), number(row[2]), number(row[0])), number(row[3])) << row[0] << row[1];
  }
}

TEST(MmaPageSpec, Records) {
  for (const auto& row : table("b, token, channel", 6)) {
    const uint32_t bits = number(row[0]), token = number(row[1]), channel = number(row[2]), code = number(row[3]);
    EXPECT_EQ(mma::record_class(token), number(row[4]));
    EXPECT_EQ(mma::record_place(token, channel, code, bits), number(row[5])) << token;
  }
}

TEST(MmaPageSpec, Sizes) {
  for (const auto& row : table("tensor, H, D", 9)) {
    mma::PageShape shape{};
    shape.heads = number(row[1]);
    shape.code_words = mma::head_first_word(shape.heads, number(row[2]), number(row[3]));
    shape.ranges = row[4] == "token";
    EXPECT_TRUE(row[5] == "none" || (row[5] == "csr" && row[4] == "channel") ||
                (row[5] == "tail" && row[4] == "token"));
    shape.classes = row[5] == "none" ? 0 : mma::kClasses;
    shape.capacity = number(row[6]);
    EXPECT_EQ(mma::ranges_offset(shape), number(row[7]));
    EXPECT_EQ(mma::ends_offset(shape), number(row[8]));
    EXPECT_EQ(mma::records_offset(shape), number(row[9]));
    EXPECT_EQ(mma::page_bytes(shape), number(row[10]));
    EXPECT_EQ(kvcc_mma_page_bytes(static_cast<int32_t>(shape.code_words), static_cast<int>(shape.ranges),
                                  static_cast<int32_t>(shape.classes), static_cast<int32_t>(shape.heads),
                                  static_cast<int32_t>(shape.capacity)),
              number(row[10]));
  }
}

void expect_page(const std::string& header, size_t rows, const reference::MmaCache& cache, size_t bytes) {
  ASSERT_EQ(cache.pages.size(), bytes);
  std::vector<uint8_t> wanted(bytes, 0);
  for (const auto& row : table(header, rows)) {
    std::istringstream in(row[1]);
    size_t at = number(row[0]);
    for (std::string byte; in >> byte;) wanted.at(at++) = static_cast<uint8_t>(std::stoul(byte, nullptr, 16));
  }
  EXPECT_EQ(cache.pages, wanted) << header;
}

TEST(MmaPageSpec, WorkedExample) {
  LevelTable levels{2, 8, {}, {3, 3}};
  for (int j = 0; j < 16; ++j) levels.levels.push_back(-0.875f + 0.25f * static_cast<float>(j % 8));
  std::vector<float> x(64);
  for (int i = 0; i < 16; ++i) {
    x[i] = x[31 - i] = x[32 + i] = x[63 - i] = -1.25f + 0.25f * static_cast<float>(i);
  }
  x[32 + 3] = 5.0f;
  x[32 + 31] = -7.5f;
  const std::vector<float> scale(32, 2.0f), zero(32, 0.5f), lower(32, -1.5f), upper(32, 2.5f);
  const ChannelQuantiser key{2, 16, levels, scale, zero, lower, upper};
  const TokenQuantiser value{2, 16, levels, 1};
  const auto keys = reference::pack_mma(key, Tensor::key, x, {.capacity = 4});
  const auto values = reference::pack_mma(value, Tensor::value, x, {.capacity = 4});
  for (const auto& row : table("token, head, codes of the example", 4)) {
    const auto codes = numbers(row[2]);
    ASSERT_EQ(codes.size(), 16u);
    for (size_t c = 0; c < codes.size(); ++c) {
      EXPECT_EQ(reference::read_token(levels, keys, number(row[0])).codes[number(row[1]) * 16 + c], codes[c]);
      EXPECT_EQ(reference::read_token(levels, values, number(row[0])).codes[number(row[1]) * 16 + c], codes[c]);
    }
  }
  expect_page("offset in the key page, bytes", 12, keys, 896);
  expect_page("offset in the value page, bytes", 21, values, 1152);
}

}  // namespace
}  // namespace kvcc
