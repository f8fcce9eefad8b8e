// Drives calib/fit/weight_fit.h for the Python oracle tests:
//   fit_weights ROWS COLUMNS BITS SPARSE SENSITIVE THREADS    stdin: weights, Fisher information, f32 [rows, columns]
// Prints (native little-endian) decoded weights f32 [rows, columns], levels f32 [rows, C], flags of the exact weights
// u8 [rows, columns], and the four sums as f64.
#include <cstdio>
#include <string>
#include <vector>

#include "calib/fit/weight_fit.h"
#include "formats/codec/weight_codec.h"
#include "formats/core/error.h"
#include "formats/layout/half.h"

namespace {

template <typename T>
void print(const std::vector<T>& values) {
  std::fwrite(values.data(), sizeof(T), values.size(), stdout);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvcc;
  if (argc != 7) return 2;
  const int64_t rows = std::stoll(argv[1]), columns = std::stoll(argv[2]);
  const WeightFitSettings settings{std::stoi(argv[3]), std::stod(argv[4]), std::stod(argv[5]), std::stoi(argv[6])};
  std::vector<float> weights(static_cast<size_t>(rows * columns)), fisher(weights.size()), decoded(weights.size());
  if (std::fread(weights.data(), sizeof(float), weights.size(), stdin) != weights.size()) return 2;
  if (std::fread(fisher.data(), sizeof(float), fisher.size(), stdin) != fisher.size()) return 2;
  try {
    const QuantisedMatrix m = fit_matrix("w", 0, rows, columns, weights, fisher, settings);
    decode_matrix(m, settings.bits, decoded);
    print(decoded);
    std::vector<float> levels;
    for (const uint16_t level : m.levels) levels.push_back(half_to_float(level));
    print(levels);
    std::vector<uint8_t> flags(weights.size(), 0);
    size_t row = 0;
    for (size_t i = 0; i < m.exact_columns.size(); ++i) {
      while (m.row_ends[row] <= i) ++row;
      flags[row * static_cast<size_t>(columns) + m.exact_columns[i]] = 1;
    }
    print(flags);
    print(std::vector<double>{m.fisher_mass, m.fisher_error, m.squared_error, m.squared_weight});
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
