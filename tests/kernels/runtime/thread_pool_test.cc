#include "kernels/host/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

namespace kvcc::host {
namespace {

TEST(ThreadPool, DoesEveryBlockOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const uint32_t count : {0u, 1u, 2u, 7u, 64u, 1000u}) {
      for (const uint32_t part : {1u, 3u, 64u, 5000u}) {
        std::vector<std::atomic<int>> done(count);
        std::atomic<bool> wrong{false};
        pool.run(count, part, [&](int thread, uint32_t first, uint32_t last) {
          if (thread < 0 || thread >= threads || first >= last || last > count) wrong = true;
          for (uint32_t i = first; i < last; ++i) ++done[i];
        });
        EXPECT_FALSE(wrong);
        for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(done[i], 1) << i << " of " << count << ", parts of " << part;
      }
    }
  }
}

TEST(ThreadPool, OneThreadsCallsFollowOneAnother) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  std::vector<int> sums(4, 0);  // not atomic: a data race shows under the thread sanitiser
  std::atomic<int> overlaps{0};
  for (int job = 0; job < 200; ++job) {
    pool.run(100, 1, [&](int thread, uint32_t, uint32_t) {
      if (busy[thread].fetch_add(1) != 0) ++overlaps;
      std::this_thread::yield();
      ++sums[thread];
      busy[thread].fetch_sub(1);
    });
  }
  EXPECT_EQ(overlaps, 0);
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), 0), 200 * 100);
}

TEST(ThreadPool, ManyShortJobsAndSleepsBetween) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int job = 0; job < 5000; ++job) {
    pool.run(4, 1, [&](int, uint32_t first, uint32_t) { sum += first; });
    if (job % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(sum, 5000 * 6);
}

TEST(ThreadPool, ThrowsWhatTheWorkThrows) {
  ThreadPool pool(3);
  for (int job = 0; job < 50; ++job) {
    std::atomic<int> done{0};
    EXPECT_THROW(pool.run(100, 1,
                          [&](int, uint32_t first, uint32_t) {
                            if (first == 20) throw std::runtime_error("block 20");
                            ++done;
                          }),
                 std::runtime_error);
    EXPECT_LT(done, 100);
    pool.run(100, 1, [&](int, uint32_t, uint32_t) { ++done; });
    EXPECT_GE(done, 100);
  }
}

TEST(ThreadPool, EndsWithoutAJob) {
  for (int i = 0; i < 20; ++i) {
    ThreadPool unused(4), used(4);
    used.run(8, 1, [](int, uint32_t, uint32_t) {});
  }
}

}  // namespace
}  // namespace kvcc::host
