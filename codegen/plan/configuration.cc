#include "codegen/plan/configuration.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "formats/core/error.h"

namespace kvcc::codegen {
namespace {

template <class E, size_t n>
using Names = std::array<std::pair<E, std::string_view>, n>;

constexpr Names<Family, 6> kFamilies{{{Family::pack_key, "pack_key"},
                                      {Family::pack_value, "pack_value"},
                                      {Family::key_scores, "key_scores"},
                                      {Family::value_mix, "value_mix"},
                                      {Family::dequantise_key, "dequantise_key"},
                                      {Family::dequantise_value, "dequantise_value"}}};
constexpr Names<Sparse, 3> kSparse{{{Sparse::none, "none"}, {Sparse::csr, "csr"}, {Sparse::tail, "tail"}}};
constexpr Names<RopeKind, 3> kRopes{
    {{RopeKind::none, "norope"}, {RopeKind::half, "half"}, {RopeKind::interleaved, "interleaved"}}};
constexpr Names<Dtype, 3> kDtypes{{{Dtype::f16, "f16"}, {Dtype::bf16, "bf16"}, {Dtype::f32, "f32"}}};
constexpr Names<Axis, 2> kAxes{{{Axis::channel, "channel"}, {Axis::token, "token"}}};
constexpr Names<Grid, 3> kGrids{{{Grid::integer, "int"}, {Grid::normal_float, "nf"}, {Grid::nuq, "nuq"}}};

template <class E, size_t n>
std::string_view text_of(const Names<E, n>& names, E value) {
  for (const auto& [key, text] : names) {
    if (key == value) return text;
  }
  throw Error(ErrorKind::failed, "kernel configuration", "a choice without a name");
}

/// Reads a name from left to right.
class Reader {
 public:
  explicit Reader(std::string_view text) : whole_(text), rest_(text) {}

  template <class E, size_t n>
  E one_of(const Names<E, n>& names, const char* what) {
    for (const auto& [value, text] : names) {
      if (eat(text)) return value;
    }
    fail(what);
  }
  bool eat(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  void want(std::string_view text) {
    if (!eat(text)) fail(fmt::format("\"{}\"", text));
  }
  /// A number without sign or leading zeros, in [1, limit].
  int number(const char* what, int limit) {
    int value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 1 || value > limit || rest_[0] == '0') fail(what);
    rest_.remove_prefix(end - rest_.data());
    return value;
  }
  bool done() const { return rest_.empty(); }
  [[noreturn]] void fail(std::string_view wanted) const {
    throw Error(ErrorKind::usage, fmt::format("kernel name \"{}\"", whole_),
                rest_.empty() ? "it ends" : fmt::format("\"{}\"", rest_), std::string(wanted));
  }

 private:
  std::string_view whole_, rest_;
};

}  // namespace

std::string_view to_text(Family v) { return text_of(kFamilies, v); }
std::string_view to_text(Sparse v) { return text_of(kSparse, v); }
std::string_view to_text(RopeKind v) { return text_of(kRopes, v); }
std::string_view to_text(Dtype v) { return text_of(kDtypes, v); }
std::string_view to_text(Axis v) { return text_of(kAxes, v); }
std::string_view to_text(Grid v) { return text_of(kGrids, v); }

Dtype parse_dtype(std::string_view text) {
  for (const auto& [value, name] : kDtypes) {
    if (name == text) return value;
  }
  throw Error(ErrorKind::usage, "--dtype", fmt::format("\"{}\"", text), "f16, bf16 or f32");
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> result;
    for (const auto& [family, text] : kFamilies) result.push_back(family);
    return result;
  }();
  return all;
}

bool takes_group(Family f) { return f == Family::key_scores || f == Family::value_mix; }
bool takes_rope(Family f) { return f == Family::key_scores; }
bool of_keys(Family f) { return f == Family::pack_key || f == Family::key_scores || f == Family::dequantise_key; }

std::string name(const Configuration& c) {
  std::string text = fmt::format("{}_{}{}{}_{}_d{}_{}", to_text(c.family), to_text(c.grid), c.bits,
                                 c.mixed ? "mixed" : "", to_text(c.axis), c.head_dim, to_text(c.sparse));
  if (takes_rope(c.family)) {
    text += fmt::format("_{}", to_text(c.rope));
    if (c.rope != RopeKind::none) text += fmt::format("{}", c.rotary_dim);
  }
  if (takes_group(c.family)) text += fmt::format("_g{}", c.group_tile);
  text += fmt::format("_{}__", to_text(c.dtype));
  for (const char letter : c.layout) {
    if (letter != '-') text += letter;
  }
  return text;
}

Configuration parse_configuration(std::string_view text) {
  Reader in(text);
  Configuration c;
  c.family = in.one_of(kFamilies, "a family");
  in.want("_");
  c.grid = in.one_of(kGrids, "a grid (int, nf, nuq)");
  c.bits = in.number("bits, 1 to 8", 8);
  c.mixed = in.eat("mixed");
  in.want("_");
  c.axis = in.one_of(kAxes, "channel or token");
  in.want("_d");
  c.head_dim = in.number("a head dimension", 65536);
  in.want("_");
  c.sparse = in.one_of(kSparse, "none, csr or tail");
  in.want("_");
  if (takes_rope(c.family)) {
    c.rope = in.one_of(kRopes, "norope, half or interleaved");
    if (c.rope != RopeKind::none) c.rotary_dim = in.number("rotary channels", 65536);
    in.want("_");
  }
  if (takes_group(c.family)) {
    in.want("g");
    c.group_tile = in.number("query heads of a group", 65536);
    in.want("_");
  }
  c.dtype = in.one_of(kDtypes, "f16, bf16 or f32");
  in.want("__");
  in.want("linear1");
  if (!in.done()) in.fail("nothing more");
  return c;
}

}  // namespace kvcc::codegen
