// Layout vector-1 and its oracle: where codes lie, the worked example of formats/spec/cache-vector.md, and that a cache
// gives back the codec's values bit for bit.
#include <gmock/gmock.h>

#include <fstream>
#include <set>
#include <sstream>

#include "formats/codec/reference.h"
#include "formats/core/error.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/vector_cases.h"

namespace kvcc {
namespace {

using reference::VectorCache;

TEST(VectorPage, BytePlacesFillTheTileOnce) {
  for (uint32_t bits = 1; bits <= 700; bits += bits < 40 ? 1 : 37) {
    const uint32_t bytes = vector_page::lane_bytes(bits);
    std::set<uint32_t> places;
    for (uint32_t lane = 0; lane < 32; ++lane) {
      for (uint32_t byte = 0; byte < bytes; ++byte) places.insert(vector_page::byte_place(byte, lane, bytes));
    }
    ASSERT_EQ(places.size(), 32 * bytes) << bits;
    ASSERT_EQ(*places.rbegin() + 1, vector_page::tile_words(bits) * 4) << bits;
  }
}

TEST(VectorPage, CodesDoNotTouchEachOther) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<uint32_t> bits(1 + random() % 40), first{0};
    for (uint32_t& b : bits) first.push_back(first.back() + (b = random() % (vector_page::kMostCodeBits + 1)));
    std::vector<uint8_t> tile(vector_page::tile_words(first.back()) * 4);
    std::vector<uint32_t> codes;
    for (uint32_t token = 0; token < 64; ++token) {
      for (size_t g = 0; g < bits.size(); ++g) {
        codes.push_back(random() & ((1u << bits[g]) - 1u));
        vector_page::put_code(tile.data(), first.back(), token, first[g], bits[g], codes.back());
      }
    }
    size_t i = 0;
    for (uint32_t token = 0; token < 64; ++token) {
      for (size_t g = 0; g < bits.size(); ++g, ++i) {
        ASSERT_EQ(vector_page::get_code(tile.data(), first.back(), token, first[g], bits[g]), codes[i]);
      }
    }
  }
}

/// The rows "| key | value | … |" of the page's table under `heading`, first and second cell.
std::vector<std::pair<std::string, std::string>> rows_under(const std::string& heading) {
  std::ifstream file(std::string(KVCC_SOURCE_DIR) + "/formats/spec/cache-vector.md");
  std::vector<std::pair<std::string, std::string>> rows;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| ") && line.find(heading) != std::string::npos) {
      inside = true;
      std::getline(file, line);
    } else if (inside && line.starts_with("| ")) {
      std::istringstream cells(line.substr(2));
      std::pair<std::string, std::string> row;
      std::getline(cells, row.first, '|');
      std::getline(cells, row.second, '|');
      rows.push_back(row);
    } else {
      inside = false;
    }
  }
  return rows;
}

TEST(VectorSpec, WorkedExample) {
  // The example's numbers: two heads of 16 channels; identity transform; see the page.
  VectorQuantiser q{2, 16, 2, std::vector<float>(32), {}, {}, {}, {}, {}};
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 256; ++i) q.forward.push_back(i / 16 == i % 16 ? 1.0f : 0.0f);
    const int widths[] = {2, 4, 4, 4, 2};
    const int bits[] = {5, 3, 0, 2, h == 0 ? 1 : 4};
    for (int g = 0; g < 5; ++g) {
      for (int i = 0; i < widths[g]; ++i) {
        q.width.push_back(static_cast<uint8_t>(i == 0 ? widths[g] : 0));
        q.bits.push_back(static_cast<uint8_t>(i == 0 ? bits[g] : 0));
      }
      for (int code = 0; code < 1 << bits[g]; ++code) q.vectors.insert(q.vectors.end(), widths[g], float(code));
    }
  }
  q.inverse = q.forward;
  std::vector<float> x;
  for (const int token : {0, 1, 33}) {
    x.resize(static_cast<size_t>(token) * 32, 0.0f);
    for (int h = 0; h < 2; ++h) {
      const int widths[] = {2, 4, 4, 4, 2};
      const int codes[] = {token == 0 ? 21 : 7, token == 33 ? 6 : 5, 0, 2, 1};
      for (int g = 0; g < 5; ++g) x.insert(x.end(), widths[g], static_cast<float>(codes[g]));
    }
  }
  const VectorCache cache = reference::pack_vector(q, x, {});
  EXPECT_EQ(cache.shape.head_bits, (std::vector<uint32_t>{11, 14}));
  ASSERT_EQ(cache.page_count(), 1);
  std::vector<uint8_t> wanted(cache.pages.size());
  const auto rows = rows_under("bytes of the example");
  ASSERT_EQ(rows.size(), 3u);
  for (const auto& [offset, bytes] : rows) {
    std::istringstream in(bytes);
    size_t at = std::stoul(offset);
    for (std::string byte; in >> byte;) wanted.at(at++) = static_cast<uint8_t>(std::stoul(byte, nullptr, 16));
  }
  EXPECT_EQ(cache.pages, wanted);
}

TEST(VectorSpec, SizesOfTiles) {
  const auto rows = rows_under("tile bytes");
  ASSERT_GE(rows.size(), 4u);
  for (const auto& [bits, bytes] : rows) {
    EXPECT_EQ(vector_page::tile_words(static_cast<uint32_t>(std::stoul(bits))) * 4, std::stoul(bytes)) << bits;
  }
}

TEST(VectorCache, GivesBackTheCodecsValues) {
  std::mt19937 random(3);
  for (const bool transform : {true, false}) {
    for (const auto& [tokens, sink, residual] :
         {std::tuple{150, 1, 0}, {64, 0, 0}, {131, 3, 40}, {5, 8, 0}, {70, 2, 80}, {0, 1, 0}}) {
      const VectorQuantiser q = test::make_vector_quantiser({2, 32, transform, 6, 5}, random);
      const std::vector<float> x = test::make_rows(tokens, 64, random);
      const VectorCache cache = reference::pack_vector(q, x, {sink, residual, 0});
      std::vector<float> wanted(x.size()), exact(x.size());
      if (!x.empty()) {
        make_codec(q)->round_trip(x, wanted, 1, "x");
        round_to_record(x, exact, "x");
      }
      for (int64_t p = 0; p < tokens; ++p) {
        if (cache.exact_row(p) >= 0) std::copy_n(exact.begin() + p * 64, 64, wanted.begin() + p * 64);
      }
      const std::vector<float> found = reference::unpack(q, cache);
      ASSERT_EQ(found.size(), wanted.size());
      EXPECT_EQ(std::memcmp(found.data(), wanted.data(), found.size() * 4), 0) << tokens << " tokens";
      EXPECT_EQ(cache.pages.size() % vector_page::kPageAlign, 0u);
    }
  }
}

TEST(VectorCache, RefusesGroupsAcrossHeads) {
  std::mt19937 random(4);
  VectorQuantiser q = test::make_vector_quantiser({1, 64, true, 3, 4}, random);
  q.heads = 2;
  q.dim = 32;
  try {
    reference::vector_shape(q);
    FAIL() << "packed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("groups across heads"));
  }
  q.heads = 1;
  q = test::make_vector_quantiser({1, 24, true, 3, 4}, random);
  EXPECT_THROW(reference::vector_shape(q), Error);
}

}  // namespace
}  // namespace kvcc
