#include "calib/report/codebook_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "formats/codec/element.h"

namespace kvcc {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
/// Points that stand for a bin of the histogram: together 1,024 over [-2, 2], finer than the levels of 8 bits.
constexpr int kPointsInBin = 8;

/// One head's codec and what it was fitted to. Spans are empty where the artifact has none.
struct HeadCodec {
  std::span<const float> levels, scale, zero, lower, upper, histogram, fisher;
  bool sparse = false;
};

std::span<const float> row(const std::vector<float>& values, size_t head, size_t width) {
  return values.empty() ? std::span<const float>() : std::span(values).subspan(head * width, width);
}

HeadCodec head_codec(const Codebook& book, bool key, size_t head) {
  const TensorCodebooks& tensor = key ? book.key : book.value;
  const auto dim = static_cast<size_t>(key ? book.model.shape.head_dim : book.model.shape.value_head_dim);
  HeadCodec codec;
  codec.levels = row(tensor.codebook, head, static_cast<size_t>(tensor.codes)).first(size_t{1} << tensor.bits[head]);
  codec.scale = row(tensor.scale, head, dim);
  codec.zero = row(tensor.zero, head, dim);
  codec.lower = row(tensor.threshold_lower, head, dim);
  codec.upper = row(tensor.threshold_upper, head, dim);
  codec.histogram = row(tensor.stats.histogram, head, kNormalisedBins);
  codec.fisher = row(tensor.stats.fisher, head, dim);
  codec.sparse = book.scheme.sparse > 0;
  return codec;
}

/// x in a channel after encoding and decoding.
double decoded(const HeadCodec& codec, size_t channel, float x) {
  if (codec.scale.empty()) {  // per token: x is on the normalised grid
    if (codec.sparse && std::fabs(x) > 1) return x;
    return codec.levels[nearest_level(codec.levels.data(), static_cast<int>(codec.levels.size()), x)];
  }
  if (!codec.lower.empty() && outside_thresholds(x, codec.lower[channel], codec.upper[channel])) return x;
  const float y = std::clamp(normalise(x, codec.scale[channel], codec.zero[channel]), -1.0f, 1.0f);
  const uint32_t code = nearest_level(codec.levels.data(), static_cast<int>(codec.levels.size()), y);
  return decode_element(codec.levels[code], codec.scale[channel], codec.zero[channel]);
}

/// Places on the normalised grid with what share of the elements they stand for.
std::vector<std::pair<float, double>> points_of(const HeadCodec& codec) {
  std::vector<std::pair<float, double>> points;
  for (int b = 0; b < kNormalisedBins; ++b) {
    const bool inside = normalised_edge(b) >= -1 && normalised_edge(b + 1) <= 1;
    const double share = codec.histogram.empty() ? (inside ? 1.0 : 0.0) : codec.histogram[static_cast<size_t>(b)];
    if (!(share > 0)) continue;
    for (int i = 0; i < kPointsInBin; ++i) {
      const float y = normalised_edge(b) + (4.0f / kNormalisedBins) * (static_cast<float>(i) + 0.5f) / kPointsInBin;
      points.emplace_back(y, share / kPointsInBin);
    }
  }
  return points;
}

struct Sums {
  double between = 0, error_a = 0, error_b = 0;
};

/// Adds what the data of `from`, one of a and b, tells.
void add_sums(const HeadCodec& from, const HeadCodec& a, const HeadCodec& b, Sums& sums) {
  const std::vector<std::pair<float, double>> points = points_of(from);
  const bool weighted = std::any_of(from.fisher.begin(), from.fisher.end(), [](float f) { return f > 0; });
  const size_t channels = from.scale.empty() ? 1 : from.scale.size();
  // Both artifacts' data count alike, whatever their Fisher mass.
  double mass = 0;
  for (size_t c = 0; c < channels; ++c) mass += weighted && channels > 1 ? from.fisher[c] : 1.0;
  for (size_t c = 0; c < channels; ++c) {
    const double weight = (weighted && channels > 1 ? from.fisher[c] : 1.0) / mass;
    if (weight == 0) continue;
    for (const auto& [y, share] : points) {
      const float x = from.scale.empty() ? y : decode_element(y, from.scale[c], from.zero[c]);
      const double in_a = decoded(a, c, x), in_b = decoded(b, c, x);
      sums.between += weight * share * (in_a - in_b) * (in_a - in_b);
      sums.error_a += weight * share * (in_a - x) * (in_a - x);
      sums.error_b += weight * share * (in_b - x) * (in_b - x);
    }
  }
}

double distance(const HeadCodec& a, const HeadCodec& b) {
  if (a.scale.empty() != b.scale.empty()) return kUnknown;
  Sums sums;
  add_sums(a, a, b, sums);
  add_sums(b, a, b, sums);
  if (sums.between == 0) return 0;
  return std::sqrt(sums.between / (0.5 * (sums.error_a + sums.error_b)));
}

std::string value_text(const TreeValue& value) {
  if (value.type == Element::text) return value.bytes;
  const auto list = [](const auto& numbers) { return fmt::format("{}", fmt::join(numbers, ", ")); };
  switch (value.type) {
    case Element::i64:
      return list(array_of<int64_t>(value));
    case Element::i32:
      return list(array_of<int32_t>(value));
    case Element::f64:
      return list(array_of<double>(value));
    default:
      return fmt::format("{} bytes", value.bytes.size());
  }
}

/// "/provenance" and "seed": "provenance.seed"; of the root "scheme".
std::string attribute_name(const std::string& path, const std::string& name) {
  return path == "/" ? name : path.substr(1) + "." + name;
}

/// Attributes that say nothing of their own: they follow from what else differs, or from this build.
bool follows(const std::string& path, const std::string& name) {
  return path == "/" && (name == "content_sha256" || name == "scheme_json" || name == "format_version");
}

void compare_attributes(const std::string& path, const TreeObject* a, const TreeObject* b, CodebookDifference& out) {
  std::set<std::string> names;
  for (const TreeObject* object : {a, b}) {
    if (object == nullptr) continue;
    for (const auto& [name, value] : object->attributes) names.insert(name);
  }
  const auto text = [](const TreeObject* object, const std::string& name) {
    if (object == nullptr || !object->attributes.contains(name)) return std::string();
    return value_text(object->attributes.at(name));
  };
  for (const std::string& name : names) {
    const bool both = a != nullptr && b != nullptr && a->attributes.contains(name) && b->attributes.contains(name);
    if (both && a->attributes.at(name) == b->attributes.at(name)) continue;
    if (follows(path, name)) continue;
    out.values.push_back({attribute_name(path, name), text(a, name), text(b, name)});
    // Names are for people, and the text and the tool have made what the datasets hold.
    const bool passive = path == "/provenance" || name == "name";
    out.same_decoding = out.same_decoding && passive;
  }
}

void compare_dataset(const std::string& path, const TreeObject* a, const TreeObject* b, CodebookDifference& out) {
  DatasetDifference difference{path, "",
                               path.find("/stats/") == std::string::npos && !path.ends_with("/outlier_fraction")};
  if (a == nullptr || b == nullptr) {
    difference.what = a == nullptr ? "only in B" : "only in A";
  } else if (a->value.type != b->value.type || a->value.shape != b->value.shape) {
    difference.what = "other shape";
  } else {
    const size_t size = element_bytes(a->value.type), count = a->value.bytes.size() / size;
    size_t changed = 0;
    for (size_t i = 0; i < count; ++i) {
      changed += a->value.bytes.compare(i * size, size, b->value.bytes, i * size, size) != 0;
    }
    if (changed == 0) return;
    difference.what = fmt::format("{} of {} values", changed, count);
  }
  out.same_decoding = out.same_decoding && !difference.needed;
  out.datasets.push_back(std::move(difference));
}

void compare_trees(const Tree& a, const Tree& b, CodebookDifference& out) {
  std::set<std::string> paths;
  for (const Tree* tree : {&a, &b}) {
    for (const auto& [path, object] : *tree) paths.insert(path);
  }
  for (const std::string& path : paths) {
    const auto find = [&](const Tree& tree) { return tree.contains(path) ? &tree.at(path) : nullptr; };
    const TreeObject *in_a = find(a), *in_b = find(b);
    const bool dataset = (in_a != nullptr && in_a->dataset) || (in_b != nullptr && in_b->dataset);
    dataset ? compare_dataset(path, in_a, in_b, out) : compare_attributes(path, in_a, in_b, out);
  }
}

}  // namespace

CodebookDifference diff_codebooks(const Codebook& a, const Codebook& b) {
  CodebookDifference out;
  out.equal = a.content_sha256 == b.content_sha256;
  if (a.format_version != b.format_version) {
    out.values.push_back({"format_version", a.format_version, b.format_version});
  }
  Codebook copy_a = a, copy_b = b;  // making the tree sets the hash
  compare_trees(codebook_tree(copy_a), codebook_tree(copy_b), out);
  if (a.model.shape != b.model.shape || a.layer_index != b.layer_index) {
    out.no_heads = "the models' geometries differ";
    return out;
  }
  if (a.scheme.is_vector() || b.scheme.is_vector()) {
    if (!out.equal) {
      out.no_heads = "vector codebooks code several channels at once";
      return out;
    }
  }
  const auto heads = static_cast<size_t>(a.model.shape.kv_heads);
  for (size_t layer = 0; layer < a.layer_index.size(); ++layer) {
    for (const bool key : {true, false}) {
      for (size_t head = 0; head < heads; ++head) {
        const size_t at = layer * heads + head;
        const double d = out.equal ? 0 : distance(head_codec(a, key, at), head_codec(b, key, at));
        out.heads.push_back({a.layer_index[layer], key ? "key" : "value", static_cast<int>(head), d});
      }
    }
  }
  return out;
}

}  // namespace kvcc
