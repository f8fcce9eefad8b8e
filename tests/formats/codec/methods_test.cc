// The vectors and tables of METHODS.md (section 14 and the sections of each method) against the codecs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "formats/codec/fp8.h"
#include "formats/codec/lloyd.h"
#include "formats/codec/rotation.h"
#include "formats/codec/rtn.h"
#include "formats/codec/sketch.h"
#include "formats/codec/varn.h"
#include "tests/formats/codec/chain.h"

namespace kvcc {
namespace {

/// Section 14's generator.
class Normal {
 public:
  explicit Normal(uint32_t seed) : state_(seed) {}
  float operator()() {
    double sum = 0;
    for (int i = 0; i < 4; ++i) {
      state_ = 1664525u * state_ + 1013904223u;
      sum += state_ / 4294967296.0 - 0.5;
    }
    return static_cast<float>(std::sqrt(3.0) * sum);
  }

 private:
  uint32_t state_;
};

std::vector<float> group_of_eight() {
  Normal normal(777);
  std::vector<float> x(8);
  for (float& v : x) v = normal() + 0.4f;
  return x;
}

void expect_near(std::span<const float> found, const std::vector<float>& wanted, float tolerance) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], tolerance) << i;
}

struct Coded {
  std::vector<int> codes;
  std::vector<float> values;
  RtnRange range{};
};

Coded rtn(Rounding rounding, int bits, float clip, const std::vector<float>& x) {
  const RtnForm form{rounding, bits, clip};
  std::vector<uint16_t> codes(x.size());
  std::vector<float> values(x.size());
  const std::string place = "group";
  const RtnRange range = rtn_encode(form, x.data(), static_cast<int>(x.size()), codes.data(), {place, 0});
  rtn_decode(form, range, codes.data(), static_cast<int>(x.size()), values.data());
  return {{codes.begin(), codes.end()}, values, range};
}

constexpr float kHalfStep = 1e-3f;  ///< scales and zeros are stored in fp16 here, in f32 there

TEST(Methods, OneGroupInEveryFlavour) {
  const std::vector<float> x = group_of_eight();
  expect_near(x, {1.370006f, -.341495f, .706382f, .693996f, .206234f, 1.258502f, .527102f, 2.058404f}, 1e-6f);
  const Coded ends = rtn(Rounding::ends, 2, 1, x);
  EXPECT_EQ(ends.codes, (std::vector<int>{2, 0, 1, 1, 1, 2, 1, 3}));
  expect_near(ends.values, {1.25844f, -.34149f, .45847f, .45847f, .45847f, 1.25844f, .45847f, 2.05840f}, kHalfStep);

  const Coded inside = rtn(Rounding::zero_inside, 2, 1, x);
  EXPECT_EQ(inside.range.zero, 0);
  EXPECT_EQ(inside.codes, (std::vector<int>{2, 0, 1, 1, 0, 2, 1, 3}));
  expect_near(inside.values, {1.59993f, 0, .79997f, .79997f, 0, 1.59993f, .79997f, 2.39990f}, kHalfStep);
  expect_near(rtn(Rounding::zero_inside, 2, 0.95f, x).values,
              {1.51994f, 0, .75997f, .75997f, 0, 1.51994f, .75997f, 2.27990f}, kHalfStep);

  std::vector<float> raised = x;
  for (float& v : raised) v += 2;
  const Coded clamped = rtn(Rounding::zero_clamped, 2, 1, raised);
  EXPECT_EQ(clamped.range.zero, 0);
  EXPECT_EQ(clamped.codes, (std::vector<int>{3, 2, 3, 3, 3, 3, 3, 3}));
  EXPECT_NEAR(*std::max_element(clamped.values.begin(), clamped.values.end()), 2.3999f, kHalfStep);
  const Coded raised_inside = rtn(Rounding::zero_inside, 2, 1, raised);
  EXPECT_EQ(raised_inside.codes, (std::vector<int>{2, 1, 2, 2, 2, 2, 2, 3}));
  EXPECT_NEAR(half_to_float(raised_inside.range.scale), 1.3528f, kHalfStep);
  // Not forced to hold 0, the same group keeps its four levels.
  const Coded zero = rtn(Rounding::zero, 2, 1, raised);
  EXPECT_LT(half_to_float(zero.range.zero), 0);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(zero.values[i], raised[i], 0.81f) << "within a step";

  const Coded inverse = rtn(Rounding::inverse, 4, 1, x);
  EXPECT_EQ(inverse.codes, (std::vector<int>{11, 0, 7, 6, 3, 10, 5, 15}));
  EXPECT_EQ(half_to_float(inverse.range.scale), round_to_half(15 / (x[7] - x[1])));
  EXPECT_NEAR(inverse.values[7], x[7], 2e-3f);
}

TEST(Methods, SymmetricAndGgml) {
  const Coded symmetric = rtn(Rounding::symmetric, 4, 1, {-3.5f, 0, 1, 7, 6.4f});
  EXPECT_EQ(symmetric.codes, (std::vector<int>{4, 8, 9, 15, 14}));  // scale 1; -3.5 to even
  expect_near(symmetric.values, {-4, 0, 1, 7, 6}, 0);
  // Q4_0: scale from the value of greatest magnitude, which becomes code 0 whatever its sign.
  const Coded q4 = rtn(Rounding::ggml, 4, 1, {8, -8, 1, -0.4f, 4.5f});
  EXPECT_EQ(half_to_float(q4.range.scale), -1);
  EXPECT_EQ(q4.codes, (std::vector<int>{0, 15, 7, 8, 4}));  // 8 to -1 x 8, -8 saturates, 0.5 below 8.5 - 4.5
  const Coded q8 = rtn(Rounding::ggml, 8, 1, {127, -127, 2.5f, -2.5f, 0});
  EXPECT_EQ(q8.codes, (std::vector<int>{255, 1, 131, 125, 128}));  // halves away from zero
  expect_near(q8.values, {127, -127, 3, -3, 0}, 0);
}

/// Section 14's 8 x 8 tile.
std::vector<float> varn_tile(float amplitude) {
  Normal normal(12345);
  std::vector<float> tile(64);
  for (int r = 0; r < 8; ++r) {
    for (int c = 0; c < 8; ++c) {
      tile[r * 8 + c] =
          normal() * std::exp(0.8f * (static_cast<float>(r) - 3.5f) / 3.5f) * (c == 2 ? 6 : 1) * amplitude;
    }
  }
  return tile;
}

TEST(Methods, VarnTile) {
  const std::vector<float> tile = varn_tile(4);
  expect_near(std::span(tile).first(8),
              {-2.443706f, .207732f, 3.048405f, .620672f, 2.225496f, 1.806184f, -1.428233f, -2.303376f}, 2e-6f);
  EXPECT_NEAR(varn_imbalance(tile, 8, 8), 22.75694f, 1e-4f);
  const std::pair<int, float> imbalances[] = {{1, 3.58144f}, {2, 3.19928f}, {4, 3.17842f}, {8, 3.17842f}};
  for (const auto& [iterations, imbalance] : imbalances) {
    EXPECT_NEAR(varn(tile, 8, 8, iterations).imbalance, imbalance, 1e-4f) << iterations;
  }
  const VarnScales scales = varn(tile, 8, 8, 8);
  expect_near(scales.column, {6.06598f, 4.33307f, 35.82651f, 4.27788f, 4.99142f, 3.20959f, 4.58008f, 2.82065f}, 1e-4f);
  expect_near(scales.row, {.740818f, .740818f, .740818f, .740818f, .740818f, .740818f, .96790f, 1.53039f}, 1e-5f);

  const std::vector<float> small = varn_tile(0.1f);
  EXPECT_NEAR(varn(small, 8, 8, 1).imbalance, 22.09278f, 1e-3f);
  EXPECT_NEAR(varn(small, 8, 8, 2).imbalance, 16.68583f, 1e-3f);
  EXPECT_NEAR(varn(small, 8, 8, 8).imbalance, 16.68583f, 1e-3f);
  const VarnScales floored = varn(small, 8, 8, 8);
  for (int c = 0; c < 8; ++c) EXPECT_NEAR(floored.column[c], c == 2 ? 1.03298f : .740818f, 1e-5f);
  for (const float s : floored.row) EXPECT_NEAR(s, .740818f, 1e-6f);
}

TEST(Methods, VarnCodes) {
  // The tile as keys of one head of 8 channels: x [token, channel], unrotated.
  const std::vector<float> tile = varn_tile(4);
  std::vector<float> x(64);
  for (int c = 0; c < 8; ++c) {
    for (int t = 0; t < 8; ++t) x[t * 8 + c] = tile[c * 8 + t];
  }
  const Scheme scheme = parse_scheme("k=int2@postrope/channel:8,v=int2@token:head,k-norm=varn8:8,v-norm=varn8:8");
  const auto codec = make_codec(scheme.key, 0, 1, 8);
  const std::vector<float> decoded = expect_chain(*codec, x);
  CodedTokens coded;
  codec->encode(x, coded, "tile");
  std::string codes;
  for (const uint16_t code : coded[0].values) codes += static_cast<char>('0' + code);
  EXPECT_EQ(codes, "1222331020332132102233101022101323221020030011022130323023012010");
  EXPECT_EQ(pack(coded)[0], 169);
  EXPECT_EQ(pack(coded)[1], 31);
  std::vector<float> scale, zero;
  for (int r = 0; r < 8; ++r) {
    scale.push_back(half_to_float(coded[1].values[r]));
    zero.push_back(half_to_float(coded[2].values[r]));
  }
  expect_near(scale, {.459717f, .355469f, .557617f, .611816f, .587402f, .668457f, .859863f, 1.399414f}, 1e-6f);
  expect_near(zero, {-.816406f, -.524902f, -.572266f, -.608887f, -.845215f, -1.698242f, -1.333008f, -1.106445f}, 1e-6f);
  std::vector<float> row(8);
  double errors = 0, squares = 0;
  for (int t = 0; t < 8; ++t) row[t] = decoded[t * 8];
  expect_near(row, {-2.16382f, .44632f, 3.68967f, .44068f, 2.80932f, 1.80584f, -1.63297f, -2.30252f}, 3e-3f);
  for (int i = 0; i < 64; ++i) {
    errors += std::pow(static_cast<double>(decoded[i]) - x[i], 2);
    squares += std::pow(static_cast<double>(x[i]), 2);
  }
  EXPECT_NEAR(errors / squares, .06116, 2e-4);

  // The same tile as values, x [token, channel], gives the same codes: rows are tokens there.
  const auto values = make_codec(scheme.value, 0, 1, 8);
  values->encode(tile, coded, "tile");
  std::string value_codes;
  for (const uint16_t code : coded[0].values) value_codes += static_cast<char>('0' + code);
  EXPECT_EQ(value_codes, codes);
}

TEST(Methods, PreRmsTakesTheFloorAway) {
  // Divided by its root mean square, a tile of any amplitude is balanced alike (section 3.4).
  const Scheme scheme =
      parse_scheme("k=int2@postrope/channel:8,v=int2@token:head,k-norm=varn-rms8:8,v-norm=varn-rms8:8");
  CodedTokens large, small;
  make_codec(scheme.value, 0, 1, 8)->encode(varn_tile(4), large, "tile");
  make_codec(scheme.value, 0, 1, 8)->encode(varn_tile(0.0625f), small, "tile");
  EXPECT_EQ(large[0].values, small[0].values);
  const Scheme plain = parse_scheme("k=int2@postrope/channel:8,v=int2@token:head,k-norm=varn8:8,v-norm=varn8:8");
  make_codec(plain.value, 0, 1, 8)->encode(varn_tile(0.0625f), small, "tile");
  EXPECT_NE(large[0].values, small[0].values);
}

TEST(Methods, HadamardIsItsOwnInverse) {
  std::vector<float> x = {1, 0, 0, 0};
  hadamard(x.data(), 4, 4);
  EXPECT_EQ(x, (std::vector<float>{.5f, .5f, .5f, .5f}));
  x = {0, 0, 0, 1};
  hadamard(x.data(), 4, 4);
  EXPECT_EQ(x, (std::vector<float>{.5f, -.5f, -.5f, .5f}));
  std::vector<float> y = made_rows(1, 1, 192, 4), before = y;
  const HeadRotation blocks(Rotation::hadamard, 192);  // three blocks of 64
  blocks.apply(y.data());
  EXPECT_FALSE(same_bits(y, before));
  blocks.undo(y.data());
  expect_near(y, before, 1e-4f);
}

TEST(Methods, RandomRotationIsOrthogonal) {
  for (const int dim : {5, 64, 128}) {
    const std::vector<float> m = random_rotation(dim, 1);
    for (int a = 0; a < dim; ++a) {
      for (int b = 0; b <= a; ++b) {
        double dot = 0;
        for (int i = 0; i < dim; ++i) dot += static_cast<double>(m[a * dim + i]) * m[b * dim + i];
        ASSERT_NEAR(dot, a == b, 1e-6) << dim;
      }
    }
  }
  EXPECT_FALSE(same_bits(random_rotation(8, 1), random_rotation(8, 2)));
  std::vector<float> x = made_rows(1, 1, 64, 4), before = x;
  const HeadRotation rotation(Rotation::random, 64);
  rotation.apply(x.data());
  rotation.undo(x.data());
  expect_near(x, before, 1e-4f);
}

TEST(Methods, LloydMaxLevels) {
  const auto positive = [](int bits, int dim, bool gaussian) {
    std::vector<float> half;
    for (const float level : sphere_levels(bits, dim, gaussian)) {
      if (level > 0) half.push_back(level * std::sqrt(static_cast<float>(dim)));
    }
    return half;
  };
  // Fixed points of Lloyd's iteration with exact cell masses (scipy's beta distribution), times sqrt(D). The table of
  // METHODS.md 6.1 for finite D stopped short of them, by up to 1e-3.
  expect_near(positive(2, 64, false), {.45211895f, 1.4999748f}, 2e-6f);
  expect_near(positive(3, 64, false), {.24375343f, .75065811f, 1.32934287f, 2.11131145f}, 2e-6f);
  expect_near(positive(2, 128, false), {.45245325f, 1.50519298f}, 2e-6f);
  expect_near(positive(4, 128, false),
              {.12787315f, .38638092f, .65361895f, .93709702f, 1.24777046f, 1.60434266f, 2.04592538f, 2.68885926f},
              2e-6f);
  expect_near(positive(3, 256, false), {.2447598f, .75466737f, 1.34024731f, 2.14166864f}, 2e-6f);
  expect_near(positive(3, 512, false), {.24492706f, .75533624f, 1.3420766f, 2.14679724f}, 2e-6f);
  expect_near(positive(1, 64, false), {.80099f}, 2e-5f);
  expect_near(positive(4, 64, false), {.12724f, .38444f, .65010f, .93142f, 1.23890f, 1.59035f, 2.02284f, 2.64596f},
              1e-3f);
  expect_near(positive(1, 64, true), {.797885f}, 2e-6f);
  expect_near(positive(2, 64, true), {.452780f, 1.510418f}, 2e-6f);
  expect_near(positive(3, 64, true), {.245094f, .756005f, 1.343909f, 2.151946f}, 2e-6f);
  expect_near(positive(4, 64, true),
              {.128395f, .388048f, .656759f, .942340f, 1.256231f, 1.618046f, 2.069017f, 2.732590f}, 2e-6f);
  const std::vector<float> all = sphere_levels(4, 64, false);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  for (size_t j = 0; j < all.size(); ++j) EXPECT_EQ(all[j], -all[all.size() - 1 - j]);
}

TEST(Methods, TurboQuantOfOneVector) {
  const std::vector<float> x = group_of_eight();
  const char* text =
      "k=lloyd2@postrope/token:head,v=lloyd2@token:head,k-rotate=hadamard,v-rotate=hadamard,k-norm=head,"
      "v-norm=head-corrected";
  const Scheme scheme = parse_scheme(text);
  const auto codec = make_codec(scheme.key, 0, 1, 8);
  CodedTokens coded;
  codec->encode(x, coded, "vector");
  EXPECT_NEAR(half_to_float(coded[0].values[0]), 3.019166f, 1e-3f);
  EXPECT_EQ(coded[1].values, (std::vector<uint16_t>{3, 1, 1, 2, 1, 3, 2, 2}));
  expect_near(expect_chain(*codec, x), {1.14005f, -.34175f, .45654f, .34175f, -.34175f, 1.14005f, .34175f, 1.82356f},
              1e-3f);
  expect_near(expect_chain(*make_codec(scheme.value, 0, 1, 8), x),
              {1.33976f, -.40162f, .53651f, .40162f, -.40162f, 1.33976f, .40162f, 2.14300f}, 1e-3f);
}

/// ||x - decoded||^2 / ||x||^2 of many normal vectors.
double mean_error(const TensorCodec& codec, int vectors) {
  std::vector<float> x, out;
  for (const double v : normal_matrix(vectors, codec.dim(), 9)) x.push_back(static_cast<float>(v));
  out.resize(x.size());
  codec.round_trip(x, out, 2, "random");
  double errors = 0, squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    errors += (static_cast<double>(out[i]) - x[i]) * (out[i] - x[i]);
    squares += static_cast<double>(x[i]) * x[i];
  }
  return errors / squares;
}

TEST(Methods, TurboQuantReachesItsError) {  // 6.1, D = 128: D MSE .36089 .11600 .03397 .00931
  const double wanted[] = {.36089, .11600, .03397, .00931};
  for (int bits = 1; bits <= 4; ++bits) {
    TensorScheme tensor = parse_scheme("turboquant-2").key;
    tensor.bits = bits;
    EXPECT_NEAR(mean_error(*make_codec(tensor, 0, 1, 128), 2000), wanted[bits - 1], 0.02 * wanted[bits - 1]) << bits;
  }
}

TEST(Methods, RtnOfNormalGroups) {  // the table of 1.3: min-max ranges of 32, 64 and 128 normal numbers
  const double wanted[3][3] = {{.1541, .0281, .00611}, {.2026, .0370, .00803}, {.2502, .0458, .00995}};
  for (int g = 0; g < 3; ++g) {
    for (int bits = 2; bits <= 4; ++bits) {
      TensorScheme tensor = parse_scheme("kivi-2").value;
      tensor.bits = bits;
      tensor.group = 32 << g;
      EXPECT_NEAR(mean_error(*make_codec(tensor, 0, 1, 128), 4000), wanted[g][bits - 2], 0.02 * wanted[g][bits - 2])
          << (32 << g) << " at " << bits;
    }
  }
}

TEST(Methods, SketchesAreUnbiasedWithTheVarianceOfTheTheory) {
  // Variance of the estimate of <q, r>, averaged over Gaussian sketches: (pi / 2 - cos^2) / size |q|^2 |r|^2 (6.2).
  const int dim = 32, trials = 600;
  const std::vector<float> r = made_rows(1, 1, dim, 5), q = made_rows(1, 1, dim, 6);
  double qr = 0, qq = 0, rr = 0;
  for (int i = 0; i < dim; ++i) {
    qr += static_cast<double>(q[i]) * r[i];
    qq += static_cast<double>(q[i]) * q[i];
    rr += static_cast<double>(r[i]) * r[i];
  }
  for (const Sketch::Kind kind : {Sketch::kGaussian, Sketch::kOrthogonal}) {
    double sum = 0, squares = 0;
    for (int trial = 0; trial < trials; ++trial) {
      const Sketch sketch(dim, 2 * dim, kind, 100 + 10 * trial);
      std::vector<uint16_t> signs(2 * dim);
      std::vector<float> estimate(dim);
      sketch.signs(r.data(), signs.data());
      sketch.estimate(signs.data(), sketch.norm(r.data()), estimate.data());
      double product = 0;
      for (int i = 0; i < dim; ++i) product += static_cast<double>(q[i]) * estimate[i];
      sum += product;
      squares += product * product;
    }
    const double mean = sum / trials, variance = squares / trials - mean * mean;
    const double wanted = (M_PI_2 - qr * qr / qq / rr) / (2 * dim) * qq * rr;
    EXPECT_NEAR(mean, qr, 5 * std::sqrt(wanted / trials)) << kind;
    if (kind == Sketch::kGaussian) {
      EXPECT_NEAR(variance, wanted, 0.25 * wanted);
    } else {
      EXPECT_LT(variance, wanted) << "orthogonal rows do better";
    }
  }
}

TEST(Methods, KittyGivesBitsToTheGreatestChannels) {
  const Scheme scheme = parse_scheme("kitty");
  const auto codec = make_codec(scheme.key, 0, 1, 64);
  std::vector<float> x = made_rows(128, 1, 64, 7);
  const std::vector<int> great = {3, 10, 17, 24, 31, 38, 45, 63};
  for (int t = 0; t < 128; ++t) {
    for (const int c : great) x[t * 64 + c] += 100;
  }
  CodedTokens coded;
  codec->encode(x, coded, "made");
  EXPECT_STREQ(coded[0].name, "wide channel");
  EXPECT_EQ(std::vector<int>(coded[0].values.begin(), coded[0].values.end()), great);
  EXPECT_EQ(*std::max_element(coded[2].values.begin(), coded[2].values.end()), 15);
  EXPECT_EQ(*std::max_element(coded[1].values.begin(), coded[1].values.end()), 3);
  coded[0].values[1] = coded[0].values[0];
  std::vector<float> out(x.size());
  EXPECT_THROW(codec->decode(coded, out), std::exception);
}

TEST(Methods, OscarDividesTokensByOneNorm) {
  // Tokens that are multiples of one row differ only in their norm: in groups of them every channel is constant.
  const Scheme scheme = parse_scheme("oscar-norm");
  const std::vector<float> row = made_rows(1, 2, 64, 8);
  std::vector<float> x;
  for (int t = 0; t < 32; ++t) {
    for (const float v : row) x.push_back(v * static_cast<float>(1 + t % 5));
  }
  const std::vector<float> decoded = expect_chain(*make_codec(scheme.key, 0, 2, 64), x);
  float greatest = 0;
  for (const float v : x) greatest = std::max(greatest, std::fabs(v));
  expect_near(decoded, x, greatest * 2e-3f);
}

TEST(Methods, PolarPairs) {
  // One pair whose angle turns and whose radius does not.
  std::vector<float> x;
  for (int t = 0; t < 128; ++t) {
    const double angle = 2 * M_PI * t / 128;
    x.push_back(static_cast<float>(3 * std::cos(angle)));
    x.push_back(static_cast<float>(3 * std::sin(angle)));
  }
  const auto codec = make_codec(parse_scheme("polarquant-a").key, 0, 1, 2);
  CodedTokens coded;
  codec->encode(x, coded, "made");
  for (int t = 0; t < 128; ++t) EXPECT_NEAR(coded[1].values[t], t / 8, 1);
  const std::vector<float> decoded = expect_chain(*codec, x);
  for (int t = 0; t < 128; ++t) {
    EXPECT_NEAR(std::hypot(decoded[2 * t], decoded[2 * t + 1]), 3, 2e-3);
    EXPECT_LT(std::hypot(decoded[2 * t] - x[2 * t], decoded[2 * t + 1] - x[2 * t + 1]), 3 * 2 * M_PI / 32 * 1.05);
  }
}

TEST(Methods, PolarMiddleLevels) {  // RTN-MID of section 14, the group as radii of one pair
  const std::vector<float> group = group_of_eight();
  std::vector<float> x;
  for (const float v : group) {
    x.push_back(v + 1);  // radii are positive
    x.push_back(0);
  }
  TensorScheme tensor = parse_scheme("polarquant-a").key;
  tensor.bits = 2;
  tensor.group = 8;
  const auto codec = make_codec(tensor, 0, 1, 2);
  CodedTokens coded;
  codec->encode(x, coded, "made");
  EXPECT_EQ(coded[0].values, (std::vector<uint16_t>{2, 0, 1, 1, 0, 2, 1, 3}));
  const std::vector<float> decoded = expect_chain(*codec, x);
  const std::vector<float> wanted = {1.15844f, -.04151f, .55847f, .55847f, -.04151f, 1.15844f, .55847f, 1.75842f};
  for (int t = 0; t < 8; ++t) EXPECT_NEAR(decoded[2 * t], wanted[t] + 1, 2e-3f);
}

TEST(Methods, RecursiveAngles) {
  for (const int level : {2, 3, 4}) {
    const std::vector<float> levels = angle_levels(level);
    EXPECT_TRUE(std::is_sorted(levels.begin(), levels.end()));
    EXPECT_NEAR(levels[0] + levels[3], M_PI_2, 1e-6);
    // Each is the centroid of its cell.
    double mass = 0, moment = 0;
    const double high = (levels[0] + levels[1]) / 2.0;
    for (int i = 0; i < 100000; ++i) {
      const double t = (i + 0.5) / 100000 * high, f = std::pow(std::sin(2 * t), (1 << (level - 1)) - 1);
      mass += f;
      moment += f * t;
    }
    EXPECT_NEAR(levels[0], moment / mass, 1e-5) << level;
  }
  // Of random vectors, the error is that of the angles: between the 3- and the 4-bit scalar optimum.
  const double error = mean_error(*make_codec(parse_scheme("polarquant-b").key, 0, 1, 64), 2000);
  EXPECT_LT(error, 0.06);
  EXPECT_GT(error, 0.0095);
}

TEST(Fp8, CodesAreTheNearestOfAll) {
  EXPECT_EQ(fp8_to_float(0x08), 0x1p-6f);
  EXPECT_EQ(fp8_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(fp8_to_float(0x7e), 448.0f);
  EXPECT_EQ(fp8_to_float(0xb8), -1.0f);
  EXPECT_TRUE(std::isnan(fp8_to_float(0x7f)));
  for (int code = 0; code < 0x7f; ++code) {
    EXPECT_EQ(float_to_fp8(fp8_to_float(static_cast<uint8_t>(code))), code);
    EXPECT_EQ(float_to_fp8(-fp8_to_float(static_cast<uint8_t>(code))), code | 0x80);
    if (code == 0x7e) continue;
    const float here = fp8_to_float(static_cast<uint8_t>(code)), next = fp8_to_float(static_cast<uint8_t>(code + 1));
    const float middle = (here + next) / 2;
    EXPECT_EQ(float_to_fp8(middle), code % 2 == 0 ? code : code + 1) << "ties to even";
    EXPECT_EQ(float_to_fp8(std::nextafter(middle, 1000.0f)), code + 1);
    EXPECT_EQ(float_to_fp8(std::nextafter(middle, 0.0f)), code);
  }
  EXPECT_EQ(float_to_fp8(1e9f), 0x7e);
  EXPECT_EQ(float_to_fp8(-1e9f), 0xfe);
}

}  // namespace
}  // namespace kvcc
