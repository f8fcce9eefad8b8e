// The emulator itself: each fault raised by a small kernel made for it, schedules that differ in order and not in
// results, arithmetic against other arithmetic. Races, which only ThreadSanitizer sees: tests/kernels/emulated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
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

// ---- arithmetic, against long double and brute force

/// The fp16 nearest to x, ties to even, by search over all of them.
uint16_t nearest_half(long double x) {
  const bool negative = std::signbit(x);
  const long double magnitude = std::fabs(x);
  if (magnitude >= 65520.0L) return negative ? 0xfc00 : 0x7c00;
  uint16_t low = 0, high = 0x7bff;  // greatest not above
  while (low < high) {
    const auto middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (half_to_float(middle) <= magnitude) {
      low = middle;
    } else {
      high = static_cast<uint16_t>(middle - 1);
    }
  }
  const long double below = half_to_float(low), above = low == 0x7bff ? 65536.0L : half_to_float(low + 1);
  const long double down = magnitude - below, up = above - magnitude;
  const auto rounded = static_cast<uint16_t>(down < up || (down == up && low % 2 == 0) ? low : low + 1);
  return static_cast<uint16_t>(rounded | (negative ? 0x8000 : 0));
}

// Products of fp16 have exponents from -48 to 32, sums with a third one need up to 81 bits: long double has 64. Where
// its sum is not exact the tie is broken by what was lost.
uint16_t exact_fma(uint16_t a, uint16_t b, uint16_t c) {
  const long double product = static_cast<long double>(half_to_float(a)) * half_to_float(b), addend = half_to_float(c);
  const long double sum = product + addend, part = sum - product;
  const long double lost = (product - (sum - part)) + (addend - part);
  if (lost == 0) return nearest_half(sum);
  const uint16_t one = nearest_half(std::nextafter(sum, lost > 0 ? INFINITY : -INFINITY));
  return nearest_half(sum) == one ? one : nearest_half(sum + (lost > 0 ? 1 : -1) * std::fabs(sum) * 0x1p-50L);
}

bool is_nan(uint16_t h) { return (h & 0x7fff) > 0x7c00; }
bool is_finite(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

TEST(EmulatorArithmetic, HalfPairsAreRoundedOnce) {
  std::mt19937 random(3);
  const auto draw = [&] {
    const uint32_t kind = random() % 8;
    uint32_t h = random() & 0xffff;
    if (kind == 0) h &= 0x83ff;                // subnormal
    if (kind == 1) h = (h & 0x83ff) | 0x3c00;  // around one: many ties
    if (kind == 2) h &= 0xfff0;                // few bits
    if (!is_finite(static_cast<uint16_t>(h))) h &= 0xbfff;
    return static_cast<uint16_t>(h);
  };
  int subnormal = 0, infinite = 0;
  for (int i = 0; i < 300000; ++i) {
    const uint16_t a = draw(), b = draw(), c = draw(), d = draw(), e = draw(), f = draw();
    const auto pair = [](uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; };
    const uint32_t fma = device::fma_half2(pair(a, d), pair(b, e), pair(c, f));
    ASSERT_EQ(fma & 0xffff, exact_fma(a, b, c)) << a << " " << b << " " << c;
    ASSERT_EQ(fma >> 16, exact_fma(d, e, f)) << d << " " << e << " " << f;
    const long double x = half_to_float(a), y = half_to_float(b);
    ASSERT_EQ(device::multiply_half2(pair(a, 0), pair(b, 0)) & 0xffff, nearest_half(x * y));
    ASSERT_EQ(device::add_half2(pair(0, a), pair(0, b)) >> 16, nearest_half(x + y));
    subnormal += (fma & 0x7c00) == 0 && (fma & 0x3ff) != 0;
    infinite += (fma & 0x7fff) == 0x7c00;
  }
  EXPECT_GT(subnormal, 1000);
  EXPECT_GT(infinite, 1000);
}

// 3 * 683 = 2049 is a tie of fp16; what is added is lost when the sum is rounded to float first.
TEST(EmulatorArithmetic, NoDoubleRounding) {
  const auto fma = [](float a, float b, float c) {
    return half_to_float(
        static_cast<uint16_t>(device::fma_half2(float_to_half(a), float_to_half(b), float_to_half(c))));
  };
  EXPECT_EQ(fma(3, 683, 0), 2048.0f);
  EXPECT_EQ(fma(3, 683, 0x1p-24f), 2050.0f);
  EXPECT_EQ(fma(3, 683, -0x1p-24f), 2048.0f);
  EXPECT_EQ(fma(7, 293, 0), 2052.0f);
  EXPECT_EQ(fma(7, 293, -0x1p-24f), 2050.0f);
  EXPECT_EQ(fma(0x1p-24f, 0x1p-24f, 32768), 32768.0f);
}

TEST(EmulatorArithmetic, HalfPairsSpecialCases) {
  const uint16_t infinity = 0x7c00, nan = 0x7e01, one = 0x3c00, minus_zero = 0x8000;
  EXPECT_EQ(multiply_half2(infinity, 0) & 0xffff, 0x7fffu);
  EXPECT_EQ(add_half2(infinity, 0xfc00) & 0xffff, 0x7fffu);
  EXPECT_TRUE(is_nan(static_cast<uint16_t>(fma_half2(nan, one, one))));
  EXPECT_EQ(fma_half2(infinity, one, one) & 0xffff, infinity);
  EXPECT_EQ(add_half2(minus_zero, minus_zero) & 0xffff, minus_zero);
  EXPECT_EQ(fma_half2(one, minus_zero, 0) & 0xffff, 0u);
}

TEST(EmulatorArithmetic, PowersOfTwo) {
  for (float x = -140; x < 130; x += 0.37f) {
    const float y = device::exp2_approximate(x);
    if (x < -126) {
      EXPECT_EQ(y, 0.0f) << x;
    } else if (x < 128) {
      EXPECT_NEAR(y, std::exp2(static_cast<long double>(x)), std::ldexp(y, -23)) << x;
    } else {
      EXPECT_EQ(y, INFINITY);
    }
  }
  EXPECT_EQ(device::exp2_approximate(-INFINITY), 0.0f);
  EXPECT_EQ(device::exp2_approximate(3.0f), 8.0f);
  EXPECT_EQ(float_bits(device::exp2_approximate(-1e-40f)), 0x3f800000u);
  EXPECT_TRUE(std::isnan(device::exp2_approximate(NAN)));
}

TEST(EmulatorArithmetic, TensorCoreEqualsTheProductInLongDouble) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const float scale : {1.0f, 1e-5f, 200.0f}) {
    uint16_t a[16][16], b[16][8];
    float c[16][8], d[16][8];
    for (auto& row : a) {
      for (auto& x : row) x = float_to_half(normal(random) * scale);
    }
    for (auto& row : b) {
      for (auto& x : row) x = float_to_half(normal(random) * scale);
    }
    for (auto& row : c) {
      for (auto& x : row) x = normal(random);
    }
    launch_kernel(
        [&] {
          const uint32_t g = lane() / 4, t = lane() % 4;
          const auto pair = [](uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; };
          const auto from_a = [&](uint32_t i, uint32_t k) { return pair(a[i][k], a[i][k + 1]); };
          const uint32_t fragment[4] = {from_a(g, 2 * t), from_a(g + 8, 2 * t), from_a(g, 2 * t + 8),
                                        from_a(g + 8, 2 * t + 8)};
          float sum[4] = {c[g][2 * t], c[g][2 * t + 1], c[g + 8][2 * t], c[g + 8][2 * t + 1]};
          device::mma_16816(sum, fragment, pair(b[2 * t][g], b[2 * t + 1][g]), pair(b[2 * t + 8][g], b[2 * t + 9][g]));
          for (uint32_t i = 0; i < 4; ++i) d[g + i / 2 * 8][2 * t + i % 2] = sum[i];
        },
        {}, {1, 1, 1}, 32);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        long double exact = c[i][j], magnitude = std::fabs(exact);
        for (int k = 0; k < 16; ++k) {
          const long double term = static_cast<long double>(half_to_float(a[i][k])) * half_to_float(b[k][j]);
          exact += term;
          magnitude += std::fabs(term);
        }
        // One rounding to f32; the sum in double is off by far less.
        ASSERT_NEAR(d[i][j], exact, std::fabs(exact) * 0x1.0001p-24L + magnitude * 0x1p-49L) << i << " " << j;
      }
    }
  }
}

}  // namespace
}  // namespace kvcc::emulator
