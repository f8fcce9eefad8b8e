#include "calib/fit/vector_kmeans.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <queue>

namespace kvcc {
namespace {

using Vector = std::array<double, kMostGroupWidth>;

/// Points order[begin, end) with their weighted mean and squared error, and the direction in which they spread most.
struct Cell {
  int64_t begin = 0, end = 0;
  double weight = 0, error = 0;
  Vector mean{}, direction{};
};

class Tree {
 public:
  explicit Tree(const WeightedPoints& points) : p_(points), order_(points.points.count), side_(points.points.count) {
    std::iota(order_.begin(), order_.end(), 0);
    add(0, points.points.count);
  }

  size_t size() const { return cells_.size(); }

  /// Splits the cell of the greatest error; false when no cell has any.
  bool split() {
    while (!open_.empty()) {
      const auto [error, negative] = open_.top();
      open_.pop();
      if (!(error > 0)) return false;
      const size_t at = static_cast<size_t>(-negative);
      const Cell cell = cells_[at];
      const int64_t middle = divide(cell);
      if (middle == cell.begin || middle == cell.end) continue;  // rounding: all points on one side
      cells_[at] = describe(cell.begin, middle);
      open_.emplace(cells_[at].error, negative);
      add(middle, cell.end);
      return true;
    }
    return false;
  }

  /// The cells' means, the last repeated up to `entries`.
  VectorCodebook codebook(size_t entries) const {
    VectorCodebook book;
    const size_t width = static_cast<size_t>(p_.points.width);
    for (size_t c = 0; c < entries; ++c) {
      const Cell& cell = cells_[std::min(c, cells_.size() - 1)];
      for (size_t i = 0; i < width; ++i) book.vectors.push_back(static_cast<float>(cell.mean[i]));
    }
    return book;
  }

 private:
  double at(int i, int64_t t) const { return p_.points.z[i * p_.points.step + t]; }

  void add(int64_t begin, int64_t end) {
    cells_.push_back(describe(begin, end));
    open_.emplace(cells_.back().error, -static_cast<int64_t>(cells_.size() - 1));
  }

  Cell describe(int64_t begin, int64_t end) const {
    const int width = p_.points.width;
    Cell cell;
    cell.begin = begin;
    cell.end = end;
    // Moments around the first point, so that little cancels.
    const int64_t first = order_[begin];
    Vector centre{}, sum{};
    std::array<Vector, kMostGroupWidth> square{};
    for (int i = 0; i < width; ++i) centre[i] = at(i, first);
    for (int64_t k = begin; k < end; ++k) {
      const int64_t t = order_[k];
      const double w = p_.weight[t];
      cell.weight += w;
      Vector x;
      for (int i = 0; i < width; ++i) {
        x[i] = at(i, t) - centre[i];
        const double wx = w * x[i];
        sum[i] += wx;
        for (int j = 0; j <= i; ++j) square[i][j] += wx * x[j];
      }
    }
    cell.mean = centre;
    if (!(cell.weight > 0)) return cell;
    int widest = 0;
    for (int i = 0; i < width; ++i) {
      const double mean = sum[i] / cell.weight;
      cell.mean[i] += mean;
      for (int j = 0; j <= i; ++j) {
        square[i][j] -= mean * sum[j];
        square[j][i] = square[i][j];
      }
      cell.error += std::max(square[i][i], 0.0);
      if (square[i][i] > square[widest][widest]) widest = i;
    }
    // The greatest eigenvector, nearly: a few steps of the power method from the widest coordinate's column.
    cell.direction = square[widest];
    for (int step = 0; step < 6; ++step) {
      Vector next{};
      double length = 0;
      for (int i = 0; i < width; ++i) {
        for (int j = 0; j < width; ++j) next[i] += square[i][j] * cell.direction[j];
        length += next[i] * next[i];
      }
      if (!(length > 0) || !std::isfinite(length)) break;
      for (int i = 0; i < width; ++i) cell.direction[i] = next[i] / std::sqrt(length);
    }
    return cell;
  }

  /// Reorders the cell's points, those on the near side of its mean first and both sides in their order; returns where
  /// the far side begins.
  int64_t divide(const Cell& cell) {
    int64_t near = cell.begin, far = 0;
    for (int64_t k = cell.begin; k < cell.end; ++k) {
      const int64_t t = order_[k];
      double along = 0;
      for (int i = 0; i < p_.points.width; ++i) along += cell.direction[i] * (at(i, t) - cell.mean[i]);
      if (along <= 0) {
        order_[near++] = t;
      } else {
        side_[far++] = t;
      }
    }
    std::copy_n(side_.begin(), far, order_.begin() + near);
    return near;
  }

  const WeightedPoints& p_;
  std::vector<int64_t> order_, side_;
  std::vector<Cell> cells_;
  std::priority_queue<std::pair<double, int64_t>>
      open_;  ///< error and minus the cell, so that equal errors are in order
};

/// One assignment; the error under the vectors as they are.
class Lloyd {
 public:
  explicit Lloyd(const WeightedPoints& points)
      : p_(points), code_(points.points.count), distance_(points.points.count) {}

  double assign(const std::vector<float>& vectors) {
    const int entries = static_cast<int>(vectors.size()) / p_.points.width;
    nearest_vectors(p_.points, vectors.data(), entries, code_.data(), distance_.data());
    double error = 0;
    for (int64_t t = 0; t < p_.points.count; ++t) error += static_cast<double>(p_.weight[t]) * distance_[t];
    return error;
  }

  /// Vectors to the means of their points. Whether any moved.
  bool move(std::vector<float>& vectors) {
    const int width = p_.points.width;
    const size_t entries = vectors.size() / width;
    std::vector<double> weight(entries), sum(vectors.size());
    std::vector<uint8_t> used(entries);
    for (int64_t t = 0; t < p_.points.count; ++t) {
      const double w = p_.weight[t];
      const size_t c = code_[t];
      weight[c] += w;
      used[c] = 1;
      for (int i = 0; i < width; ++i) sum[c * width + i] += w * p_.points.z[i * p_.points.step + t];
    }
    bool moved = false;
    for (size_t c = 0; c < entries; ++c) {
      if (!used[c] || !(weight[c] > 0)) continue;
      for (int i = 0; i < width; ++i) {
        const float mean = static_cast<float>(sum[c * width + i] / weight[c]);
        moved = moved || mean != vectors[c * width + i];
        vectors[c * width + i] = mean;
      }
    }
    for (size_t c = 0; c < entries; ++c) {
      if (!used[c]) moved = relocate(vectors.data() + c * width) || moved;
    }
    return moved;
  }

 private:
  /// To the point of the greatest weighted distance, which then counts as coded; false when none has any.
  bool relocate(float* vector) {
    int64_t worst = -1;
    double most = 0;
    for (int64_t t = 0; t < p_.points.count; ++t) {
      const double error = static_cast<double>(p_.weight[t]) * distance_[t];
      if (error > most) {
        most = error;
        worst = t;
      }
    }
    if (worst < 0) return false;
    for (int i = 0; i < p_.points.width; ++i) vector[i] = p_.points.z[i * p_.points.step + worst];
    distance_[worst] = 0;
    return true;
  }

  const WeightedPoints& p_;
  std::vector<uint16_t> code_;
  std::vector<float> distance_;
};

void run_lloyd(Lloyd& lloyd, VectorCodebook& codebook, int rounds) {
  codebook.error = lloyd.assign(codebook.vectors);
  for (int round = 0; round < rounds; ++round) {
    VectorCodebook next = codebook;
    if (!lloyd.move(next.vectors)) return;
    next.error = lloyd.assign(next.vectors);
    if (next.error > codebook.error) return;  // rounding, at the end
    codebook = std::move(next);
  }
}

}  // namespace

std::vector<VectorCodebook> grow_codebooks(const WeightedPoints& points, int max_bits, int rounds) {
  std::vector<VectorCodebook> books;
  Tree tree(points);
  Lloyd lloyd(points);
  for (int bits = 0; bits <= max_bits; ++bits) {
    const size_t entries = size_t{1} << bits;
    while (tree.size() < entries && tree.split()) {
    }
    books.push_back(tree.codebook(entries));
    run_lloyd(lloyd, books.back(), bits == 0 ? 0 : rounds);
  }
  return books;
}

void improve(const WeightedPoints& points, VectorCodebook& codebook, int rounds) {
  Lloyd lloyd(points);
  run_lloyd(lloyd, codebook, rounds);
}

double coding_error(const WeightedPoints& points, std::span<const float> vectors) {
  return Lloyd(points).assign({vectors.begin(), vectors.end()});
}

}  // namespace kvcc
