// The shipped rows of layouts mma-1 and vector-1: few, legal, and between them every pair of choices of mma-1, every
// choice of vector-1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "codegen/plan/configuration.h"

namespace kvcc::codegen {
namespace {

/// Dimensions of one tensor of a row, as text. Attention counts once for its keys and once for its values; which
/// keys go with which values is no dimension (16 pairs of widths alone would be 16 rows of attention): `make full`
/// draws them. Rope of families that do not turn is none.
using Point = std::map<std::string, std::string>;
using Pair = std::pair<std::pair<std::string, std::string>, std::pair<std::string, std::string>>;

Point point(const Configuration& c, const TensorConfiguration& t, bool values) {
  Point p;
  const bool attention = c.family == Family::attention;
  p["family"] = std::string(to_text(c.family)) + (!attention ? "" : values ? " values" : " keys");
  p["bits"] = std::to_string(t.bits);
  p["head_dim"] = std::to_string(t.head_dim);
  p["scale"] = std::string(to_text(t.axis)) + " " + std::string(to_text(t.sparse));
  p["dtype"] = to_text(c.dtype);
  if (takes_group(c.family)) p["group_tile"] = std::to_string(c.group_tile);
  if (values) return p;
  p["rope"] = to_text(c.rope);
  if (c.rope != RopeKind::none) p["rotary"] = c.rotary_dim == c.head_dim ? "whole" : "part";
  return p;
}

std::set<Pair> pairs_of(const Configuration& c) {
  std::set<Pair> pairs;
  std::vector<Point> points = {point(c, c, false)};
  if (c.family == Family::attention) points.push_back(point(c, c.value, true));
  for (const Point& p : points) {
    for (auto a = p.begin(); a != p.end(); ++a) {
      for (auto b = std::next(a); b != p.end(); ++b) pairs.emplace(*a, *b);
    }
  }
  return pairs;
}

/// Calls visit with every legal configuration whose two tensors, where it has two, are the same.
template <class Visit>
void each_legal(const Visit& visit) {
  for (const Family family : families_of(Layout::mma)) {
    if (family == Family::copy_pages) continue;
    const Choices& list = choices(Layout::mma, family);
    Configuration c;
    c.family = family;
    c.layout = Layout::mma;
    for (const int head_dim : list.head_dims) {
      for (const int bits : list.bits) {
        for (const Scale& scale : list.scales) {
          static_cast<TensorConfiguration&>(c) = {Grid::nuq, bits, false, scale.axis, head_dim, scale.sparse};
          if (family == Family::attention) c.value = c;
          for (const RopeKind rope : list.ropes) {
            for (const int rotary : rope == RopeKind::none ? std::vector<int>{0} : std::vector<int>{head_dim, 32}) {
              for (const int tile : takes_group(family) ? std::vector<int>{8, 16} : std::vector<int>{1}) {
                for (const Dtype dtype : list.dtypes) {
                  c.rope = rope;
                  c.rotary_dim = rotary;
                  c.group_tile = tile;
                  c.dtype = dtype;
                  visit(c);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(Shipped, RowsAreFewLegalAndDistinct) {
  size_t vectors = 0;
  std::set<std::string> names;
  for (const Shipped& row : shipped()) {
    vectors += row.configuration.layout == Layout::vector ? 1 : 0;
    EXPECT_TRUE(names.insert(name(row.configuration)).second) << name(row.configuration);
    EXPECT_THAT(missing(row.configuration), testing::IsEmpty()) << name(row.configuration);
    EXPECT_GT(row.registers, 0);
    EXPECT_LE(row.registers, 255);
    EXPECT_LE(row.shared_bytes, 99 * 1024) << "sm_86, sm_89 and sm_120 give a block no more";
  }
  EXPECT_LE(vectors, 28u);
  EXPECT_LE(shipped().size() - vectors, 48u);
  for (const char* wanted :
       {"key_scores_nuq3_channel_d128_none_half128_g8_f16__mma1", "value_mix_nuq3_token_d128_none_g8_f16__mma1",
        "attention_nuq3_channel_d128_none_half128_v_nuq3_token_d128_none_g8_f16__mma1",
        "attention_nuq3_channel_d64_csr_half64_v_nuq3_token_d64_tail_g8_f16__mma1", "copy_pages__any"}) {
    EXPECT_TRUE(names.contains(wanted)) << wanted;
  }
}

TEST(Shipped, CoverEveryPairOfChoices) {
  std::set<Pair> wanted, found;
  size_t legal = 0;
  each_legal([&](const Configuration& c) {
    ASSERT_THAT(missing(c), testing::IsEmpty());
    wanted.merge(pairs_of(c));
    ++legal;
  });
  EXPECT_GT(legal, 4000u);
  EXPECT_GT(wanted.size(), 300u);
  for (const Shipped& row : shipped()) {
    if (row.configuration.layout == Layout::mma) found.merge(pairs_of(row.configuration));
  }
  for (const auto& [a, b] : wanted) {
    EXPECT_TRUE(found.contains({a, b})) << a.first << " " << a.second << " with " << b.first << " " << b.second;
  }
}

TEST(Shipped, CoverEveryChoiceOfVectorCodebooks) {
  for (const bool tensor_cores : {false, true}) {
    for (const Family family : families_of(Layout::vector)) {
      if (family == Family::copy_pages || (tensor_cores ? !takes_rope(family) : family == Family::attention)) continue;
      std::set<std::string> ropes;
      std::set<bool> transforms;
      std::set<int> tiles;
      for (const Shipped& row : shipped()) {
        const Configuration& c = row.configuration;
        if (c.layout != Layout::vector || c.family != family || (c.steps > 0) != tensor_cores) continue;
        EXPECT_EQ(c.grid, Grid::vector);
        if (!tensor_cores) {
          EXPECT_LE(row.registers, 128) << "as phased kernels state";
          EXPECT_LE(row.shared_bytes, 48 * 1024) << "static shared memory";
        }
        transforms.insert(c.transform);
        ropes.insert(std::string(to_text(c.rope)));
        tiles.insert(c.group_tile);
      }
      const Choices& list = tensor_cores ? tensor_core_choices(family) : choices(Layout::vector, family);
      EXPECT_EQ(transforms.size(), 2u) << to_text(family);
      EXPECT_EQ(ropes.size(), list.ropes.size()) << to_text(family);
      if (tensor_cores) EXPECT_EQ(tiles, (std::set<int>{8, 16})) << to_text(family);
    }
  }
}

}  // namespace
}  // namespace kvcc::codegen
