#include "formats/weights/grid_blocks.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "formats/layout/half.h"
#include "formats/weights/grids.h"

namespace kvcc {
namespace {

template <typename T>
T at(const BlockByte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

float half_at(const BlockByte* p) { return half_to_float(at<uint16_t>(p)); }

/// Nibble n, the low one of a byte first.
int nibble(const BlockByte* in, int n) { return (in[n / 2] >> (n % 2 * 4)) & 15; }

/// Seven signs are stored; the eighth makes their number even.
unsigned eight_signs(unsigned seven) { return seven | static_cast<unsigned>(std::popcount(seven) % 2) << 7; }

/// A point, negated where the bits of `signs` say so.
template <typename Point>
void signed_point(const Point& point, unsigned signs, float scale, float* out) {
  for (size_t i = 0; i < point.size(); ++i) {
    const float value = scale * static_cast<float>(point[i]);
    out[i] = (signs >> i) & 1u ? -value : value;
  }
}

/// A point of IQ1, all of whose coordinates are shifted.
void shifted_point(const Grid8& point, bool down, float scale, float* out) {
  for (size_t i = 0; i < point.size(); ++i) {
    out[i] = scale * (static_cast<float>(point[i]) + (down ? -0.125f : 0.125f));
  }
}

}  // namespace

// A block's values are in runs of eight, g of 32, each one point of eight coordinates or two of four.

void iq1_s_block(const BlockByte* in, float* out) {
  const float d = half_at(in);
  for (int g = 0; g < 32; ++g) {
    const unsigned high = at<uint16_t>(in + 34 + g / 4 * 2);  // of four runs: bits 8 to 10 of each index, scale, shift
    const float scale = d * static_cast<float>(2 * ((high >> 12) & 7) + 1);
    const unsigned index = in[2 + g] | ((high >> (3 * (g % 4))) & 7) << 8;
    shifted_point(kGridIq1[index], (high >> 15) != 0, scale, out + 8 * g);
  }
}

void iq1_m_block(const BlockByte* in, float* out) {
  const BlockByte *low = in, *high = in + 32, *scales = in + 48;
  unsigned d = 0;  // its nibbles are the top ones of the four words of scales
  for (int w = 0; w < 4; ++w) d |= static_cast<unsigned>(at<uint16_t>(scales + 2 * w) >> 12) << (4 * w);
  for (int g = 0; g < 32; ++g) {
    const int s = g / 2, top = nibble(high, g);
    const int sub = (at<uint16_t>(scales + s / 4 * 2) >> (3 * (s % 4))) & 7;
    const float scale = half_to_float(static_cast<uint16_t>(d)) * static_cast<float>(2 * sub + 1);
    shifted_point(kGridIq1[low[g] | (top & 7) << 8], (top & 8) != 0, scale, out + 8 * g);
  }
}

void iq2_xxs_block(const BlockByte* in, float* out) {
  const float d = half_at(in);
  for (int g = 0; g < 32; ++g) {
    const BlockByte* four = in + 2 + g / 4 * 8;  // indices of four runs, then their signs and scale
    const auto rest = at<uint32_t>(four + 4);
    const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.25f;
    signed_point(kGridIq2Xxs[four[g % 4]], eight_signs((rest >> (7 * (g % 4))) & 127), scale, out + 8 * g);
  }
}

void iq2_xs_block(const BlockByte* in, float* out) {
  const float d = half_at(in);
  for (int g = 0; g < 32; ++g) {
    const unsigned run = at<uint16_t>(in + 2 + 2 * g);
    const float scale = d * (0.5f + static_cast<float>(nibble(in + 66, g / 2))) * 0.25f;
    signed_point(kGridIq2Xs[run & 511], eight_signs(run >> 9), scale, out + 8 * g);
  }
}

void iq2_s_block(const BlockByte* in, float* out) {
  const BlockByte *low = in + 2, *signs = in + 34, *high = in + 66, *scales = in + 74;
  const float d = half_at(in);
  for (int g = 0; g < 32; ++g) {
    const float scale = d * (0.5f + static_cast<float>(nibble(scales, g / 2))) * 0.25f;
    const int index = low[g] | ((high[g / 4] >> (2 * (g % 4))) & 3) << 8;
    signed_point(kGridIq2S[index], signs[g], scale, out + 8 * g);
  }
}

void iq3_xxs_block(const BlockByte* in, float* out) {
  const BlockByte *low = in + 2, *words = in + 66;
  const float d = half_at(in);
  for (int g = 0; g < 32; ++g) {
    const auto rest = at<uint32_t>(words + g / 4 * 4);
    const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.5f;
    const unsigned signs = eight_signs((rest >> (7 * (g % 4))) & 127);
    signed_point(kGridIq3Xxs[low[2 * g]], signs, scale, out + 8 * g);
    signed_point(kGridIq3Xxs[low[2 * g + 1]], signs >> 4, scale, out + 8 * g + 4);
  }
}

void iq3_s_block(const BlockByte* in, float* out) {
  const BlockByte *low = in + 2, *high = in + 66, *signs = in + 74, *scales = in + 106;
  const float d = half_at(in);
  for (int g = 0; g < 32; ++g) {
    const float scale = d * static_cast<float>(1 + 2 * nibble(scales, g / 4));
    for (int half = 0; half < 2; ++half) {
      const int i = 2 * g + half, index = low[i] | ((high[i / 8] >> (i % 8)) & 1) << 8;
      signed_point(kGridIq3S[index], static_cast<unsigned>(signs[g]) >> (4 * half), scale, out + 8 * g + 4 * half);
    }
  }
}

}  // namespace kvcc
