#include "calib/fit/weight_fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "calib/fit/kmeans1d.h"
#include "calib/fit/parallel.h"
#include "formats/codec/element.h"
#include "formats/codec/weight_codec.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

/// Sets the flags of the `count` greatest by `key` among those without a flag; of equals the first.
template <typename Key>
void flag_greatest(std::vector<uint8_t>& flags, size_t count, const Key& key) {
  std::vector<uint32_t> order;
  order.reserve(flags.size());
  for (uint32_t i = 0; i < flags.size(); ++i) {
    if (!flags[i] && key(i) > 0) order.push_back(i);
  }
  count = std::min(count, order.size());
  const auto before = [&](uint32_t a, uint32_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; };
  std::nth_element(order.begin(), order.begin() + static_cast<int64_t>(count), order.end(), before);
  for (size_t i = 0; i < count; ++i) flags[order[i]] = 1;
}

void check_values(const std::string& name, int64_t columns, std::span<const float> values, const char* what,
                  bool negative_too) {
  const auto bad = std::find_if(values.begin(), values.end(),
                                [&](float v) { return !std::isfinite(v) || (!negative_too && v < 0); });
  if (bad == values.end()) return;
  const int64_t place = bad - values.begin();
  throw bad_input(name + " row " + std::to_string(place / columns) + " column " + std::to_string(place % columns),
                  std::string(what) + " is " + std::to_string(*bad), negative_too ? "a finite value" : "0 or more");
}

/// What a row adds to the matrix's sums.
struct RowError {
  double mass = 0, fisher = 0, squared = 0, weight = 0;
};

}  // namespace

std::vector<uint8_t> exact_weights(std::span<const float> weights, std::span<const float> fisher, double sparse,
                                   double sensitive) {
  std::vector<uint8_t> flags(weights.size(), 0);
  const auto n = static_cast<double>(weights.size());
  const auto all = static_cast<size_t>(std::llround(sparse * n));
  flag_greatest(flags, std::min(all, static_cast<size_t>(std::llround(sensitive * n))),
                [&](uint32_t i) { return fisher[i]; });
  const auto there = static_cast<size_t>(std::accumulate(flags.begin(), flags.end(), int64_t{0}));
  flag_greatest(flags, all - there, [&](uint32_t i) { return std::fabs(weights[i]); });
  return flags;
}

QuantisedMatrix fit_matrix(const std::string& name, int layer, int64_t rows, int64_t columns,
                           std::span<const float> weights, std::span<const float> fisher,
                           const WeightFitSettings& settings) {
  if (columns > kMostWeightColumns) {
    throw bad_input(name, std::to_string(columns) + " inputs", "at most " + std::to_string(kMostWeightColumns));
  }
  check_values(name, columns, weights, "the weight", true);
  check_values(name, columns, fisher, "the Fisher information", false);
  const std::vector<uint8_t> exact = exact_weights(weights, fisher, settings.sparse, settings.sensitive);
  const size_t codes = size_t{1} << settings.bits, width = static_cast<size_t>(columns);
  const size_t words = static_cast<size_t>(weight_row_words(columns, settings.bits));

  QuantisedMatrix out;
  out.name = name;
  out.layer = layer;
  out.rows = rows;
  out.columns = columns;
  out.codes.assign(static_cast<size_t>(rows) * words, 0);
  out.levels.resize(static_cast<size_t>(rows) * codes);
  std::vector<RowError> errors(static_cast<size_t>(rows));
  parallel_for(static_cast<int>(rows), settings.threads, [&](int r) {
    const auto row = weights.subspan(r * width, width), mass = fisher.subspan(r * width, width);
    const auto kept = std::span(exact).subspan(r * width, width);
    std::vector<double> x, w;
    for (size_t c = 0; c < width; ++c) {
      if (kept[c]) continue;
      x.push_back(row[c]);
      w.push_back(mass[c]);
    }
    const int count = static_cast<int>(codes);
    const std::vector<double> centres = kmeans_1d(x, w, std::span(&count, 1)).front().centres;
    std::vector<float> levels(codes);
    for (size_t j = 0; j < codes; ++j) {
      const uint16_t half = float_to_half(static_cast<float>(centres[j]));
      if (half_is_infinite(half)) {
        throw bad_input(name + " row " + std::to_string(r), "a level of " + std::to_string(centres[j]),
                        "levels within fp16");
      }
      out.levels[r * codes + j] = half;
      levels[j] = half_to_float(half);
    }
    encode_weights(row, kept, levels, settings.bits, std::span(out.codes).subspan(r * words, words));
    RowError& sum = errors[static_cast<size_t>(r)];
    for (size_t c = 0; c < width; ++c) {
      sum.mass += mass[c];
      sum.weight += static_cast<double>(row[c]) * row[c];
      if (kept[c]) continue;
      const double error = static_cast<double>(row[c]) - levels[nearest_level(levels.data(), count, row[c])];
      sum.fisher += mass[c] * error * error;
      sum.squared += error * error;
    }
  });
  for (const RowError& row : errors) {
    out.fisher_mass += row.mass;
    out.fisher_error += row.fisher;
    out.squared_error += row.squared;
    out.squared_weight += row.weight;
  }
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    for (size_t c = 0; c < width; ++c) {
      if (!exact[r * width + c]) continue;
      out.exact_columns.push_back(static_cast<uint16_t>(c));
      out.exact_values.push_back(weights[r * width + c]);
    }
    out.row_ends.push_back(static_cast<uint32_t>(out.exact_values.size()));
  }
  if (out.exact_values.empty()) out.row_ends.clear();
  return out;
}

}  // namespace kvcc
