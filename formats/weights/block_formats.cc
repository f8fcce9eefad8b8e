#include "formats/weights/block_formats.h"

#include <cstring>
#include <string>

#include "formats/core/error.h"
#include "formats/layout/half.h"
#include "formats/weights/grid_blocks.h"
#include "formats/weights/low_bit_blocks.h"

namespace kvcc {
namespace {

using Byte = unsigned char;

constexpr uint32_t kNoGgml = UINT32_MAX;  ///< only in safetensors

constexpr BlockFormat kFormats[] = {
    {WeightType::f32, "F32", 0, 1, 4},
    {WeightType::f16, "F16", 1, 1, 2},
    {WeightType::bf16, "BF16", 30, 1, 2},
    {WeightType::q4_0, "Q4_0", 2, 32, 18},
    {WeightType::q4_1, "Q4_1", 3, 32, 20},
    {WeightType::q5_0, "Q5_0", 6, 32, 22},
    {WeightType::q5_1, "Q5_1", 7, 32, 24},
    {WeightType::q8_0, "Q8_0", 8, 32, 34},
    {WeightType::q1_0, "Q1_0", 41, 128, 18},
    {WeightType::q2_k, "Q2_K", 10, 256, 84},
    {WeightType::q3_k, "Q3_K", 11, 256, 110},
    {WeightType::q4_k, "Q4_K", 12, 256, 144},
    {WeightType::q5_k, "Q5_K", 13, 256, 176},
    {WeightType::q6_k, "Q6_K", 14, 256, 210},
    {WeightType::tq1_0, "TQ1_0", 34, 256, 54},
    {WeightType::tq2_0, "TQ2_0", 35, 256, 66},
    {WeightType::iq1_s, "IQ1_S", 19, 256, 50},
    {WeightType::iq1_m, "IQ1_M", 29, 256, 56},
    {WeightType::iq2_xxs, "IQ2_XXS", 16, 256, 66},
    {WeightType::iq2_xs, "IQ2_XS", 17, 256, 74},
    {WeightType::iq2_s, "IQ2_S", 22, 256, 82},
    {WeightType::iq3_xxs, "IQ3_XXS", 18, 256, 98},
    {WeightType::iq3_s, "IQ3_S", 21, 256, 110},
    {WeightType::iq4_nl, "IQ4_NL", 20, 32, 18},
    {WeightType::iq4_xs, "IQ4_XS", 23, 256, 136},
    {WeightType::mxfp4, "MXFP4", 39, 32, 17},
    {WeightType::nvfp4, "NVFP4", 40, 64, 36},
    {WeightType::fp8_block, "FP8", kNoGgml, 1, 1},
    {WeightType::gptq, "GPTQ4", kNoGgml, 8, 4},
    {WeightType::awq, "AWQ4", kNoGgml, 8, 4},
};

// The ggml types that kvcc does not read, so that a refusal can name them: of activations, and integers.
constexpr struct {
  uint32_t id;
  const char* name;
} kOtherTypes[] = {
    {9, "Q8_1"}, {15, "Q8_K"}, {24, "I8"}, {25, "I16"}, {26, "I32"}, {27, "I64"}, {28, "F64"},
};

float half_at(const Byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return half_to_float(bits);
}

// The 4-bit types keep value i in the low and value i + 16 in the high nibble of byte i; the 5-bit types add bit i of
// a 32-bit word. With a minimum the level counts from 0, without one it is centred.
template <int kHigh, bool kMinimum>
void nibble_block(const Byte* in, float* out) {
  const float scale = half_at(in);
  const float minimum = kMinimum ? half_at(in + 2) : 0.0f;
  in += kMinimum ? 4 : 2;
  uint32_t high = 0;
  if constexpr (kHigh == 1) {
    std::memcpy(&high, in, sizeof high);
    in += 4;
  }
  constexpr int kCentre = kMinimum ? 0 : (kHigh ? 16 : 8);
  for (int i = 0; i < 16; ++i) {
    const int low = (in[i] & 15) | static_cast<int>(((high >> i) & 1u) << 4);
    const int top = (in[i] >> 4) | static_cast<int>(((high >> (i + 16)) & 1u) << 4);
    const float a = scale * static_cast<float>(low - kCentre), b = scale * static_cast<float>(top - kCentre);
    out[i] = kMinimum ? a + minimum : a;
    out[i + 16] = kMinimum ? b + minimum : b;
  }
}

void q8_0_block(const Byte* in, float* out) {
  const float scale = half_at(in);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(in[2 + i])) * scale;
}

// Eight sub-blocks of 32 values; their 6-bit scales and minima share twelve bytes (lowest 4 or 6 bits first, the
// two top bits of sub-blocks 4 to 7 in the top bits of bytes 0 to 7).
struct SubScales {
  int scale[8], minimum[8];
  explicit SubScales(const Byte* p) {
    for (int i = 0; i < 4; ++i) {
      scale[i] = p[i] & 63;
      minimum[i] = p[4 + i] & 63;
      scale[4 + i] = (p[8 + i] & 15) | ((p[i] >> 2) & 48);
      minimum[4 + i] = (p[8 + i] >> 4) | ((p[4 + i] >> 2) & 48);
    }
  }
};

template <bool kFive>
void q45_k_block(const Byte* in, float* out) {
  const float d = half_at(in), dmin = half_at(in + 2);
  const SubScales sub(in + 4);
  const Byte* high = in + 16;
  const Byte* low = in + (kFive ? 48 : 16);
  for (int s = 0; s < 8; ++s) {
    const float scale = d * static_cast<float>(sub.scale[s]), minimum = dmin * static_cast<float>(sub.minimum[s]);
    const Byte* q = low + 32 * (s / 2);
    const int shift = 4 * (s & 1);
    for (int i = 0; i < 32; ++i) {
      int level = (q[i] >> shift) & 15;
      if constexpr (kFive) level |= ((high[i] >> s) & 1) << 4;
      out[32 * s + i] = scale * static_cast<float>(level) - minimum;
    }
  }
}

void q6_k_block(const Byte* in, float* out) {
  const Byte *low = in, *high = in + 128, *scales = in + 192;
  const float d = half_at(in + 208);
  // Half h covers 128 values: 64 low bytes (first the low, then the high nibbles), 32 bytes of two top bits.
  for (int g = 0; g < 8; ++g) {  // group of 32 values
    const int half = g / 4, part = g % 4;
    const Byte* ql = low + 64 * half + 32 * (part & 1);
    const Byte* qh = high + 32 * half;
    for (int j = 0; j < 2; ++j) {
      const float scale = d * static_cast<float>(static_cast<int8_t>(scales[2 * g + j]));
      for (int i = 16 * j; i < 16 * j + 16; ++i) {
        const int level = ((ql[i] >> (4 * (part / 2))) & 15) | (((qh[i] >> (2 * part)) & 3) << 4);
        out[32 * g + i] = scale * static_cast<float>(level - 32);
      }
    }
  }
}

template <typename Decode>
void each_block(const BlockFormat& format, const Byte* in, std::span<float> out, Decode decode) {
  const size_t blocks = out.size() / static_cast<size_t>(format.values);
  for (size_t b = 0; b < blocks; ++b) decode(in + b * format.bytes, out.data() + b * format.values);
}

}  // namespace

const BlockFormat& block_format(WeightType type) {
  for (const BlockFormat& format : kFormats) {
    if (format.type == type) return format;
  }
  __builtin_unreachable();  // the table has every value of the enumeration
}

const BlockFormat* block_format_of_ggml(uint32_t ggml_id) {
  for (const BlockFormat& format : kFormats) {
    if (format.ggml_id == ggml_id && ggml_id != kNoGgml) return &format;
  }
  return nullptr;
}

std::string ggml_type_name(uint32_t ggml_id) {
  if (const BlockFormat* format = block_format_of_ggml(ggml_id)) return format->name;
  for (const auto& other : kOtherTypes) {
    if (other.id == ggml_id) return other.name;
  }
  return "number " + std::to_string(ggml_id);
}

std::string known_weight_types() {
  std::string text;
  for (const std::string& name : weight_types(true)) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::vector<std::string> weight_types(bool gguf) {
  std::vector<std::string> names;
  for (const BlockFormat& format : kFormats) {
    const bool plain = format.type <= WeightType::bf16;
    if (gguf ? format.ggml_id != kNoGgml : plain || format.ggml_id == kNoGgml) names.push_back(format.name);
  }
  return names;
}

const char* weight_type_name(WeightType type) { return block_format(type).name; }

void dequantize(WeightType type, std::span<const std::byte> bytes, std::span<float> out) {
  const Byte* in = reinterpret_cast<const Byte*>(bytes.data());
  const BlockFormat& format = block_format(type);
  const auto pair = [in](size_t i) { return static_cast<uint16_t>(in[2 * i] | (in[2 * i + 1] << 8)); };
  switch (type) {
    case WeightType::f32:
      if (!out.empty()) std::memcpy(out.data(), in, out.size() * sizeof(float));
      break;
    case WeightType::f16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = half_to_float(pair(i));
      break;
    case WeightType::bf16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = bfloat16_to_float(pair(i));
      break;
    case WeightType::q4_0:
      return each_block(format, in, out, nibble_block<0, false>);
    case WeightType::q4_1:
      return each_block(format, in, out, nibble_block<0, true>);
    case WeightType::q5_0:
      return each_block(format, in, out, nibble_block<1, false>);
    case WeightType::q5_1:
      return each_block(format, in, out, nibble_block<1, true>);
    case WeightType::q8_0:
      return each_block(format, in, out, q8_0_block);
    case WeightType::q1_0:
      return each_block(format, in, out, q1_0_block);
    case WeightType::q4_k:
      return each_block(format, in, out, q45_k_block<false>);
    case WeightType::q5_k:
      return each_block(format, in, out, q45_k_block<true>);
    case WeightType::q6_k:
      return each_block(format, in, out, q6_k_block);
    case WeightType::q2_k:
      return each_block(format, in, out, q2_k_block);
    case WeightType::q3_k:
      return each_block(format, in, out, q3_k_block);
    case WeightType::tq1_0:
      return each_block(format, in, out, tq1_0_block);
    case WeightType::tq2_0:
      return each_block(format, in, out, tq2_0_block);
    case WeightType::iq1_s:
      return each_block(format, in, out, iq1_s_block);
    case WeightType::iq1_m:
      return each_block(format, in, out, iq1_m_block);
    case WeightType::iq2_xxs:
      return each_block(format, in, out, iq2_xxs_block);
    case WeightType::iq2_xs:
      return each_block(format, in, out, iq2_xs_block);
    case WeightType::iq2_s:
      return each_block(format, in, out, iq2_s_block);
    case WeightType::iq3_xxs:
      return each_block(format, in, out, iq3_xxs_block);
    case WeightType::iq3_s:
      return each_block(format, in, out, iq3_s_block);
    case WeightType::iq4_nl:
      return each_block(format, in, out, iq4_nl_block);
    case WeightType::iq4_xs:
      return each_block(format, in, out, iq4_xs_block);
    case WeightType::mxfp4:
      return each_block(format, in, out, mxfp4_block);
    case WeightType::nvfp4:
      return each_block(format, in, out, nvfp4_block);
    case WeightType::fp8_block:
    case WeightType::gptq:
    case WeightType::awq:
      throw Error(ErrorKind::failed, "dequantize", "packed weights", "their scales beside them");
  }
}

}  // namespace kvcc
