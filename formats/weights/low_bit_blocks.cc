#include "formats/weights/low_bit_blocks.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats/layout/half.h"

namespace kvcc {
namespace {

/// Levels of IQ4_NL and IQ4_XS.
constexpr int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/// Twice the values of E2M1; there is no negative zero.
constexpr int8_t kE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float half_at(const BlockByte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return half_to_float(bits);
}

/// Low nibbles of `bytes` bytes, then their high ones.
void look_up(const BlockByte* in, int bytes, const int8_t* table, float scale, float* out) {
  for (int i = 0; i < bytes; ++i) {
    out[i] = scale * static_cast<float>(table[in[i] & 15]);
    out[i + bytes] = scale * static_cast<float>(table[in[i] >> 4]);
  }
}

/// Value 32 p + i of a half of 128 values has bits 2 p and 2 p + 1 of byte i.
int two_bits(const BlockByte* in, int value) {
  return (in[32 * (value / 128) + value % 32] >> (value % 128 / 32 * 2)) & 3;
}

}  // namespace

void q1_0_block(const BlockByte* in, float* out) {
  const float d = half_at(in);
  for (int i = 0; i < 128; ++i) out[i] = (in[2 + i / 8] >> (i % 8)) & 1 ? d : -d;
}

void q2_k_block(const BlockByte* in, float* out) {
  const BlockByte *scales = in, *levels = in + 16;
  const float d = half_at(in + 80), dmin = half_at(in + 82);
  for (int i = 0; i < 256; ++i) {
    const BlockByte sub = scales[i / 16];
    const float scale = d * static_cast<float>(sub & 15), minimum = dmin * static_cast<float>(sub >> 4);
    out[i] = scale * static_cast<float>(two_bits(levels, i)) - minimum;
  }
}

void q3_k_block(const BlockByte* in, float* out) {
  const BlockByte *high = in, *levels = in + 32, *scales = in + 96;
  const float d = half_at(in + 108);
  for (int i = 0; i < 256; ++i) {
    const int s = i / 16;  // its scale: four bits of one of eight bytes, two of one of four
    const int low = (scales[s % 8] >> (s / 8 * 4)) & 15, top = (scales[8 + s % 4] >> (s / 4 * 2)) & 3;
    const float scale = d * static_cast<float>((low | top << 4) - 32);
    const int above = (high[i % 32] >> (i / 32)) & 1;  // 1: no offset
    out[i] = scale * static_cast<float>(two_bits(levels, i) - (above ? 0 : 4));
  }
}

void tq1_0_block(const BlockByte* in, float* out) {
  constexpr unsigned kPowers[5] = {1, 3, 9, 27, 81};
  const float d = half_at(in + 52);
  // A byte is a fraction of 256 in base three; the n-th digit of `width` bytes lie side by side.
  const auto digits = [&](const BlockByte* bytes, int width, int count) {
    for (int n = 0; n < count; ++n) {
      for (int i = 0; i < width; ++i) {
        const unsigned rest = (bytes[i] * kPowers[n]) & 255u;
        *out++ = d * static_cast<float>(static_cast<int>(rest * 3 >> 8) - 1);
      }
    }
  };
  digits(in, 32, 5);
  digits(in + 32, 16, 5);
  digits(in + 48, 4, 4);
}

void tq2_0_block(const BlockByte* in, float* out) {
  const float d = half_at(in + 64);
  for (int i = 0; i < 256; ++i) out[i] = d * static_cast<float>(two_bits(in, i) - 1);
}

void iq4_nl_block(const BlockByte* in, float* out) { look_up(in + 2, 16, kNonLinear, half_at(in), out); }

void iq4_xs_block(const BlockByte* in, float* out) {
  const float d = half_at(in);
  const unsigned high = in[2] | in[3] << 8u;
  for (int s = 0; s < 8; ++s) {
    const int low = (in[4 + s / 2] >> (4 * (s % 2))) & 15, top = static_cast<int>(high >> (2 * s)) & 3;
    look_up(in + 8 + 16 * s, 16, kNonLinear, d * static_cast<float>((low | top << 4) - 32), out + 32 * s);
  }
}

void mxfp4_block(const BlockByte* in, float* out) {
  // Half of 2^(e - 127), as the table has twice the values; the two least are subnormal.
  const uint32_t e = in[0], bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
  look_up(in + 1, 16, kE2M1, std::bit_cast<float>(bits), out);
}

void nvfp4_block(const BlockByte* in, float* out) {
  for (int s = 0; s < 4; ++s) {
    // E4M3 without a sign, halved likewise; its NaN counts as zero.
    const int e = (in[s] >> 3) & 15;
    const auto mantissa = static_cast<float>(in[s] & 7);
    const float value = e == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1.0f + mantissa / 8.0f, e - 7);
    look_up(in + 4 + 8 * s, 8, kE2M1, in[s] == 0 || in[s] == 0x7f ? 0.0f : value * 0.5f, out + 16 * s);
  }
}

}  // namespace kvcc
