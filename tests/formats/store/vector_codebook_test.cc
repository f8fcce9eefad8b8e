// Artifacts of vector codebooks that are broken in one place, and the accounting of what they hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "formats/core/error.h"
#include "formats/store/shard.h"
#include "tests/formats/store/made.h"

namespace kvcc {
namespace {

using made::TemporaryFolder;
using ::testing::Contains;
using ::testing::HasSubstr;

struct Broken {
  const char* name;
  std::function<void(Codebook&)> edit;
  const char* message;
};

/// The good files: kvcc-2-head and kvcc-3-channels, 3 layers, 2 units of N 8 (values 6).
const std::vector<Broken>& catalogue() {
  static const std::vector<Broken> all = {
      {"Gap", [](Codebook& b) { b.key.group_width[0] = 1; }, "/key/group_width: 0 at layer 0 unit 0 coordinate 1"},
      {"TooWide", [](Codebook& b) { b.key.group_width[8 + 0] = 9; }, "groups of 1 to 8 coordinates"},
      {"BeyondTheUnit", [](Codebook& b) { b.value.group_width[4] = 8; }, "/value/group_width: 8 at layer 0 unit 0"},
      {"MoreBits", [](Codebook& b) { b.key.group_bits[0] = 11; }, "/key/group_bits: 11 at layer 0 unit 0 coordinate 0"},
      {"BitsInside", [](Codebook& b) { b.key.group_bits[1] = 1; }, "0 inside it"},
      {"FewVectors", [](Codebook& b) { b.value.vectors.pop_back(); }, "/value/vectors: "},
      {"NoVectors", [](Codebook& b) { b.key.vectors.clear(); }, "/key/vectors: missing"},
      {"NoInverse", [](Codebook& b) { b.value.inverse.clear(); }, "/rotation/value/inverse: missing"},
      {"NaNVector", [](Codebook& b) { b.key.vectors[5] = std::numeric_limits<float>::quiet_NaN(); },
       "/key/vectors: nan at 5"},
      {"InfiniteForward", [](Codebook& b) { b.key.forward[3] = std::numeric_limits<float>::infinity(); },
       "/rotation/key/forward: inf at 3"},
      {"Levels", [](Codebook& b) { b.key.bits.assign(6, 3); },
       "/key/bits: present though the scheme has no use for it"},
      {"NegativePrediction", [](Codebook& b) { b.key.stats.predicted_fitted[2] = -1; },
       "/key/stats/predicted_fitted: -1 at layer 4"},
  };
  return all;
}

TEST(VectorCodebook, BrokenOnesAreRefusedByPathAndRule) {
  const TemporaryFolder folder;
  for (const Broken& broken : catalogue()) {
    Codebook book = made::codebook("kvcc-2-head");
    broken.edit(book);
    try {
      write_codebook(folder / "a.kvcb", book);
      ADD_FAILURE() << broken.name << " was written";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(broken.message)) << broken.name;
    }
  }
}

TEST(VectorCodebook, ChannelsAreEachThereOnce) {
  const TemporaryFolder folder;
  Codebook book = made::codebook("kvcc-3-channels");
  write_codebook(folder / "a.kvcb", book);
  book.key.channel_order[3] = book.key.channel_order[4];
  EXPECT_THROW(write_codebook(folder / "b.kvcb", book), Error);
  book = made::codebook("kvcc-3-channels");
  book.key.channel_order.clear();
  EXPECT_THROW(write_codebook(folder / "b.kvcb", book), Error);
}

/// Values that are predicted: the map is there, finite, of the keys' extents, counted, and nowhere else.
TEST(VectorCodebook, PredictionIsThereWhereTheSchemeHasIt) {
  const TemporaryFolder folder;
  Codebook book = made::codebook("kvcc-2-predict");
  write_codebook(folder / "a.kvcb", book);
  EXPECT_EQ(book.format_version, "1.6");
  const Codebook read = read_codebook(folder / "a.kvcb");
  EXPECT_EQ(read.value.from_key, book.value.from_key);
  EXPECT_EQ(read.value.from_key.size(), 3u * 12 * 16);
  EXPECT_TRUE(read.key.from_key.empty());
  Codebook without = made::codebook("kvcc-2");
  write_codebook(folder / "b.kvcb", without);
  EXPECT_NE(without.format_version, "1.6");
  const auto zeros = std::count(book.value.from_key.begin(), book.value.from_key.end(), 0.0f);
  EXPECT_EQ(bits_query(book).vector_bytes - bits_query(without).vector_bytes,
            4 * (static_cast<int64_t>(book.value.from_key.size()) - zeros));
  const auto refused = [&](Codebook broken, const char* message) {
    try {
      write_codebook(folder / "c.kvcb", broken);
      ADD_FAILURE() << "written without: " << message;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  };
  without.value.from_key = book.value.from_key;
  refused(without, "/rotation/value/from_key: present though the scheme has no use for it");
  Codebook broken = book;
  broken.value.from_key.clear();
  refused(broken, "/rotation/value/from_key: missing");
  broken = book;
  broken.value.from_key.pop_back();
  refused(broken, "/rotation/value/from_key: 575 values; wanted 576");
  broken = book;
  broken.value.from_key[7] = std::numeric_limits<float>::quiet_NaN();
  refused(broken, "/rotation/value/from_key: nan at 7");
}

TEST(VectorCodebook, OffsetsAndAccounting) {
  Codebook book = made::codebook("kvcc-2-head");
  const std::vector<size_t> offsets = vector_offsets(book.key, 3);
  ASSERT_EQ(offsets.size(), 4u);
  EXPECT_EQ(offsets.back(), book.key.vectors.size());
  size_t first = 0;
  for (size_t i = 0; i < 16; ++i)
    first += book.key.group_width[i] > 0 ? book.key.group_width[i] << book.key.group_bits[i] : 0;
  EXPECT_EQ(offsets[1], first);
  int codes = 0;
  size_t numbers = 0;
  for (const TensorCodebooks* tensor : {&book.key, &book.value}) {
    for (const uint8_t b : tensor->group_bits) codes += b;
    numbers += tensor->vectors.size() + tensor->rotation_mean.size();
    for (const auto* m : {&tensor->forward, &tensor->inverse}) {
      for (const float v : *m) numbers += v != 0;
    }
  }
  const EffectiveBitsQuery query = bits_query(book, {.context = 4096});
  EXPECT_EQ(query.context, 4096);
  EXPECT_DOUBLE_EQ(query.code_bits, codes / (3.0 * 2 * 14));
  EXPECT_EQ(query.vector_bytes, static_cast<int64_t>(4 * numbers));
  EXPECT_LT(bits_query(made::codebook()).code_bits, 0);
}

/// Vectors of each unit, in order, of every layer.
std::vector<std::vector<float>> by_unit(const TensorCodebooks& tensor) {
  std::vector<std::vector<float>> units;
  size_t at = 0;
  for (size_t i = 0; i < tensor.group_width.size(); ++i) {
    if (i % static_cast<size_t>(tensor.coordinates) == 0) units.emplace_back();
    const size_t numbers = size_t{tensor.group_width[i]} << tensor.group_bits[i];
    units.back().insert(units.back().end(), tensor.vectors.begin() + static_cast<ptrdiff_t>(at),
                        tensor.vectors.begin() + static_cast<ptrdiff_t>(at + numbers));
    at += numbers;
  }
  EXPECT_EQ(at, tensor.vectors.size());
  return units;
}

TEST(VectorCodebook, IsDividedByHeads) {
  const TemporaryFolder folder;
  for (const char* scheme : {"kvcc-2-head", "kvcc-3-channels", "kvcc-2-head-predict"}) {
    const Codebook whole = made::codebook(scheme);
    for (int rank = 0; rank < 2; ++rank) {
      Codebook part = shard_codebook(whole, {rank, 2}, "a.kvcb");
      write_codebook(folder / "part.kvcb", part);
      const Codebook read = read_codebook(folder / "part.kvcb");
      for (const auto tensor : {&Codebook::key, &Codebook::value}) {
        const TensorCodebooks &of_whole = whole.*tensor, &of_part = read.*tensor;
        EXPECT_EQ(of_part.units, 1);
        EXPECT_TRUE(of_part.stats.predicted_fitted.empty() && of_part.stats.predicted_held_out.empty());
        const auto all = by_unit(of_whole), own = by_unit(of_part);
        ASSERT_EQ(own.size(), 3u);
        const size_t n = static_cast<size_t>(of_whole.coordinates);
        for (size_t layer = 0; layer < 3; ++layer) {
          const size_t unit = 2 * layer + static_cast<size_t>(rank);
          EXPECT_EQ(own[layer], all[unit]);
          const auto same = [&](const auto& found, const auto& wanted, size_t each) {
            return std::equal(found.begin() + static_cast<ptrdiff_t>(layer * each),
                              found.begin() + static_cast<ptrdiff_t>((layer + 1) * each),
                              wanted.begin() + static_cast<ptrdiff_t>(unit * each));
          };
          EXPECT_TRUE(same(of_part.group_width, of_whole.group_width, n));
          EXPECT_TRUE(same(of_part.group_bits, of_whole.group_bits, n));
          EXPECT_TRUE(same(of_part.rotation_mean, of_whole.rotation_mean, n));
          EXPECT_TRUE(same(of_part.forward, of_whole.forward, n * n));
          EXPECT_TRUE(same(of_part.inverse, of_whole.inverse, n * n));
          if (whole.scheme.value.predicted && tensor == &Codebook::value) {
            EXPECT_TRUE(same(of_part.from_key, of_whole.from_key, n * static_cast<size_t>(whole.key.coordinates)));
          }
          ASSERT_EQ(of_part.channel_order.empty(), of_whole.channel_order.empty());
          if (!of_whole.channel_order.empty()) {
            EXPECT_TRUE(same(of_part.channel_order, of_whole.channel_order, n));
          }
        }
      }
    }
    EXPECT_EQ(shard_codebook(whole, {0, 1}, "a.kvcb").key.stats.predicted_fitted, whole.key.stats.predicted_fitted);
  }
}

TEST(VectorCodebook, AcrossHeadsIsNotDivided) {
  try {
    shard_codebook(made::codebook("kvcc-2"), {0, 2}, "a.kvcb");
    FAIL() << "divided";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a transform across all heads of a layer"));
  }
}

}  // namespace
}  // namespace kvcc
