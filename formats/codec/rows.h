// Work over a tensor's rows by several threads, the same result for any number of them. Host only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "formats/core/error.h"

namespace kvcc {

/// Runs work(begin, end) over contiguous pieces of [0, rows) and adds up what it returns. The error of the first
/// failing row is the one thrown, whatever the number of threads.
template <typename Work>
int64_t over_rows(int64_t rows, int threads, const Work& work) {
  const int pieces = static_cast<int>(std::clamp<int64_t>(threads, 1, std::max<int64_t>(rows, 1)));
  if (pieces == 1) return work(int64_t{0}, rows);
  std::vector<int64_t> counts(pieces);
  std::vector<std::exception_ptr> errors(pieces);
  std::vector<std::thread> pool;
  for (int p = 0; p < pieces; ++p) {
    pool.emplace_back([&, p] {
      try {
        counts[p] = work(rows * p / pieces, rows * (p + 1) / pieces);
      } catch (...) {
        errors[p] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
  int64_t total = 0;
  for (int p = 0; p < pieces; ++p) {
    if (errors[p]) std::rethrow_exception(errors[p]);
    total += counts[p];
  }
  return total;
}

/// Rows of `n` values in x, which must be whole and as many in `out_size`. Throws Error(failed).
inline int64_t check_rows(size_t size, size_t out_size, int64_t n, const std::string& place) {
  if (size % static_cast<size_t>(n) != 0 || out_size != size) {
    throw Error(ErrorKind::failed, place, std::to_string(size) + " values into " + std::to_string(out_size),
                "whole rows of " + std::to_string(n) + ", as many out as in");
  }
  return static_cast<int64_t>(size) / n;
}

inline std::string token_place(const std::string& place, int64_t token) {
  return place + ", token " + std::to_string(token);
}

}  // namespace kvcc
