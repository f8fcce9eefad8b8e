// QJL (METHODS.md 6.6): a key as its length and the signs of random projections. The channels of greatest length over
// a group of tokens have a length and a sketch of their own, of half the size.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/codec/coded.h"
#include "formats/codec/online_codec.h"
#include "formats/codec/sketch.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

class SignCodec : public TensorCodec {
 public:
  SignCodec(const TensorScheme& s, int heads, int dim)
      : TensorCodec(heads, dim, s.group),
        apart_(s.wide > 0 ? std::max(1, static_cast<int>(dim * s.wide + 1e-6)) : 0),
        sketch_(dim, s.sketch * dim, Sketch::kOrthogonal) {
    if (apart_ > 0) own_ = std::make_unique<Sketch>(dim, (s.sketch + 1) / 2 * dim, Sketch::kOrthogonal, kOwnSeed);
  }

  std::vector<PartShape> parts(int64_t tokens) const override {
    const int64_t vectors = tokens * heads();
    std::vector<PartShape> parts{{"norm", 16, vectors}, {"signs", 1, vectors * sketch_.size()}};
    if (apart_ == 0) return parts;
    parts.push_back({"wide channel", index_bits(dim()), tokens / block_tokens() * heads() * apart_});
    parts.push_back({"wide norm", 16, vectors});
    parts.push_back({"wide signs", 1, vectors * own_->size()});
    return parts;
  }

  void encode(std::span<const float> x, CodedTokens& out, const std::string& place, int64_t first) const override {
    const int64_t tokens = check_tokens(*this, x, place, first);
    start_parts(*this, tokens, out);
    std::vector<float> inner(dim()), outer(dim());
    for (int64_t t = 0, tile = 0; t < tokens; t += block_tokens()) {
      for (int h = 0; h < heads(); ++h, ++tile) {
        const std::vector<int> apart = greatest(x, t, h);
        for (int i = 0; i < apart_; ++i) out[kChannel].values[tile * apart_ + i] = static_cast<uint16_t>(apart[i]);
        for (int64_t b = t; b < t + block_tokens(); ++b) {
          const int64_t v = b * heads() + h;
          std::copy_n(x.data() + v * dim(), dim(), inner.data());
          std::fill(outer.begin(), outer.end(), 0.0f);
          for (const int c : apart) std::swap(inner[c], outer[c]);
          const Where where{place, first + b, h};
          out[kNorm].values[v] = stored_half(sketch_.norm(inner.data()), "a norm of", where);
          sketch_.signs(inner.data(), out[kSigns].values.data() + v * sketch_.size());
          if (apart_ == 0) continue;
          out[kOwnNorm].values[v] = stored_half(own_->norm(outer.data()), "a norm of", where);
          own_->signs(outer.data(), out[kOwnSigns].values.data() + v * own_->size());
        }
      }
    }
  }

  void decode(const CodedTokens& in, std::span<float> out) const override {
    const int64_t n = int64_t{heads()} * dim();
    const int64_t tokens = check_rows(out.size(), out.size(), n * block_tokens(), "decoded") * block_tokens();
    check_parts(*this, tokens, in);
    std::vector<float> outer(dim());
    for (int64_t t = 0, tile = 0; t < tokens; t += block_tokens()) {
      for (int h = 0; h < heads(); ++h, ++tile) {
        for (int64_t b = t; b < t + block_tokens(); ++b) {
          const int64_t v = b * heads() + h;
          float* to = out.data() + v * dim();
          sketch_.estimate(in[kSigns].values.data() + v * sketch_.size(), half_to_float(in[kNorm].values[v]), to);
          if (apart_ == 0) continue;
          own_->estimate(in[kOwnSigns].values.data() + v * own_->size(), half_to_float(in[kOwnNorm].values[v]),
                         outer.data());
          for (int i = 0; i < apart_; ++i) {
            const int c = in[kChannel].values[tile * apart_ + i];
            if (c >= dim()) {
              throw Error(ErrorKind::failed, "coded tokens", "channel " + std::to_string(c), std::to_string(dim()));
            }
            to[c] = outer[c];  // each part is known to be 0 in the other's channels
          }
        }
      }
    }
  }

 private:
  enum Part { kNorm, kSigns, kChannel, kOwnNorm, kOwnSigns };
  static constexpr uint64_t kOwnSeed = 1000;

  std::vector<int> greatest(std::span<const float> x, int64_t token, int head) const {
    if (apart_ == 0) return {};
    std::vector<double> squares(dim());
    for (int64_t t = token; t < token + block_tokens(); ++t) {
      const float* vector = x.data() + (t * heads() + head) * dim();
      for (int c = 0; c < dim(); ++c) squares[c] += static_cast<double>(vector[c]) * vector[c];
    }
    std::vector<int> order(dim());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return squares[a] > squares[b]; });
    order.resize(apart_);
    std::sort(order.begin(), order.end());
    return order;
  }

  int apart_;
  Sketch sketch_;
  std::unique_ptr<const Sketch> own_;
};

}  // namespace

std::shared_ptr<const TensorCodec> make_sign_codec(const TensorScheme& scheme, int heads, int dim) {
  return std::make_shared<SignCodec>(scheme, heads, dim);
}

}  // namespace kvcc
