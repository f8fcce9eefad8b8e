// Vector codebooks: the exactness chain, and a literal decoding by the specification's loops.
#include "formats/codec/vector_codec.h"

#include <gmock/gmock.h>

#include <limits>

#include "formats/codec/matrix.h"
#include "formats/codec/nearest_vector.h"
#include "formats/core/error.h"
#include "tests/formats/codec/chain.h"

namespace kvcc {
namespace {

/// Groups of all widths and of 0 to `most` bits, dense transforms that are each other's inverse only nearly.
VectorQuantiser made_quantiser(int heads, int dim, int units, int most, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  VectorQuantiser q{heads, dim, units, {}, {}, {}, {}, {}, {}};
  const int n = q.size();
  for (int u = 0; u < units; ++u) {
    for (int at = 0, group = u; at < n; ++group) {
      const int width = std::min(1 + group % kMostGroupWidth, n - at), bits = group % (most + 1);
      q.width.push_back(static_cast<uint8_t>(width));
      q.bits.push_back(static_cast<uint8_t>(bits));
      q.width.resize(q.width.size() + width - 1);
      q.bits.resize(q.width.size());
      for (int i = 0; i < width << bits; ++i) q.vectors.push_back(2 * normal(random));
      at += width;
    }
    for (int i = 0; i < n; ++i) q.mean.push_back(normal(random));
    for (int i = 0; i < n * n; ++i) {
      const float off = 0.05f * normal(random);
      q.forward.push_back((i / n == i % n ? 1.0f : 0.0f) + off);
      q.inverse.push_back((i / n == i % n ? 1.0f : 0.0f) - off);
    }
  }
  return q;
}

/// One token by formats/spec/codebook.md, in plain loops.
std::vector<float> literal(const VectorQuantiser& q, const float* x) {
  const int n = q.size();
  std::vector<float> out;
  size_t vectors = 0;
  for (int u = 0; u < q.units; ++u) {
    const float *forward = q.forward.data() + u * n * n, *inverse = q.inverse.data() + u * n * n;
    std::vector<float> z(n);
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) z[i] += forward[i * n + j] * (x[u * n + j] - q.mean[u * n + j]);
    }
    for (int at = 0; at < n; at += q.width[u * n + at]) {
      const int width = q.width[u * n + at], entries = 1 << q.bits[u * n + at];
      int best = 0;
      float least = std::numeric_limits<float>::infinity();
      for (int c = 0; c < entries; ++c) {
        float distance = 0;
        for (int i = 0; i < width; ++i) {
          const float d = z[at + i] - q.vectors[vectors + c * width + i];
          distance += d * d;
        }
        if (distance < least) {
          least = distance;
          best = c;
        }
      }
      for (int i = 0; i < width; ++i) z[at + i] = q.vectors[vectors + best * width + i];
      vectors += entries * width;
    }
    for (int i = 0; i < n; ++i) {
      float sum = 0;
      for (int j = 0; j < n; ++j) sum += inverse[i * n + j] * z[j];
      out.push_back(sum + q.mean[u * n + i]);
    }
  }
  return out;
}

TEST(VectorCodec, ChainAndLiteralDecoding) {
  for (const auto& [heads, dim, units, most] :
       {std::tuple{3, 64, 1, 6}, {3, 64, 3, 5}, {2, 10, 2, kMostGroupBits}, {1, 1, 1, 1}, {2, 37, 1, 4}}) {
    const VectorQuantiser q = made_quantiser(heads, dim, units, most, 5);
    const auto codec = make_codec(q);
    const std::vector<float> x = made_rows(197, heads, dim, 7);
    const std::vector<float> decoded = expect_chain(*codec, x);
    std::vector<float> wanted;
    for (int64_t t = 0; t < 197; ++t) {
      const std::vector<float> row = literal(q, x.data() + t * heads * dim);
      wanted.insert(wanted.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(same_bits(decoded, wanted)) << heads << " heads of " << dim << " in " << units << " units";
    int64_t bits = 0, asked = 0;
    for (const PartShape& part : codec->parts(197)) bits += part.bits * part.count;
    for (const uint8_t b : q.bits) asked += b;
    EXPECT_EQ(bits, 197 * asked) << "nothing is stored of groups of 0 bits";
  }
}

TEST(VectorCodec, EqualDistancesTakeTheFirst) {
  const float z[] = {0.5f, -1, 2}, vectors[] = {0, 1, 0, 1, 2};
  uint16_t code[3];
  float distance[3];
  nearest_vectors({1, 3, z, 3}, vectors, 5, code, distance);
  EXPECT_THAT(code, ::testing::ElementsAre(0, 0, 4));
  EXPECT_THAT(distance, ::testing::ElementsAre(0.25f, 1, 0));
}

TEST(VectorCodec, RefusesGroupsThatDoNotTile) {
  const VectorQuantiser good = made_quantiser(2, 8, 1, 3, 1);
  const auto message = [](const VectorQuantiser& q) -> std::string {
    try {
      make_codec(q);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(good), "");
  VectorQuantiser q = good;
  q.width[0] = 0;
  EXPECT_THAT(message(q), ::testing::HasSubstr("a group of 0 coordinates"));
  q = good;
  q.width[2] = 1;
  EXPECT_THAT(message(q), ::testing::HasSubstr("a group within another"));
  q = good;
  q.bits[0] = kMostGroupBits + 1;
  EXPECT_THAT(message(q), ::testing::HasSubstr("13 bits"));
  q = good;
  q.vectors.pop_back();
  EXPECT_THAT(message(q), ::testing::HasSubstr("numbers of vectors"));
  q = good;
  q.inverse.pop_back();
  EXPECT_THAT(message(q), ::testing::HasSubstr("numbers of a transform"));
}

TEST(VectorCodec, NamesValuesThatAreNotFinite) {
  const auto codec = make_codec(made_quantiser(2, 8, 2, 3, 1));
  std::vector<float> x(3 * 16, 1.0f);
  x[16 + 9] = std::numeric_limits<float>::quiet_NaN();
  try {
    codec->round_trip(x, x, 1, "layer 4 key", 10);
    FAIL() << "NaN was coded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("layer 4 key, token 11"));
  }
}

TEST(Matrix, IsThePlainSumForAnyShapeAndStep) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {4, 32, 7}, {9, 77, 33}, {3, 31, 100}, {64, 64, 64}}) {
    std::vector<float> a(m * k), b(k * n), out(m * (n + 3)), wanted(m * (n + 3));
    for (float& v : a) v = normal(random);
    for (float& v : b) v = normal(random);
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        float sum = 0;
        for (int l = 0; l < k; ++l) sum += a[l * m + i] * b[l * n + j];
        wanted[i * (n + 3) + j] = sum;
      }
    }
    multiply(m, n, k, {a.data(), 1, m}, {b.data(), n, 1}, out.data(), n + 3);
    EXPECT_TRUE(same_bits(out, wanted)) << m << " " << n << " " << k;
  }
}

}  // namespace
}  // namespace kvcc
