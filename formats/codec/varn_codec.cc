// KVarN (METHODS.md 3): tiles of tokens, rotated, divided by the scales of variance normalisation, each row coded with
// a range of its own. Rows are a tile's channels for keys and its tokens for values.
#include <algorithm>
#include <cmath>

#include "formats/codec/clones.h"
#include "formats/codec/coded.h"
#include "formats/codec/element.h"
#include "formats/codec/fp8.h"
#include "formats/codec/online_codec.h"
#include "formats/codec/rotation.h"
#include "formats/codec/varn.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

KVCC_CLONES void codes_of(const float* x, int n, float low, float scale, float most, uint16_t* codes) {
  for (int i = 0; i < n; ++i) {
    float y = (x[i] - low) / scale;
    y = y > 0.0f ? y : 0.0f;
    y = y < most ? y : most;
    codes[i] = static_cast<uint16_t>(static_cast<int>(std::rint(y)));
  }
}

class VarnCodec : public TensorCodec {
 public:
  VarnCodec(const TensorScheme& s, int heads, int dim)
      : TensorCodec(heads, dim, s.tile),
        channel_rows_(s.axis == Axis::channel_group),
        rms_(s.norm == Norm::varn_rms),
        half_scales_(s.half_scales),
        bits_(s.bits),
        iterations_(s.iterations),
        rows_(channel_rows_ ? dim : s.tile),
        columns_(channel_rows_ ? s.tile : dim),
        rotation_(s.rotation, dim) {
    if (dim < 2) throw Error(ErrorKind::usage, "codec", "heads of 1 channel", "at least 2, for a standard deviation");
  }

  std::vector<PartShape> parts(int64_t tokens) const override {
    const int64_t tiles = tokens / block_tokens() * heads();
    const int scale_bits = half_scales_ ? 16 : 8;
    return {{"codes", bits_, tokens * heads() * dim()},
            {"row scale", scale_bits, tiles * rows_},
            {"row zero", 16, tiles * rows_},
            {"column scale", scale_bits, tiles * columns_}};
  }

  void encode(std::span<const float> x, CodedTokens& out, const std::string& place, int64_t first) const override {
    const int64_t tokens = check_tokens(*this, x, place, first);
    start_parts(*this, tokens, out);
    std::vector<float> tile(static_cast<size_t>(rows_) * columns_), head(dim());
    int64_t index = 0;
    for (int64_t t = 0; t < tokens; t += block_tokens()) {
      for (int h = 0; h < heads(); ++h, ++index) {
        for (int64_t b = 0; b < block_tokens(); ++b) {
          std::copy_n(x.data() + ((t + b) * heads() + h) * dim(), dim(), head.data());
          rotation_.apply(head.data());
          for (int c = 0; c < dim(); ++c) tile[at(static_cast<int>(b), c)] = head[c];
        }
        encode_tile(tile, index, out, {place, first + t, h});
      }
    }
  }

  void decode(const CodedTokens& in, std::span<float> out) const override {
    const int64_t n = int64_t{heads()} * dim();
    const int64_t tokens = check_rows(out.size(), out.size(), n * block_tokens(), "decoded") * block_tokens();
    check_parts(*this, tokens, in);
    std::vector<float> tile(static_cast<size_t>(rows_) * columns_);
    int64_t index = 0;
    for (int64_t t = 0; t < tokens; t += block_tokens()) {
      for (int h = 0; h < heads(); ++h, ++index) {
        decode_tile(in, index, tile);
        for (int64_t b = 0; b < block_tokens(); ++b) {
          float* head = out.data() + ((t + b) * heads() + h) * dim();
          for (int c = 0; c < dim(); ++c) head[c] = tile[at(static_cast<int>(b), c)];
          rotation_.undo(head);
        }
      }
    }
  }

 private:
  enum Part { kCodes, kRowScale, kRowZero, kColumnScale };

  size_t at(int token, int channel) const {
    return channel_rows_ ? static_cast<size_t>(channel) * columns_ + token
                         : static_cast<size_t>(token) * columns_ + channel;
  }
  uint16_t stored_scale(float scale, const Where& where) const {
    if (half_scales_) return stored_half(scale, "a scale of", where);
    return std::max<uint16_t>(float_to_fp8(scale), 1);  // never 0, which no value could be divided by
  }
  float scale_of(uint16_t stored) const {
    return half_scales_ ? half_to_float(stored) : fp8_to_float(static_cast<uint8_t>(stored));
  }

  /// `tile` is overwritten.
  void encode_tile(std::vector<float>& tile, int64_t index, CodedTokens& out, const Where& where) const {
    float rms = 1.0f;
    if (rms_) {
      double squares = 0;
      for (const float v : tile) squares += static_cast<double>(v) * v;
      rms = static_cast<float>(std::sqrt(squares / static_cast<double>(tile.size())));
      if (rms == 0.0f) rms = 1.0f;
      for (float& v : tile) v /= rms;
    }
    const VarnScales scales = varn(tile, rows_, columns_, iterations_);
    uint16_t* column_scale = out[kColumnScale].values.data() + index * columns_;
    std::vector<float> column = scales.column;
    for (int c = 0; c < columns_; ++c) {
      column_scale[c] = stored_scale(column[c], where);
      // FP8 is so coarse that codes must be found with what is stored; fp16 is not, and KVarN finds them before.
      if (!half_scales_) column[c] = scale_of(column_scale[c]);
    }
    const float most = static_cast<float>((1 << bits_) - 1);
    for (int r = 0; r < rows_; ++r) {
      float* row = tile.data() + static_cast<size_t>(r) * columns_;
      const float row_scale = half_scales_ ? scales.row[r] : 1.0f;
      for (int c = 0; c < columns_; ++c) row[c] = row[c] / column[c] / row_scale;
      float low, high;
      extremes(row, columns_, low, high);
      float step = std::max((high - low) / most, 1e-10f);
      uint16_t& scale = out[kRowScale].values[index * rows_ + r];
      uint16_t& zero = out[kRowZero].values[index * rows_ + r];
      scale = stored_scale(row_scale * step * rms, where);
      zero = stored_half(row_scale * low * rms, "a least value of", where);
      if (!half_scales_) {
        step = scale_of(scale) / rms;
        low = half_to_float(zero) / rms;
      }
      codes_of(row, columns_, low, step, most, out[kCodes].values.data() + (index * rows_ + r) * columns_);
    }
  }

  void decode_tile(const CodedTokens& in, int64_t index, std::vector<float>& tile) const {
    std::vector<float> column(columns_);
    for (int c = 0; c < columns_; ++c) column[c] = scale_of(in[kColumnScale].values[index * columns_ + c]);
    for (int r = 0; r < rows_; ++r) {
      const float scale = scale_of(in[kRowScale].values[index * rows_ + r]);
      const float zero = half_to_float(in[kRowZero].values[index * rows_ + r]);
      decode_row(in[kCodes].values.data() + (index * rows_ + r) * columns_, scale, zero, column.data(), columns_,
                 tile.data() + static_cast<size_t>(r) * columns_);
    }
  }

  KVCC_CLONES static void decode_row(const uint16_t* codes, float scale, float zero, const float* column, int n,
                                     float* out) {
    for (int c = 0; c < n; ++c) out[c] = fused_multiply_add(static_cast<float>(codes[c]), scale, zero) * column[c];
  }

  bool channel_rows_, rms_, half_scales_;
  int bits_, iterations_, rows_, columns_;
  HeadRotation rotation_;
};

}  // namespace

std::shared_ptr<const TensorCodec> make_varn_codec(const TensorScheme& scheme, int heads, int dim) {
  return std::make_shared<VarnCodec>(scheme, heads, dim);
}

}  // namespace kvcc
