// The emulator itself: each fault raised by a small kernel made for it, schedules that differ in order and not in
// results. Arithmetic: emulator_arithmetic_test.cc; races, which only ThreadSanitizer sees: tests/kernels/emulated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/device/intrinsics.cuh"
#include "kernels/emulator/emulator.h"

namespace kvcc::emulator {
namespace {

using device::kWholeWarp;
using testing::AllOf;
using testing::HasSubstr;

using Kernel = std::function<void()>;

void launch_kernel(const Kernel& kernel, const Options& options = {}, KvccGrid grid = {1, 1, 1}, int threads = 128,
                   size_t shared_bytes = 1024) {
  launch([](const void* k) { (*static_cast<const Kernel*>(k))(); }, &kernel, grid, threads, shared_bytes, options,
         "made");
}

std::string fault_of(const Kernel& kernel, const Options& options = {}, KvccGrid grid = {1, 1, 1}, int threads = 128) {
  try {
    launch_kernel(kernel, options, grid, threads);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "no fault";
}

constexpr Options kSchedules[] = {{Order::sequential, 1, false},
                                  {Order::reversed, 1, true},
                                  {Order::random, 1, false},
                                  {Order::random, 2, true},
                                  {Order::random, 77, false}};

std::string place(int line) { return "emulator_test.cc:" + std::to_string(line); }
uint32_t thread() { return device::thread_index(); }
uint32_t lane() { return thread() % 32; }

TEST(Emulator, IndicesCoverTheGridOnce) {
  for (const Options& options : kSchedules) {
    std::vector<int> seen(2 * 3 * 4 * 64);
    const KvccGrid grid{2, 3, 4};
    launch_kernel(
        [&] {
          const device::Block b = device::block_index();
          ++seen[((b.z * 3 + b.y) * 2 + b.x) * 64 + thread()];
        },
        options, grid, 64);
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
  }
}

TEST(Emulator, SchedulesDifferInOrder) {
  std::vector<std::vector<uint32_t>> orders;
  for (const Options& options : kSchedules) {
    std::vector<uint32_t> order;
    launch_kernel(
        [&] {
          order.push_back(device::block_index().x * 128 + thread());
          device::sync_block();
          order.push_back(thread());
          device::ballot(true);
          order.push_back(thread());
        },
        options, {3, 1, 1});
    ASSERT_EQ(order.size(), 3u * 3 * 128);
    orders.push_back(order);
    order.clear();
  }
  EXPECT_EQ(orders[0][0], 0u);
  EXPECT_EQ(orders[0][1], 1u);
  EXPECT_EQ(orders[1][0], 2u * 128 + 127);
  for (size_t i = 0; i < orders.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(orders[i], orders[j]) << i << " and " << j;
  }
}

TEST(Emulator, OneSeedIsOneOrder) {
  const auto order_of = [](uint32_t seed) {
    std::vector<uint32_t> order;
    launch_kernel(
        [&] {
          device::sync_block();
          order.push_back(thread());
        },
        {Order::random, seed}, {2, 1, 1});
    return order;
  };
  EXPECT_EQ(order_of(5), order_of(5));
  EXPECT_NE(order_of(5), order_of(6));
}

// A tree of sums over barriers, shuffles and atomics: every schedule must give the same.
TEST(Emulator, SchedulesAgreeInResults) {
  std::vector<uint32_t> first;
  for (const Options& options : kSchedules) {
    std::vector<uint32_t> out(4 * 128 + 1);
    launch_kernel(
        [&] {
          auto* const shared = static_cast<uint32_t*>(shared_memory());
          uint32_t x = device::block_index().x * 1000 + thread();
          for (uint32_t step = 1; step < 32; step *= 2) x = x * 3 + device::shuffle_xor(x, step);
          shared[thread()] = x;
          device::sync_block();
          x += shared[(thread() + 37) % 128];
          device::sync_block();
          shared[thread()] = x;
          device::sync_warp();
          x ^= shared[thread() ^ 1] + device::match_any(x % 3) + device::ballot(x % 5 == 0);
          device::atomic_add(&out[4 * 128], x);
          out[device::block_index().x * 128 + thread()] = x;
        },
        options, {4, 1, 1});
    if (first.empty()) first = out;
    EXPECT_EQ(out, first);
  }
  EXPECT_NE(first[0], first[1]);
}

TEST(Emulator, SharedMemoryIsPoisonedInEveryBlockAndAligned) {
  for (const Options& options : kSchedules) {
    int wrong = 0;
    launch_kernel(
        [&] {
          auto* const bytes = static_cast<unsigned char*>(shared_memory());
          if (reinterpret_cast<uintptr_t>(bytes) % 128 != 0) ++wrong;
          for (size_t i = thread(); i < 1024; i += 128) wrong += bytes[i] != 0xff;
          device::sync_block();
          bytes[thread()] = 1;
        },
        options, {3, 1, 1});
    EXPECT_EQ(wrong, 0);
  }
}

TEST(Emulator, WarpOperations) {
  launch_kernel([] {
    const uint32_t value = lane() * lane() % 7;
    EXPECT_EQ(device::shuffle(lane() * 10, 5), 50u);
    EXPECT_EQ(device::shuffle(lane() * 10, 37), 50u);  // modulo 32, as on the device
    EXPECT_EQ(device::shuffle_xor(lane(), 6), lane() ^ 6u);
    EXPECT_EQ(device::shuffle_xor(static_cast<float>(lane()), 16), static_cast<float>(lane() ^ 16u));
    EXPECT_EQ(device::ballot(lane() % 3 == 1), 0x92492492u);
    uint32_t equal = 0;
    for (uint32_t i = 0; i < 32; ++i) equal |= i * i % 7 == value ? 1u << i : 0u;
    EXPECT_EQ(device::match_any(value), equal);
    const uint32_t half = lane() < 16 ? 0x0000ffffu : 0xffff0000u;  // two meetings of one warp at once
    device::sync_warp(half);
    EXPECT_EQ(ballot(half, lane() % 2 == 0, "here", 1), half & 0x55555555u);
    const uint32_t columns =
        device::transpose_8x8((lane() / 4 * 8 + lane() % 4 * 2) | (lane() / 4 * 8 + lane() % 4 * 2 + 1) << 16);
    EXPECT_EQ(columns & 0xffffu, lane() % 4 * 2 * 8 + lane() / 4);
    EXPECT_EQ(columns >> 16, (lane() % 4 * 2 + 1) * 8 + lane() / 4);
  });
}

TEST(Emulator, AtomicsGiveTheValueBefore) {
  std::vector<uint32_t> seen(256);
  uint32_t counter = 0, bits = 0, most = 0;
  launch_kernel(
      [&] {
        ++seen[device::atomic_add(&counter, 1)];
        device::atomic_or(&bits, 1u << lane());
        device::atomic_max(&most, 1000 - thread());
        device::fence();
      },
      {Order::random, 3}, {2, 1, 1});
  EXPECT_EQ(seen, std::vector<uint32_t>(256, 1));
  EXPECT_EQ(bits, 0xffffffffu);
  EXPECT_EQ(most, 1000u);
}

// ---- faults

TEST(EmulatorFault, BarrierThatSomeThreadsNeverReach) {
  const int line = __LINE__ + 2;
  const Kernel kernel = [] {
    if (thread() < 96) device::sync_block();
  };
  for (const Options& options : kSchedules) {
    EXPECT_THAT(fault_of(kernel, options, {2, 1, 1}), AllOf(HasSubstr("kernel made, block ("), HasSubstr("sync_block"),
                                                            HasSubstr("left the kernel"), HasSubstr(place(line))));
  }
}

TEST(EmulatorFault, DifferentBarriers) {
  const int line = __LINE__ + 3;
  const Kernel kernel = [] {
    if (thread() < 64) {
      device::sync_block();
    } else {
      device::sync_block();
    }
  };
  for (const Options& options : kSchedules) {
    EXPECT_THAT(fault_of(kernel, options),
                AllOf(HasSubstr("different barriers"), HasSubstr(place(line)), HasSubstr(place(line + 2))));
  }
}

TEST(EmulatorFault, DifferentOperations) {
  const int line = __LINE__ + 3;
  const Kernel kernel = [] {
    if (lane() == 9) {
      device::ballot(true);
    } else {
      device::shuffle_xor(1u, 1);
    }
  };
  for (const Options& options : kSchedules) {
    EXPECT_THAT(fault_of(kernel, options),
                AllOf(HasSubstr("meet in different operations"), HasSubstr("ballot at"), HasSubstr(place(line)),
                      HasSubstr("shuffle at"), HasSubstr(place(line + 2))));
  }
}

TEST(EmulatorFault, DivergedAtBarrier) {
  const Kernel kernel = [] {
    if (lane() == 0) {
      device::sync_block();
    } else {
      device::sync_warp();
      device::sync_block();
    }
  };
  for (const Options& options : kSchedules) {
    EXPECT_THAT(fault_of(kernel, options), AllOf(HasSubstr("sync_warp at"), HasSubstr("sync_block at")));
  }
}

TEST(EmulatorFault, ShuffleFromALaneOutsideItsMask) {
  EXPECT_THAT(fault_of([] {
                if (lane() < 16) shuffle(0xffffu, 1, 16, "body.cuh", 12);
              }),
              AllOf(HasSubstr("shuffle at body.cuh:12"), HasSubstr("lane 16"), HasSubstr("mask does not name")));
}

TEST(EmulatorFault, MaskWithoutOwnLane) {
  EXPECT_THAT(fault_of([] { sync_warp(0xffffu, "body.cuh", 3); }),
              AllOf(HasSubstr("thread 16"), HasSubstr("0x0000ffff"), HasSubstr("does not name its own lane")));
}

TEST(EmulatorFault, MaskNamesLanesThatHaveLeft) {
  const Kernel kernel = [] {
    if (lane() >= 20) return;
    ballot(kWholeWarp, true, "body.cuh", 7);
  };
  for (const Options& options : kSchedules) {
    EXPECT_THAT(fault_of(kernel, options), AllOf(HasSubstr("left the kernel"), HasSubstr("body.cuh:7")));
  }
}

TEST(EmulatorFault, Deadlock) {
  // Three lanes in a ring: each waits for the next, no two for each other.
  const Kernel kernel = [] {
    if (lane() == 0) sync_warp(0b011, "ring.cuh", 1);
    if (lane() == 1) sync_warp(0b110, "ring.cuh", 2);
    if (lane() == 2) sync_warp(0b101, "ring.cuh", 3);
  };
  const std::string fault = fault_of(kernel, {}, {1, 1, 1}, 32);
  EXPECT_THAT(fault, AllOf(HasSubstr("deadlock"), HasSubstr("thread 0 in sync_warp at ring.cuh:1"),
                           HasSubstr("thread 1 in sync_warp at ring.cuh:2"), HasSubstr("ring.cuh:3")));
}

TEST(EmulatorFault, AsynchronousCopies) {
  std::vector<unsigned char> memory(64 + 16);
  auto* const source = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
  const auto copying = [&](size_t to, size_t from, bool wait) {
    return [=] {
      if (thread() != 3) return;
      copy_async_16(static_cast<char*>(shared_memory()) + to, source + from, "copy.cuh", 5);
      copy_async_commit();
      if (wait) copy_async_wait(0);
    };
  };
  EXPECT_EQ(fault_of(copying(16, 16, true)), "no fault");
  EXPECT_THAT(fault_of(copying(16, 16, false)),
              AllOf(HasSubstr("thread 3 left the kernel with 1 asynchronous copies"), HasSubstr("copy.cuh:5")));
  EXPECT_THAT(fault_of(copying(8, 16, true)), AllOf(HasSubstr("target is not aligned"), HasSubstr("copy.cuh:5")));
  EXPECT_THAT(fault_of(copying(16, 8, true)), HasSubstr("source is not aligned"));
  EXPECT_THAT(fault_of(copying(1024, 16, true)), HasSubstr("not in the block's shared memory"));
}

TEST(EmulatorFault, LaunchesThatNoDeviceTakes) {
  const auto fault = [](KvccGrid grid, int threads, size_t shared_bytes) -> std::string {
    try {
      launch([](const void*) {}, nullptr, grid, threads, shared_bytes);
    } catch (const Fault& f) {
      return f.what();
    }
    return "no fault";
  };
  EXPECT_EQ(fault({1, 1, 1}, 128, 0), "no fault");
  EXPECT_THAT(fault({0, 1, 1}, 128, 0), HasSubstr("grid (0, 1, 1)"));
  EXPECT_THAT(fault({1, 65536, 1}, 128, 0), HasSubstr("65536"));
  EXPECT_THAT(fault({1, 1, 1}, 100, 0), HasSubstr("multiple of 32"));
  EXPECT_THAT(fault({1, 1, 1}, 128, 300000), HasSubstr("300000 bytes of shared memory"));
  EXPECT_THROW(thread_index(), Fault);
}

// What the threads of a failed launch hold is released, and the next launch works.
TEST(EmulatorFault, ThreadsAreUnwound) {
  for (const Options& options : kSchedules) {
    const auto held = std::make_shared<int>(0);
    const Kernel kernel = [&] {
      const std::vector<std::shared_ptr<int>> mine(3, held);
      if (thread() == 70) throw std::runtime_error("a thread's own error");
      device::sync_block();
    };
    try {
      launch_kernel(kernel, options, {2, 1, 1});
      ADD_FAILURE() << "nothing thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "a thread's own error");
    }
    EXPECT_EQ(held.use_count(), 1);
    EXPECT_EQ(fault_of([] { device::sync_block(); }, options), "no fault");
  }
}

// ---- asynchronous copies

TEST(EmulatorAsync, LateAndEarlyShowWhatIsMissing) {
  alignas(16) const uint32_t source[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const bool early : {false, true}) {
    launch_kernel(
        [&] {
          auto* const shared = static_cast<uint32_t*>(shared_memory());
          if (thread() == 0) shared[0] = 99;
          if (thread() == 0) {
            device::copy_async_16(shared, source);
            device::copy_async_commit();
            device::copy_async_16(shared + 4, source + 4);
            device::copy_async_commit();
            EXPECT_EQ(shared[0], early ? 1u : 0xffffffffu);  // neither old nor new may be read here
            device::copy_async_wait<1>();
            EXPECT_EQ(shared[3], 4u);
            EXPECT_EQ(shared[4], early ? 5u : 0xffffffffu);
            device::copy_async_wait<0>();
            EXPECT_EQ(shared[7], 8u);
          }
        },
        {Order::sequential, 1, early}, {1, 1, 1}, 32);
  }
}

}  // namespace
}  // namespace kvcc::emulator
