#include "codegen/plan/configuration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <sstream>
#include <utility>

#include "formats/core/error.h"

namespace kvcc::codegen {
namespace {

template <class E, size_t n>
using Names = std::array<std::pair<E, std::string_view>, n>;

constexpr Names<Family, 8> kFamilies{{{Family::pack_key, "pack_key"},
                                      {Family::pack_value, "pack_value"},
                                      {Family::attention, "attention"},
                                      {Family::key_scores, "key_scores"},
                                      {Family::value_mix, "value_mix"},
                                      {Family::dequantise_key, "dequantise_key"},
                                      {Family::dequantise_value, "dequantise_value"},
                                      {Family::copy_pages, "copy_pages"}}};
constexpr Names<Layout, 4> kLayouts{
    {{Layout::linear, "linear-1"}, {Layout::mma, "mma-1"}, {Layout::vector, "vector-1"}, {Layout::any, "any"}}};
/// In names of kernels, which are C identifiers.
constexpr Names<Layout, 3> kLayoutNames{
    {{Layout::linear, "linear1"}, {Layout::mma, "mma1"}, {Layout::vector, "vector1"}}};
constexpr Names<Sparse, 3> kSparse{{{Sparse::none, "none"}, {Sparse::csr, "csr"}, {Sparse::tail, "tail"}}};
constexpr Names<RopeKind, 3> kRopes{
    {{RopeKind::none, "norope"}, {RopeKind::half, "half"}, {RopeKind::interleaved, "interleaved"}}};
constexpr Names<Dtype, 3> kDtypes{{{Dtype::f16, "f16"}, {Dtype::bf16, "bf16"}, {Dtype::f32, "f32"}}};
constexpr Names<Axis, 2> kAxes{{{Axis::channel, "channel"}, {Axis::token, "token"}}};
constexpr Names<Grid, 4> kGrids{
    {{Grid::integer, "int"}, {Grid::normal_float, "nf"}, {Grid::nuq, "nuq"}, {Grid::vector, "vq"}}};
constexpr Names<bool, 2> kForms{{{true, "head"}, {false, "channels"}}};

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
std::string_view to_text(Layout v) { return text_of(kLayouts, v); }
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

std::vector<Family> parse_families(const std::string& text) {
  std::set<Family> chosen;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto* found = std::find_if(kFamilies.begin(), kFamilies.end(), [&](auto& one) { return one.second == part; });
    if (found == kFamilies.end()) {
      std::vector<std::string_view> names;
      for (const auto& [family, name] : kFamilies) names.push_back(name);
      throw Error(ErrorKind::usage, "--families", fmt::format("\"{}\"", part),
                  fmt::format("of {}", fmt::join(names, ", ")));
    }
    chosen.insert(found->first);
  }
  if (chosen.empty() || text.ends_with(',')) {
    throw Error(ErrorKind::usage, "--families", chosen.empty() ? "nothing" : fmt::format("\"{}\"", text),
                "families such as pack_key,attention");
  }
  return {chosen.begin(), chosen.end()};
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> result;
    for (const auto& [family, text] : kFamilies) result.push_back(family);
    return result;
  }();
  return all;
}

std::vector<Family> families_of(Layout layout) {
  std::vector<Family> result;
  for (const Family family : families()) {
    if (layout != Layout::linear || family != Family::attention) result.push_back(family);
  }
  return result;
}

bool takes_group(Family f) { return f == Family::attention || f == Family::key_scores || f == Family::value_mix; }
bool takes_rope(Family f) { return f == Family::attention || f == Family::key_scores; }
bool of_keys(Family f) {
  return f == Family::pack_key || f == Family::attention || f == Family::key_scores || f == Family::dequantise_key;
}

std::string name(const Configuration& c) {
  std::string text(to_text(c.family));
  if (c.family == Family::copy_pages) return text + "__any";
  const auto add_tensor = [&](const TensorConfiguration& t) {
    if (t.grid == Grid::vector) {
      text += fmt::format("_{}_{}_d{}", to_text(t.grid), text_of(kForms, t.transform), t.head_dim);
      if (t.steps > 0) text += fmt::format("_s{}_b{}_t{}", t.steps, t.token_bits, t.table_kib);
      return;
    }
    text += fmt::format("_{}{}{}_{}_d{}_{}", to_text(t.grid), t.bits, t.mixed ? "mixed" : "", to_text(t.axis),
                        t.head_dim, to_text(t.sparse));
  };
  add_tensor(c);
  if (takes_rope(c.family)) {
    text += fmt::format("_{}", to_text(c.rope));
    if (c.rope != RopeKind::none) text += fmt::format("{}", c.rotary_dim);
  }
  if (c.family == Family::attention) {
    text += "_v";
    add_tensor(c.value);
  }
  if (takes_group(c.family)) text += fmt::format("_g{}", c.group_tile);
  return text + fmt::format("_{}__{}", to_text(c.dtype), text_of(kLayoutNames, c.layout));
}

Configuration parse_configuration(std::string_view text) {
  Reader in(text);
  Configuration c;
  c.family = in.one_of(kFamilies, "a family");
  if (c.family == Family::copy_pages) {
    c.layout = Layout::any;
    in.want("__any");
    if (!in.done()) in.fail("nothing more");
    return c;
  }
  const auto read_tensor = [&](TensorConfiguration& t) {
    in.want("_");
    t.grid = in.one_of(kGrids, "a grid (int, nf, nuq, vq)");
    if (t.grid == Grid::vector) {
      in.want("_");
      t.transform = in.one_of(kForms, "head or channels");
      in.want("_d");
      t.head_dim = in.number("a head dimension", 65536);
      if (!in.eat("_s")) return;
      t.steps = in.number("steps", 65536);
      in.want("_b");
      t.token_bits = in.number("bits of a token", 65536);
      in.want("_t");
      t.table_kib = in.number("KiB of tables", 65536);
      return;
    }
    t.bits = in.number("bits, 1 to 8", 8);
    t.mixed = in.eat("mixed");
    in.want("_");
    t.axis = in.one_of(kAxes, "channel or token");
    in.want("_d");
    t.head_dim = in.number("a head dimension", 65536);
    in.want("_");
    t.sparse = in.one_of(kSparse, "none, csr or tail");
  };
  read_tensor(c);
  if (takes_rope(c.family)) {
    in.want("_");
    c.rope = in.one_of(kRopes, "norope, half or interleaved");
    if (c.rope != RopeKind::none) c.rotary_dim = in.number("rotary channels", 65536);
  }
  if (c.family == Family::attention) {
    in.want("_v");
    read_tensor(c.value);
  }
  if (takes_group(c.family)) {
    in.want("_g");
    c.group_tile = in.number("query heads of a group", 65536);
  }
  in.want("_");
  c.dtype = in.one_of(kDtypes, "f16, bf16 or f32");
  in.want("__");
  c.layout = in.one_of(kLayoutNames, "linear1, mma1 or vector1");
  if (!in.done()) in.fail("nothing more");
  return c;
}

}  // namespace kvcc::codegen
