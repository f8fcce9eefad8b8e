// The quantisers of an artifact, and full precision, as codecs.
#include <algorithm>
#include <utility>

#include "formats/codec/checks.h"
#include "formats/codec/coded.h"
#include "formats/codec/online_codec.h"
#include "formats/codec/rows.h"
#include "formats/codec/tensor_codec.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

/// Codes part h: [T, D] of head h, as wide as the head's codes are.
void add_code_parts(const LevelTable& table, int dim, int64_t tokens, std::vector<PartShape>& parts) {
  for (int h = 0; h < table.heads; ++h) parts.push_back({"codes", table.bits[h], tokens * dim});
}

/// Codes [T, D] of every head, then what `Quantiser` has beside them.
template <typename Quantiser>
class QuantiserCodec : public TensorCodec {
 public:
  static constexpr bool kStatic = std::is_same_v<Quantiser, ChannelQuantiser>;

  explicit QuantiserCodec(Quantiser q) : TensorCodec(q.heads, q.dim), q_(std::move(q)) { check_quantiser(q_, "codec"); }

  std::vector<PartShape> parts(int64_t tokens) const override {
    std::vector<PartShape> parts;
    add_code_parts(q_.table, q_.dim, tokens, parts);
    if constexpr (kStatic) {
      if (q_.tail > 0) {
        parts.push_back({"column", 16, tokens * 2 * q_.tail});
        parts.push_back({"value", 16, tokens * 2 * q_.tail});
        return parts;
      }
      if (q_.threshold_lower.empty()) return parts;
      parts.push_back({"outliers", 16, tokens});  // of each token
      parts.push_back({"column", 16, kCountedBefore});
      parts.push_back({"value", 16, kCountedBefore});
    } else {
      parts.push_back({"scale", 16, tokens});
      parts.push_back({"zero", 16, tokens});
      if (q_.tail == 0) return parts;
      parts.push_back({"column", 16, tokens * 2 * q_.tail});
      parts.push_back({"value", 16, tokens * 2 * q_.tail});
    }
    return parts;
  }

  void encode(std::span<const float> x, CodedTokens& out, const std::string& place, int64_t first) const override {
    const int64_t n = int64_t{heads()} * dim(), tokens = check_rows(x.size(), x.size(), n, place);
    start_parts(*this, tokens, out);
    for (CodedPart& part : out) part.values.clear();
    EncodedToken token;
    for (int64_t t = 0; t < tokens; ++t) {
      kvcc::encode(q_, x.subspan(t * n, n), token, token_place(place, first + t));
      for (int i = 0; i < n; ++i) out[i / dim()].values.push_back(token.codes[i]);
      CodedPart* part = out.data() + heads();
      if constexpr (!kStatic) {
        (part++)->values.push_back(token.range.scale);
        (part++)->values.push_back(token.range.zero);
      } else if (!q_.threshold_lower.empty() && q_.tail == 0) {
        (part++)->values.push_back(static_cast<uint16_t>(token.sparse.size()));
      }
      for (const SparseEntry& entry : token.sparse) {
        part[0].values.push_back(entry.column);
        part[1].values.push_back(entry.value);
      }
    }
  }

  void decode(const CodedTokens& in, std::span<float> out) const override {
    const int64_t n = int64_t{heads()} * dim(), tokens = check_rows(out.size(), out.size(), n, "decoded");
    EncodedToken token;
    token.codes.resize(n);
    size_t entry = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int i = 0; i < n; ++i) token.codes[i] = static_cast<uint8_t>(in[i / dim()].values[t * dim() + i % dim()]);
      const CodedPart* part = in.data() + heads();
      size_t count = 0;
      if constexpr (!kStatic) {
        token.range = {part[0].values[t], part[1].values[t]};
        part += 2;
        count = 2 * q_.tail;
      } else if (q_.tail > 0) {
        count = 2 * q_.tail;
      } else if (!q_.threshold_lower.empty()) {
        count = (part++)->values[t];
      }
      token.sparse.clear();
      for (const size_t end = entry + count; entry < end; ++entry) {
        token.sparse.push_back({part[0].values[entry], part[1].values[entry]});
      }
      kvcc::decode(q_, token, out.subspan(t * n, n));
    }
  }

  int64_t round_trip(std::span<const float> x, std::span<float> out, int threads, const std::string& place,
                     int64_t first) const override {
    return kvcc::round_trip(q_, x, out, threads, place, first);
  }

 private:
  Quantiser q_;
};

class HalfCodec : public TensorCodec {
 public:
  using TensorCodec::TensorCodec;
  std::vector<PartShape> parts(int64_t tokens) const override { return {{"value", 16, tokens * heads() * dim()}}; }
  void encode(std::span<const float> x, CodedTokens& out, const std::string& place, int64_t) const override {
    std::vector<float> rounded(x.size());
    round_to_record(x, rounded, place);
    start_parts(*this, check_rows(x.size(), x.size(), int64_t{heads()} * dim(), place), out);
    std::transform(rounded.begin(), rounded.end(), out[0].values.begin(), float_to_half);
  }
  void decode(const CodedTokens& in, std::span<float> out) const override {
    std::transform(in[0].values.begin(), in[0].values.end(), out.begin(), half_to_float);
  }
  int64_t round_trip(std::span<const float> x, std::span<float> out, int, const std::string& place,
                     int64_t) const override {
    round_to_record(x, out, place);
    return 0;
  }
};

}  // namespace

std::shared_ptr<const TensorCodec> make_codec(ChannelQuantiser quantiser) {
  return std::make_shared<QuantiserCodec<ChannelQuantiser>>(std::move(quantiser));
}
std::shared_ptr<const TensorCodec> make_codec(TokenQuantiser quantiser) {
  return std::make_shared<QuantiserCodec<TokenQuantiser>>(std::move(quantiser));
}
std::shared_ptr<const TensorCodec> make_half_codec(int heads, int dim) {
  return std::make_shared<HalfCodec>(heads, dim);
}

std::shared_ptr<const TensorCodec> make_codec(const TensorScheme& scheme, double sparse, int heads, int dim) {
  switch (scheme.grid) {
    case Grid::full:
      return make_half_codec(heads, dim);
    case Grid::lloyd:
      return make_lloyd_codec(scheme, heads, dim);
    case Grid::floating:
      return make_fp8_codec(heads, dim);
    case Grid::polar:
      return make_polar_codec(scheme, heads, dim);
    case Grid::angles:
      return make_angles_codec(scheme, heads, dim);
    case Grid::sign:
      return make_sign_codec(scheme, heads, dim);
    default:
      break;
  }
  if (scheme.norm == Norm::varn || scheme.norm == Norm::varn_rms) return make_varn_codec(scheme, heads, dim);
  if (!scheme.is_plain()) return make_group_codec(scheme, heads, dim);
  if (scheme.axis != Axis::token || scheme.grid == Grid::nuq) {
    throw Error(ErrorKind::usage, "codec", "a scheme that needs statistics of the model", "a codebook");
  }
  const std::vector<float> levels =
      scheme.grid == Grid::integer ? integer_levels(scheme.bits) : normal_float_levels(scheme.bits);
  LevelTable table{
      heads, static_cast<int>(levels.size()), {}, std::vector<uint8_t>(heads, static_cast<uint8_t>(scheme.bits))};
  for (int h = 0; h < heads; ++h) table.levels.insert(table.levels.end(), levels.begin(), levels.end());
  return make_codec(TokenQuantiser{heads, dim, std::move(table), outliers_per_tail(sparse, heads * dim)});
}

}  // namespace kvcc
