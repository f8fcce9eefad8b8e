// TurboQuant (METHODS.md 6.1, 6.2): each head's vector is rotated, scaled to length 1 and coded by Lloyd-Max levels;
// with a sketch, the signs of random projections of what is left are stored as well.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "formats/codec/coded.h"
#include "formats/codec/element.h"
#include "formats/codec/lloyd.h"
#include "formats/codec/online_codec.h"
#include "formats/codec/rotation.h"
#include "formats/codec/sketch.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

class LloydCodec : public TensorCodec {
 public:
  LloydCodec(const TensorScheme& s, int heads, int dim)
      : TensorCodec(heads, dim),
        bits_(s.bits),
        wide_bits_(s.wide_bits),
        wide_(s.wide > 0 ? std::max(1, static_cast<int>(dim * s.wide + 1e-6)) : 0),
        corrected_(s.norm == Norm::head_corrected),
        levels_(sphere_levels(s.bits, dim, s.rotation != Rotation::random)),
        rotation_(s.rotation, dim) {
    if (wide_ > 0) wide_levels_ = sphere_levels(s.wide_bits, dim, s.rotation != Rotation::random);
    if (s.sketch > 0) sketch_ = std::make_unique<Sketch>(dim, s.sketch * dim, Sketch::kGaussian);
  }

  std::vector<PartShape> parts(int64_t tokens) const override {
    const int64_t vectors = tokens * heads();
    std::vector<PartShape> parts{{"norm", 16, vectors}, {"codes", bits_, vectors * (dim() - wide_)}};
    if (wide_ > 0) parts.push_back({"wide codes", wide_bits_, vectors * wide_});
    if (sketch_) {
      parts.push_back({"rest norm", 16, vectors});
      parts.push_back({"signs", 1, vectors * sketch_->size()});
    }
    return parts;
  }

  void encode(std::span<const float> x, CodedTokens& out, const std::string& place, int64_t first) const override {
    const int64_t tokens = check_tokens(*this, x, place, first);
    start_parts(*this, tokens, out);
    std::vector<float> y(dim()), level(dim());
    for (int64_t v = 0; v < tokens * heads(); ++v) {
      const Where where{place, first + v / heads(), static_cast<int>(v % heads())};
      std::copy_n(x.data() + v * dim(), dim(), y.data());
      double squares = 0;
      for (const float e : y) squares += static_cast<double>(e) * e;
      const float norm = static_cast<float>(std::sqrt(squares));
      out[kNorm].values[v] = stored_half(norm, "a norm of", where);
      for (float& e : y) e /= norm + kLeastNorm;
      rotation_.apply(y.data());
      for (int c = 0; c < dim(); ++c) {
        const std::vector<float>& levels = c < wide_ ? wide_levels_ : levels_;
        const uint32_t code = nearest_level(levels.data(), static_cast<int>(levels.size()), y[c]);
        code_at(out, v, c) = static_cast<uint16_t>(code);
        level[c] = levels[code];
      }
      if (!sketch_) continue;
      CodedPart* rest = out.data() + (wide_ > 0 ? 3 : 2);
      for (int c = 0; c < dim(); ++c) y[c] -= level[c];
      rest[0].values[v] = stored_half(sketch_->norm(y.data()), "a norm of", where);
      sketch_->signs(y.data(), rest[1].values.data() + v * sketch_->size());
    }
  }

  void decode(const CodedTokens& in, std::span<float> out) const override {
    const int64_t tokens = check_rows(out.size(), out.size(), int64_t{heads()} * dim(), "decoded");
    check_parts(*this, tokens, in);
    std::vector<float> rest(dim());
    for (int64_t v = 0; v < tokens * heads(); ++v) {
      float* y = out.data() + v * dim();
      for (int c = 0; c < dim(); ++c) y[c] = (c < wide_ ? wide_levels_ : levels_)[code_at(in, v, c)];
      if (corrected_) {
        double squares = 0;
        for (int c = 0; c < dim(); ++c) squares += static_cast<double>(y[c]) * y[c];
        const float length = static_cast<float>(std::sqrt(squares));  // no level is 0
        for (int c = 0; c < dim(); ++c) y[c] /= length;
      }
      if (sketch_) {
        const CodedPart* part = in.data() + (wide_ > 0 ? 3 : 2);
        sketch_->estimate(part[1].values.data() + v * sketch_->size(), half_to_float(part[0].values[v]), rest.data());
        for (int c = 0; c < dim(); ++c) y[c] += rest[c];
      }
      rotation_.undo(y);
      const float norm = half_to_float(in[kNorm].values[v]);
      for (int c = 0; c < dim(); ++c) y[c] *= norm;
    }
  }

 private:
  enum Part { kNorm, kCodes, kWideCodes };
  static constexpr float kLeastNorm = 1e-8f;  // METHODS.md 6.4

  /// The code of channel c of vector v.
  template <typename Coded>
  std::conditional_t<std::is_const_v<Coded>, const uint16_t&, uint16_t&> code_at(Coded& coded, int64_t v, int c) const {
    return c < wide_ ? coded[kWideCodes].values[v * wide_ + c]
                     : coded[kCodes].values[v * (dim() - wide_) + (c - wide_)];
  }

  int bits_, wide_bits_, wide_;  ///< the first wide_ rotated channels have wide_bits_
  bool corrected_;
  std::vector<float> levels_, wide_levels_;
  HeadRotation rotation_;
  std::unique_ptr<const Sketch> sketch_;
};

}  // namespace

std::shared_ptr<const TensorCodec> make_lloyd_codec(const TensorScheme& scheme, int heads, int dim) {
  return std::make_shared<LloydCodec>(scheme, heads, dim);
}

}  // namespace kvcc
