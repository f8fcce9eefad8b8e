#include "formats/codec/lloyd.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "formats/core/error.h"

namespace kvcc {
namespace {

// Gauss-Legendre of 8 points on [-1, 1] (Abramowitz and Stegun, table 25.4), the positive half.
constexpr std::array<double, 4> kPoints = {0.1834346424956498, 0.5255324099163290, 0.7966664774136267,
                                           0.9602898564975363};
constexpr std::array<double, 4> kWeights = {0.3626837833783620, 0.3137066458778873, 0.2223810344533745,
                                            0.1012285362903763};
constexpr int kPieces = 4;  ///< of a cell

/// Mean of the density over [low, high].
double centroid(const std::function<double(double)>& density, double low, double high) {
  double mass = 0, moment = 0;
  for (int piece = 0; piece < kPieces; ++piece) {
    const double half = (high - low) / kPieces / 2, centre = low + (2 * piece + 1) * half;
    for (size_t p = 0; p < kPoints.size(); ++p) {
      for (const double side : {-1.0, 1.0}) {
        const double t = centre + side * half * kPoints[p], weight = kWeights[p] * density(t);
        mass += weight;
        moment += weight * t;
      }
    }
  }
  return mass > 0 ? moment / mass : (low + high) / 2;
}

}  // namespace

std::vector<double> lloyd_max(const std::function<double(double)>& density, double low, double high, int count) {
  std::vector<double> levels(count);
  for (int j = 0; j < count; ++j) levels[j] = low + (high - low) * (j + 0.5) / count;
  for (int round = 0; round < 20000; ++round) {
    double moved = 0, begin = low;
    std::vector<double> next(count);
    for (int j = 0; j < count; ++j) {
      const double end = j + 1 < count ? (levels[j] + levels[j + 1]) / 2 : high;
      next[j] = centroid(density, begin, end);
      moved = std::max(moved, std::fabs(next[j] - levels[j]));
      begin = end;
    }
    levels = std::move(next);
    if (moved < 1e-12 * (high - low)) break;
  }
  return levels;
}

std::vector<float> sphere_levels(int bits, int dim, bool gaussian) {
  if (bits < 1 || bits > 5 || dim < 4) {
    throw Error(ErrorKind::usage, "Lloyd-Max grid",
                std::to_string(bits) + " bits for heads of " + std::to_string(dim) + " channels",
                "1 to 5 bits, at least 4 channels");
  }
  static std::mutex mutex;
  static std::map<std::tuple<int, int, bool>, std::vector<float>> made;
  const std::scoped_lock lock(mutex);
  std::vector<float>& levels = made[{bits, dim, gaussian}];
  if (!levels.empty()) return levels;
  // Symmetric, so the positive half is a problem of its own, in units of the standard deviation. Beyond 9 of them the
  // normal density is below 1e-17 of its peak.
  const double unit = std::sqrt(static_cast<double>(dim)), power = (dim - 3) / 2.0;
  const auto sphere = [=](double z) { return std::pow(std::max(0.0, 1 - z * z / dim), power); };
  const auto normal = [](double z) { return std::exp(-z * z / 2); };
  const std::vector<double> half =
      gaussian ? lloyd_max(normal, 0, 9, 1 << (bits - 1)) : lloyd_max(sphere, 0, std::min(9.0, unit), 1 << (bits - 1));
  for (auto level = half.rbegin(); level != half.rend(); ++level) levels.push_back(static_cast<float>(-*level / unit));
  for (const double level : half) levels.push_back(static_cast<float>(level / unit));
  return levels;
}

std::vector<float> angle_levels(int level) {
  const double power = (1 << (level - 1)) - 1;
  const std::vector<double> half =  // symmetric about pi / 4
      lloyd_max([=](double t) { return std::pow(std::sin(2 * t), power); }, 0, M_PI_4, 2);
  return {static_cast<float>(half[0]), static_cast<float>(half[1]), static_cast<float>(M_PI_2 - half[1]),
          static_cast<float>(M_PI_2 - half[0])};
}

}  // namespace kvcc
