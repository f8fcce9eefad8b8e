// Drives calib/fit/kmeans1d for the Python oracle tests. Reads doubles from stdin (native little-endian):
//   k, tolerance, n, x [n], w [n];  tolerance 0: exact, else superpoints merged for that relative bound.
// Prints one JSON object: objective, gap_bound, relative_bound, superpoints, centres.
#include <cstdio>
#include <vector>

#include "calib/fit/kmeans1d.h"
#include "calib/fit/quantiles.h"
#include "formats/core/error.h"

namespace {
double read_one() {
  double v = 0;
  if (std::fread(&v, sizeof v, 1, stdin) != 1) std::fprintf(stderr, "short input\n");
  return v;
}
}  // namespace

int main(int argc, char** argv) {
  using namespace kvcc;
  try {
    if (argc > 1 && std::string(argv[1]) == "quantiles") {  // sparse, n, x [n]
      const double sparse = read_one();
      std::vector<float> x(static_cast<size_t>(read_one()));
      for (float& v : x) v = static_cast<float>(read_one());
      const Ends ends = quantile_ends(x, sparse);
      std::printf("{\"lower\": %.17g, \"upper\": %.17g}\n", ends.lower, ends.upper);
      return 0;
    }
    const int k = static_cast<int>(read_one());
    const double tolerance = read_one();
    const size_t n = static_cast<size_t>(read_one());
    std::vector<double> x(n), w(n);
    for (double& v : x) v = read_one();
    for (double& v : w) v = read_one();
    std::vector<Superpoint> points = superpoints_of(x, w);
    if (tolerance > 0) points = merge_superpoints(points, extent_limit(points, k, tolerance));
    const KMeans1d result = cluster_superpoints(points, std::vector<int>{k}).front();
    std::printf(
        "{\"objective\": %.17g, \"gap_bound\": %.17g, \"relative_bound\": %.17g, \"superpoints\": %zu, \"centres\": [",
        result.objective, result.gap_bound, result.relative_bound(), points.size());
    for (size_t i = 0; i < result.centres.size(); ++i) std::printf("%s%.17g", i ? ", " : "", result.centres[i]);
    std::printf("]}\n");
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_code();
  }
  return 0;
}
