// Artifacts of vector codebooks that are broken in one place, and the accounting of what they hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(VectorCodebook, IsNotDivided) {
  const Codebook book = made::codebook("kvcc-2-head");
  EXPECT_THROW(shard_codebook(book, {0, 2}, "a.kvcb"), Error);
}

}  // namespace
}  // namespace kvcc
