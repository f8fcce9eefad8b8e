#include "kernels/host/runtime_vectors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/core/error.h"

namespace kvcc::host {
namespace {

std::vector<uint8_t> bytes_of(const FileFields& fields, const std::string& name, const std::vector<int64_t>& shape) {
  const auto bytes = fields.tensor(name, "U8", shape).bytes;
  std::vector<uint8_t> out(bytes.size());
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size());
  return out;
}

std::vector<float> finite(const FileFields& fields, const std::string& name, const std::vector<int64_t>& shape) {
  std::vector<float> values = fields.floats(name, shape);
  const auto bad = std::find_if_not(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
  if (bad == values.end()) return values;
  throw fields.wrong(name, std::to_string(*bad) + " at number " + std::to_string(bad - values.begin()),
                     "finite values");
}

template <class T>
std::vector<T> layer_of(const std::vector<T>& all, int layer, size_t each) {
  const auto begin = all.begin() + static_cast<int64_t>(layer * each);
  return {begin, begin + static_cast<int64_t>(each)};
}

}  // namespace

std::vector<VectorTables> read_vectors(const FileFields& fields, const std::string& name, int layers, int heads,
                                       int dim) {
  const std::string turned = "rotation/" + name + "/";
  const std::vector<int64_t> coordinates = {layers, heads, dim}, matrices = {layers, heads, dim, dim};
  const auto width = bytes_of(fields, name + "/group_width", coordinates);
  const auto bits = bytes_of(fields, name + "/group_bits", coordinates);
  const auto mean = finite(fields, turned + "mean", coordinates);
  const auto forward = finite(fields, turned + "forward", matrices);
  const auto inverse = finite(fields, turned + "inverse", matrices);
  const auto vectors = finite(fields, name + "/vectors", {-1});
  const size_t row = static_cast<size_t>(heads) * dim;
  std::vector<VectorTables> tables;
  size_t begin = 0;
  for (int l = 0; l < layers; ++l) {
    size_t numbers = 0;
    for (size_t i = l * row; i < (l + 1) * row; ++i) numbers += size_t{width[i]} << std::min<int>(bits[i], 31);
    if (numbers > vectors.size() - begin) {
      throw fields.wrong(name + "/vectors", std::to_string(vectors.size()) + " numbers",
                         "those of layer " + std::to_string(l) + ", " + std::to_string(numbers) + " from " +
                             std::to_string(begin) + " on");
    }
    const auto from = vectors.begin() + static_cast<int64_t>(begin);
    VectorQuantiser q{heads,
                      dim,
                      heads,
                      layer_of(mean, l, row),
                      layer_of(forward, l, row * dim),
                      layer_of(inverse, l, row * dim),
                      layer_of(width, l, row),
                      layer_of(bits, l, row),
                      {from, from + static_cast<int64_t>(numbers)}};
    try {
      tables.emplace_back(q);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::failed) throw;
      throw fields.wrong(name + "/group_width", "layer " + std::to_string(l) + ": " + error.what());
    }
    begin += numbers;
  }
  if (begin != vectors.size()) {
    throw fields.wrong(name + "/vectors", std::to_string(vectors.size()) + " numbers", std::to_string(begin));
  }
  return tables;
}

}  // namespace kvcc::host
