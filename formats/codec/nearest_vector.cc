#include "formats/codec/nearest_vector.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "formats/codec/clones.h"

namespace kvcc {
namespace {

constexpr int kLanes = 16, kBlock = 2 * kLanes;  ///< points that are compared at once
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Indices __attribute__((vector_size(kLanes * sizeof(int32_t))));

/// kBlock points, planes `step` apart. A point beyond the last is the last again.
template <int kWidth>
__attribute__((always_inline)) inline void nearest_block(const float* z, ptrdiff_t step, const float* vectors,
                                                         int entries, int32_t* code, float* distance) {
  Lanes x[kWidth][2];
  for (int i = 0; i < kWidth; ++i) std::memcpy(x[i], z + i * step, sizeof x[i]);
  Lanes best[2];
  Indices index[2] = {};
  for (int c = 0; c < entries; ++c) {
    const float* v = vectors + static_cast<ptrdiff_t>(c) * kWidth;
    for (int b = 0; b < 2; ++b) {
      Lanes sum{};
      for (int i = 0; i < kWidth; ++i) {
        const Lanes difference = x[i][b] - v[i];
        sum = i == 0 ? difference * difference : sum + difference * difference;
      }
      if (c == 0) {
        best[b] = sum;
        continue;
      }
      const Indices less = sum < best[b];
      best[b] = less ? sum : best[b];
      index[b] = less ? Indices{} + c : index[b];
    }
  }
  std::memcpy(code, index, sizeof index);
  std::memcpy(distance, best, sizeof best);
}

KVCC_CLONES void nearest(int width, const float* z, ptrdiff_t step, int64_t blocks, const float* vectors, int entries,
                         int32_t* code, float* distance) {
  for (int64_t b = 0; b < blocks; ++b, z += kBlock, code += kBlock, distance += kBlock) {
    switch (width) {
      case 1:
        nearest_block<1>(z, step, vectors, entries, code, distance);
        break;
      case 2:
        nearest_block<2>(z, step, vectors, entries, code, distance);
        break;
      case 3:
        nearest_block<3>(z, step, vectors, entries, code, distance);
        break;
      case 4:
        nearest_block<4>(z, step, vectors, entries, code, distance);
        break;
      case 5:
        nearest_block<5>(z, step, vectors, entries, code, distance);
        break;
      case 6:
        nearest_block<6>(z, step, vectors, entries, code, distance);
        break;
      case 7:
        nearest_block<7>(z, step, vectors, entries, code, distance);
        break;
      default:
        nearest_block<8>(z, step, vectors, entries, code, distance);
    }
  }
}

}  // namespace

void nearest_vectors(const GroupPoints& points, const float* vectors, int entries, uint16_t* code, float* distance) {
  constexpr int64_t kAtOnce = 32 * kBlock;
  int32_t index[kAtOnce];
  float least[kAtOnce], tail[kMostGroupWidth * kBlock];
  for (int64_t begin = 0; begin < points.count;) {
    const int64_t left = points.count - begin;
    const int64_t taken = left >= kBlock ? std::min(left / kBlock * kBlock, kAtOnce) : left;
    if (taken >= kBlock) {
      nearest(points.width, points.z + begin, points.step, taken / kBlock, vectors, entries, index, least);
    } else {
      for (int i = 0; i < points.width; ++i) {
        for (int64_t t = 0; t < kBlock; ++t) {
          tail[i * kBlock + t] = points.z[i * points.step + begin + std::min(t, left - 1)];
        }
      }
      nearest(points.width, tail, kBlock, 1, vectors, entries, index, least);
    }
    std::copy_n(index, taken, code + begin);
    if (distance != nullptr) std::copy_n(least, taken, distance + begin);
    begin += taken;
  }
}

}  // namespace kvcc
