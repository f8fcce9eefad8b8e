// Lloyd-Max levels of known densities (METHODS.md 6.1, 7.1 b). Host only.
#pragma once

#include <functional>
#include <vector>

namespace kvcc {

/// The `count` levels of least mean squared error for a density on [low, high], ascending: Lloyd's iteration in double
/// until no level moves by 1e-12 of the interval. The density need not be normalised and is positive inside.
std::vector<double> lloyd_max(const std::function<double(double)>& density, double low, double high, int count);

/// 2^bits levels of a coordinate of a random unit vector in `dim` dimensions, whose density goes as
/// (1 - t^2)^((dim - 3) / 2); of a normal one of variance 1 / dim when `gaussian` is set. Times nothing: in units of
/// the unit vector. bits 1 to 5, dim at least 4. Computed once a (bits, dim).
std::vector<float> sphere_levels(int bits, int dim, bool gaussian);

/// 4 levels of the angle on [0, pi/2] of recursion level 2, 3 or 4 of PolarQuant b: density sin(2 t)^(2^(level-1) - 1).
std::vector<float> angle_levels(int level);

}  // namespace kvcc
