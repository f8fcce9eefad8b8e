#include "calib/fit/parallel.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace kvcc {
namespace {

TEST(ParallelFor, TheFirstErrorIsThrownAfterAllHaveRun) {
  std::vector<int> ran(50, 0);
  try {
    parallel_for(50, 4, [&](int i) {
      ran[i] = 1;
      if (i == 7 || i == 30) throw std::runtime_error(std::to_string(i));
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "7");
  }
  EXPECT_EQ(std::count(ran.begin(), ran.end(), 1), 50);
}

TEST(ParallelFor, FewerThreadsThanAskedForDoTheWorkToo) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "SKIPPED: AddressSanitizer needs its address space";
#endif
  EXPECT_EXIT(
      {
        // Room for a stack or two: std::thread's constructor throws from then on.
        long pages = 0;
        std::FILE* file = std::fopen("/proc/self/statm", "r");
        if (std::fscanf(file, "%ld", &pages) != 1) std::_Exit(1);
        const rlim_t bytes = static_cast<rlim_t>(pages) * sysconf(_SC_PAGESIZE) + (20u << 20);
        rlimit limit;
        limit.rlim_cur = limit.rlim_max = bytes;
        setrlimit(RLIMIT_AS, &limit);
        std::atomic<int> done{0};
        parallel_for(64, 64, [&](int) {
          usleep(1000);
          ++done;
        });
        std::_Exit(done == 64 ? 42 : 1);
      },
      testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace kvcc
