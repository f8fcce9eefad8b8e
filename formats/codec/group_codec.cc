// Integer levels in online ranges: a group of a token's channels, or of a channel's tokens, after a rotation and a
// token's norm, with some channels of more bits. One codec for KIVI, Atom, FlexGen, QuaRot, Kitty, OScaR and
// llama.cpp's types; formats/spec/schemes.md says which is which.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/codec/coded.h"
#include "formats/codec/online_codec.h"
#include "formats/codec/rotation.h"
#include "formats/codec/rtn.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr int kHalfBits = 16;
constexpr float kLeastNorm = 1e-8f;  ///< METHODS.md 7.3

/// Reads or writes a part's values one after another.
struct Cursor {
  uint16_t* at;
  uint16_t* take(int n) { return (at += n) - n; }
};
struct ConstCursor {
  const uint16_t* at;
  const uint16_t* take(int n) { return (at += n) - n; }
};

class GroupCodec : public TensorCodec {
 public:
  /// `rotations`: one for all heads, or one each.
  GroupCodec(const TensorScheme& s, int heads, int dim, std::vector<HeadRotation> rotations)
      : TensorCodec(heads, dim, s.axis == Axis::channel_group ? s.group : 1),
        by_channel_(s.axis == Axis::channel_group),
        normed_(s.norm == Norm::token),
        row_(heads * dim),
        span_(by_channel_             ? s.group
              : s.axis == Axis::token ? row_
              : s.group == 0          ? dim
                                      : std::min(s.group, dim)),
        form_{s.rounding, s.bits, static_cast<float>(s.clip)},
        wide_form_{s.rounding, s.wide_bits, static_cast<float>(s.clip)},
        wide_(s.wide > 0 ? wide_channels(s.wide, dim) : 0),
        rotations_(std::move(rotations)) {
    if (wide_ >= dim) throw Error(ErrorKind::usage, "codec", "no channel of the lesser width", "a smaller share");
  }

  std::vector<PartShape> parts(int64_t tokens) const override {
    const int64_t tiles = tokens / block_tokens();
    std::vector<PartShape> parts;
    if (normed_) parts.push_back({"norm", kHalfBits, tokens});
    if (wide_ > 0) parts.push_back({"wide channel", index_bits(dim()), tiles * heads() * wide_});
    parts.push_back({"codes", form_.bits, tokens * heads() * (dim() - wide_)});
    if (wide_ > 0) parts.push_back({"wide codes", wide_form_.bits, tokens * heads() * wide_});
    const int64_t ranges = tiles * (by_channel_ ? heads() * (dim() - (exact_wide() ? wide_ : 0)) : groups_of_row());
    parts.push_back({"scale", kHalfBits, ranges});
    if (form_.zero_bits() > 0) parts.push_back({"zero", form_.zero_bits(), ranges});
    return parts;
  }

  void encode(std::span<const float> x, CodedTokens& out, const std::string& place, int64_t first) const override {
    const int64_t tokens = check_tokens(*this, x, place, first);
    start_parts(*this, tokens, out);
    Parts<Cursor> to = cursors<Cursor>(out);
    std::vector<float> tile(row_ * block_tokens()), turned(by_channel_ ? tile.size() : 0);
    for (int64_t t = 0; t < tokens; t += block_tokens()) {
      std::copy_n(x.data() + t * row_, tile.size(), tile.data());
      for (int64_t b = 0; b < block_tokens(); ++b) {
        prepare(tile.data() + b * row_, to, {place, first + t + b});
      }
      if (by_channel_) {
        transpose(tile.data(), static_cast<int>(block_tokens()), row_, turned.data());
        encode_channels(turned.data(), to, place, first + t);
      } else {
        encode_row(tile.data(), to, place, first + t);
      }
    }
  }

  void decode(const CodedTokens& in, std::span<float> out) const override {
    const int64_t tokens = check_rows(out.size(), out.size(), row_ * block_tokens(), "decoded") * block_tokens();
    check_parts(*this, tokens, in);
    Parts<ConstCursor> from = cursors<ConstCursor>(in);
    std::vector<float> turned(by_channel_ ? row_ * block_tokens() : 0);
    for (int64_t t = 0; t < tokens; t += block_tokens()) {
      float* tile = out.data() + t * row_;
      if (by_channel_) {
        decode_channels(from, turned.data());
        transpose(turned.data(), row_, static_cast<int>(block_tokens()), tile);
      } else {
        decode_row(from, tile);
      }
      for (int64_t b = 0; b < block_tokens(); ++b) restore(tile + b * row_, from);
    }
  }

 private:
  template <typename C>
  struct Parts {
    C norm{}, wide{}, codes{}, wide_codes{}, scale{}, zero{};
  };

  static int wide_channels(double share, int dim) {  // METHODS.md 7.2; at least one
    return std::max(1, static_cast<int>(dim * share + 1e-6));
  }
  const HeadRotation& rotation(int head) const { return rotations_[rotations_.size() == 1 ? 0 : head]; }
  bool exact_wide() const { return wide_form_.bits == kHalfBits; }
  int64_t groups_of_row() const { return span_ == row_ ? 1 : int64_t{heads()} * ((dim() + span_ - 1) / span_); }

  template <typename C, typename Coded>
  Parts<C> cursors(Coded& coded) const {
    Parts<C> parts;
    auto part = coded.begin();
    const auto next = [&](C& cursor) { cursor.at = (part++)->values.data(); };
    if (normed_) next(parts.norm);
    if (wide_ > 0) next(parts.wide);
    next(parts.codes);
    if (wide_ > 0) next(parts.wide_codes);
    next(parts.scale);
    if (form_.zero_bits() > 0) next(parts.zero);
    return parts;
  }

  /// Rotates a token's row and divides it by its stored norm.
  void prepare(float* row, Parts<Cursor>& to, const Where& where) const {
    if (rotations_[0].any()) {
      for (int h = 0; h < heads(); ++h) rotation(h).apply(row + h * dim());
    }
    if (!normed_) return;
    double squares = 0;
    for (int i = 0; i < row_; ++i) squares += static_cast<double>(row[i]) * row[i];
    const uint16_t half = stored_half(static_cast<float>(std::sqrt(squares)), "a norm of", where);
    *to.norm.take(1) = half;
    const float norm = std::max(half_to_float(half), kLeastNorm);
    for (int i = 0; i < row_; ++i) row[i] /= norm;
  }

  void restore(float* row, Parts<ConstCursor>& from) const {
    if (normed_) {
      const float norm = half_to_float(*from.norm.take(1));
      for (int i = 0; i < row_; ++i) row[i] *= norm;
    }
    if (rotations_[0].any()) {
      for (int h = 0; h < heads(); ++h) rotation(h).undo(row + h * dim());
    }
  }

  static void transpose(const float* x, int rows, int columns, float* out) {
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c)
        out[static_cast<size_t>(c) * rows + r] = x[static_cast<size_t>(r) * columns + c];
    }
  }

  void put_range(RtnRange range, Parts<Cursor>& to) const {
    *to.scale.take(1) = range.scale;
    if (form_.zero_bits() > 0) *to.zero.take(1) = range.zero;
  }
  RtnRange get_range(Parts<ConstCursor>& from) const {
    const uint16_t scale = *from.scale.take(1);
    return {scale, form_.zero_bits() > 0 ? *from.zero.take(1) : uint16_t{0}};
  }

  /// Work on the groups of a token's row: (first, count) within a head, or the whole row.
  template <typename Work>
  void over_groups(const Work& work) const {
    if (span_ == row_) return work(0, row_);
    for (int h = 0; h < heads(); ++h) {
      for (int c = 0; c < dim(); c += span_) work(h * dim() + c, std::min(span_, dim() - c));
    }
  }

  void encode_row(const float* row, Parts<Cursor>& to, const std::string& place, int64_t token) const {
    over_groups([&](int first, int count) {
      const Where where{place, token, first / dim()};
      put_range(rtn_encode(form_, row + first, count, to.codes.take(count), where), to);
    });
  }

  void decode_row(Parts<ConstCursor>& from, float* row) const {
    over_groups(
        [&](int first, int count) { rtn_decode(form_, get_range(from), from.codes.take(count), count, row + first); });
  }

  /// The head's channels of greatest mean magnitude in the tile, ascending; of equal ones those of lower index.
  std::vector<int> wide_of(const float* channels) const {
    std::vector<double> magnitude(dim());
    for (int c = 0; c < dim(); ++c) {
      for (int i = 0; i < span_; ++i) magnitude[c] += std::fabs(channels[static_cast<size_t>(c) * span_ + i]);
    }
    std::vector<int> order(dim());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return magnitude[a] > magnitude[b]; });
    order.resize(wide_);
    std::sort(order.begin(), order.end());
    return order;
  }

  /// channels [H, D, G]
  void encode_channels(const float* channels, Parts<Cursor>& to, const std::string& place, int64_t token) const {
    for (int h = 0; h < heads(); ++h) {
      const float* head = channels + static_cast<size_t>(h) * dim() * span_;
      const Where where{place, token, h};
      const std::vector<int> wide = wide_ > 0 ? wide_of(head) : std::vector<int>{};
      for (const int c : wide) *to.wide.take(1) = static_cast<uint16_t>(c);
      for (int c = 0; c < dim(); ++c) {
        const float* x = head + static_cast<size_t>(c) * span_;
        const bool is_wide = std::binary_search(wide.begin(), wide.end(), c);
        if (is_wide && exact_wide()) {
          uint16_t* codes = to.wide_codes.take(span_);
          for (int i = 0; i < span_; ++i) codes[i] = stored_half(x[i], "a value of", where);
        } else {
          uint16_t* codes = (is_wide ? to.wide_codes : to.codes).take(span_);
          put_range(rtn_encode(is_wide ? wide_form_ : form_, x, span_, codes, where), to);
        }
      }
    }
  }

  void decode_channels(Parts<ConstCursor>& from, float* channels) const {
    for (int h = 0; h < heads(); ++h) {
      const uint16_t* wide = wide_ > 0 ? from.wide.take(wide_) : nullptr;
      for (int i = 0; i < wide_; ++i) {
        if (wide[i] >= dim() || (i > 0 && wide[i] <= wide[i - 1])) {
          throw Error(ErrorKind::failed, "coded tokens", "wide channel " + std::to_string(wide[i]),
                      "ascending channels below " + std::to_string(dim()));
        }
      }
      for (int c = 0; c < dim(); ++c) {
        float* x = channels + (static_cast<size_t>(h) * dim() + c) * span_;
        const bool is_wide = wide != nullptr && std::binary_search(wide, wide + wide_, static_cast<uint16_t>(c));
        if (is_wide && exact_wide()) {
          const uint16_t* codes = from.wide_codes.take(span_);
          for (int i = 0; i < span_; ++i) x[i] = half_to_float(codes[i]);
        } else {
          const RtnRange range = get_range(from);
          rtn_decode(is_wide ? wide_form_ : form_, range, (is_wide ? from.wide_codes : from.codes).take(span_), span_,
                     x);
        }
      }
    }
  }

  bool by_channel_, normed_;
  int row_, span_;  ///< values of a token, of a group
  RtnForm form_, wide_form_;
  int wide_;  ///< channels of a head that get wide_form_
  std::vector<HeadRotation> rotations_;
};

}  // namespace

std::shared_ptr<const TensorCodec> make_group_codec(const TensorScheme& scheme, int heads, int dim) {
  return std::make_shared<GroupCodec>(scheme, heads, dim,
                                      std::vector<HeadRotation>{HeadRotation(scheme.rotation, dim)});
}

std::shared_ptr<const TensorCodec> make_codec(const TensorScheme& scheme, int heads, int dim,
                                              const std::vector<std::vector<float>>& rotations) {
  if (static_cast<int>(rotations.size()) != heads) {
    throw Error(ErrorKind::failed, "codec", std::to_string(rotations.size()) + " rotations", std::to_string(heads));
  }
  std::vector<HeadRotation> turns;
  for (const std::vector<float>& matrix : rotations) turns.emplace_back(matrix, dim);
  return std::make_shared<GroupCodec>(scheme, heads, dim, std::move(turns));
}

}  // namespace kvcc
