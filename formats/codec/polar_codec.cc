// PolarQuant of Wu et al. (METHODS.md 7.1 a): channels i and i + D/2, the pair that RoPE turns, as radius and angle,
// both in ranges over the group's tokens whose cells are coded by their middles (RTN-MID).
#include <algorithm>
#include <cmath>

#include "formats/codec/coded.h"
#include "formats/codec/element.h"
#include "formats/codec/online_codec.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

class PolarCodec : public TensorCodec {
 public:
  PolarCodec(const TensorScheme& s, int heads, int dim) : TensorCodec(heads, dim, s.group), bits_(s.bits) {
    if (dim % 2 != 0) throw Error(ErrorKind::usage, "codec", "heads of " + std::to_string(dim) + " channels", "pairs");
  }

  std::vector<PartShape> parts(int64_t tokens) const override {
    const int64_t pairs = int64_t{heads()} * dim() / 2, ranges = tokens / block_tokens() * pairs;
    return {{"radius", bits_, tokens * pairs}, {"angle", bits_, tokens * pairs}, {"radius scale", 16, ranges},
            {"radius zero", 16, ranges},       {"angle scale", 16, ranges},      {"angle zero", 16, ranges}};
  }

  void encode(std::span<const float> x, CodedTokens& out, const std::string& place, int64_t first) const override {
    const int64_t tokens = check_tokens(*this, x, place, first);
    start_parts(*this, tokens, out);
    const int group = static_cast<int>(block_tokens());
    std::vector<float> radius(group), angle(group);
    over_pairs(tokens, [&](int64_t token, int head, int pair, int64_t index) {
      const Where where{place, first + token, head};
      for (int i = 0; i < group; ++i) {
        const float* vector = x.data() + ((token + i) * heads() + head) * dim();
        const double a = vector[pair], b = vector[pair + dim() / 2];
        radius[i] = static_cast<float>(std::sqrt(a * a + b * b));
        const double turned = std::atan2(b, a);
        angle[i] = static_cast<float>(turned < 0 ? turned + 2 * M_PI : turned);
      }
      encode_middle(radius, out, 0, index, where);
      encode_middle(angle, out, 1, index, where);
    });
  }

  void decode(const CodedTokens& in, std::span<float> out) const override {
    const int64_t n = int64_t{heads()} * dim();
    const int64_t tokens = check_rows(out.size(), out.size(), n * block_tokens(), "decoded") * block_tokens();
    check_parts(*this, tokens, in);
    const int group = static_cast<int>(block_tokens());
    std::vector<float> radius(group), angle(group);
    over_pairs(tokens, [&](int64_t token, int head, int pair, int64_t index) {
      decode_middle(in, 0, index, radius);
      decode_middle(in, 1, index, angle);
      for (int i = 0; i < group; ++i) {
        float* vector = out.data() + ((token + i) * heads() + head) * dim();
        vector[pair] = static_cast<float>(radius[i] * std::cos(static_cast<double>(angle[i])));
        vector[pair + dim() / 2] = static_cast<float>(radius[i] * std::sin(static_cast<double>(angle[i])));
      }
    });
  }

 private:
  template <typename Work>
  void over_pairs(int64_t tokens, const Work& work) const {
    int64_t index = 0;
    for (int64_t t = 0; t < tokens; t += block_tokens()) {
      for (int h = 0; h < heads(); ++h) {
        for (int pair = 0; pair < dim() / 2; ++pair) work(t, h, pair, index++);
      }
    }
  }

  /// which: 0 radius, 1 angle.
  void encode_middle(const std::vector<float>& x, CodedTokens& out, int which, int64_t index,
                     const Where& where) const {
    float low, high;
    extremes(x.data(), static_cast<int>(x.size()), low, high);
    uint16_t& scale = out[2 + 2 * which].values[index];
    uint16_t& zero = out[3 + 2 * which].values[index];
    scale = std::max(stored_half((high - low) / static_cast<float>(1 << bits_), "a range whose scale is", where),
                     kLeastHalfScale);
    zero = stored_half(low, "a least value of", where);
    const float stored_scale = half_to_float(scale), stored_low = half_to_float(zero);
    uint16_t* codes = out[which].values.data() + index * block_tokens();
    for (size_t i = 0; i < x.size(); ++i) {
      const float cell = std::floor((x[i] - stored_low) / stored_scale);
      codes[i] = static_cast<uint16_t>(std::clamp(cell, 0.0f, static_cast<float>((1 << bits_) - 1)));
    }
  }

  void decode_middle(const CodedTokens& in, int which, int64_t index, std::vector<float>& x) const {
    const float scale = half_to_float(in[2 + 2 * which].values[index]);
    const float low = half_to_float(in[3 + 2 * which].values[index]);
    const uint16_t* codes = in[which].values.data() + index * block_tokens();
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = fused_multiply_add(static_cast<float>(codes[i]) + 0.5f, scale, low);
    }
  }

  int bits_;
};

}  // namespace

std::shared_ptr<const TensorCodec> make_polar_codec(const TensorScheme& scheme, int heads, int dim) {
  return std::make_shared<PolarCodec>(scheme, heads, dim);
}

}  // namespace kvcc
