// Independent tasks over threads. Tasks write to places of their own, so that results don't depend on the threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace kvcc {

/// Runs task(0) … task(count - 1). All run even when some throw; the error of the lowest index is the one rethrown.
/// Where the system has no more threads to give, fewer do the work.
template <typename Task>
void parallel_for(int count, int threads, const Task& task) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(std::max(count, 0)));
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int i = next++; i < count; i = next++) {
      try {
        task(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> pool;
  try {
    for (int t = 1; t < std::min(threads, count); ++t) pool.emplace_back(work);
  } catch (const std::system_error&) {
  }
  work();
  for (std::thread& thread : pool) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace kvcc
