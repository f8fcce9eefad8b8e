// PolarQuant of Han et al. (METHODS.md 7.1 b): a randomly rotated head in blocks of 16 channels, each as its length and
// 15 angles: of 8 pairs of channels, then of pairs of those pairs' lengths, and so on.
#include <algorithm>
#include <array>
#include <cmath>

#include "formats/codec/coded.h"
#include "formats/codec/element.h"
#include "formats/codec/lloyd.h"
#include "formats/codec/online_codec.h"
#include "formats/codec/rotation.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr int kBlock = 16, kLevels = 4;
constexpr int kFirstBits = 4, kOtherBits = 2;

class AnglesCodec : public TensorCodec {
 public:
  AnglesCodec(const TensorScheme& s, int heads, int dim) : TensorCodec(heads, dim), rotation_(s.rotation, dim) {
    if (dim % kBlock != 0) {
      throw Error(ErrorKind::usage, "codec", "heads of " + std::to_string(dim) + " channels", "a multiple of 16");
    }
    for (int level = 2; level <= kLevels; ++level) levels_[level] = angle_levels(level);
  }

  std::vector<PartShape> parts(int64_t tokens) const override {
    const int64_t blocks = tokens * heads() * dim() / kBlock;
    return {{"radius", 16, blocks},
            {"angle 1", kFirstBits, blocks * 8},
            {"angle 2", kOtherBits, blocks * 4},
            {"angle 3", kOtherBits, blocks * 2},
            {"angle 4", kOtherBits, blocks}};
  }

  void encode(std::span<const float> x, CodedTokens& out, const std::string& place, int64_t first) const override {
    const int64_t tokens = check_tokens(*this, x, place, first);
    start_parts(*this, tokens, out);
    std::vector<float> head(dim());
    const int blocks = dim() / kBlock;
    for (int64_t v = 0; v < tokens * heads(); ++v) {
      std::copy_n(x.data() + v * dim(), dim(), head.data());
      rotation_.apply(head.data());
      for (int b = 0; b < blocks; ++b) {
        encode_block(head.data() + b * kBlock, v * blocks + b, out,
                     {place, first + v / heads(), static_cast<int>(v % heads())});
      }
    }
  }

  void decode(const CodedTokens& in, std::span<float> out) const override {
    const int64_t tokens = check_rows(out.size(), out.size(), int64_t{heads()} * dim(), "decoded");
    check_parts(*this, tokens, in);
    const int blocks = dim() / kBlock;
    for (int64_t v = 0; v < tokens * heads(); ++v) {
      float* head = out.data() + v * dim();
      for (int b = 0; b < blocks; ++b) decode_block(in, v * blocks + b, head + b * kBlock);
      rotation_.undo(head);
    }
  }

 private:
  void encode_block(const float* x, int64_t block, CodedTokens& out, const Where& where) const {
    std::array<double, kBlock> length{};
    std::copy_n(x, kBlock, length.begin());
    for (int level = 1, count = kBlock / 2; level <= kLevels; ++level, count /= 2) {
      for (int i = 0; i < count; ++i) {
        const double a = length[2 * i], b = length[2 * i + 1], angle = std::atan2(b, a);
        uint16_t& code = out[level].values[block * count + i];
        if (level == 1) {  // 16 equal cells of the whole circle
          const double cell = std::floor((angle < 0 ? angle + 2 * M_PI : angle) / (2 * M_PI) * 16);
          code = static_cast<uint16_t>(std::clamp(cell, 0.0, 15.0));
        } else {
          code = static_cast<uint16_t>(nearest_level(levels_[level].data(), 4, static_cast<float>(angle)));
        }
        length[i] = std::sqrt(a * a + b * b);
      }
    }
    out[0].values[block] = stored_half(static_cast<float>(length[0]), "a norm of", where);
  }

  void decode_block(const CodedTokens& in, int64_t block, float* x) const {
    std::array<double, kBlock> length{};
    length[0] = half_to_float(in[0].values[block]);
    for (int level = kLevels, count = 1; level >= 1; --level, count *= 2) {
      for (int i = count - 1; i >= 0; --i) {
        const uint16_t code = in[level].values[block * count + i];
        const double angle = level == 1 ? (code + 0.5) * (2 * M_PI / 16) : double{levels_[level][code]};
        const double whole = length[i];
        length[2 * i] = whole * std::cos(angle);
        length[2 * i + 1] = whole * std::sin(angle);
      }
    }
    for (int i = 0; i < kBlock; ++i) x[i] = static_cast<float>(length[i]);
  }

  HeadRotation rotation_;
  std::array<std::vector<float>, kLevels + 1> levels_;
};

}  // namespace

std::shared_ptr<const TensorCodec> make_angles_codec(const TensorScheme& scheme, int heads, int dim) {
  return std::make_shared<AnglesCodec>(scheme, heads, dim);
}

}  // namespace kvcc
