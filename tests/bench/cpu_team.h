// A few threads that spin between jobs, so that a job of microseconds is not dominated by waking them, and memory in
// huge pages. All contestants of the benchmark run on these.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvcc::bench {

/// Waits for a condition, and lets others run when that takes long: on a machine that is busy with something else.
template <class Done>
void spin_until(const Done& done) {
  for (int spins = 0; !done(); ++spins) {
    if (spins > 4000) std::this_thread::yield();
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
}

/// `threads` threads, the caller being the first. run() is for one caller at a time.
class Team {
 public:
  explicit Team(int threads) {
    for (int i = 1; i < threads; ++i) members_.emplace_back([this, i] { serve(i); });
  }
  ~Team() {
    stop_.store(true);
    round_.fetch_add(1, std::memory_order_release);
    for (auto& member : members_) member.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  int size() const { return static_cast<int>(members_.size()) + 1; }

  /// job(thread) on every thread; returns when all have ended. The job must not throw.
  template <class Job>
  void run(const Job& job) {
    job_ = &job;
    call_ = [](const void* what, int thread) { (*static_cast<const Job*>(what))(thread); };
    left_.store(static_cast<int>(members_.size()), std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    job(0);
    spin_until([this] { return left_.load(std::memory_order_acquire) == 0; });
  }

  /// Blocks 0 to blocks - 1 in contiguous ranges, one a thread: job(first, last).
  template <class Job>
  void ranges(uint32_t blocks, const Job& job) {
    const auto members = static_cast<uint32_t>(size());
    run([&](int thread) { job(blocks * thread / members, blocks * (thread + 1) / members); });
  }

 private:
  void serve(int thread) {
    for (uint64_t seen = 0;;) {
      spin_until([&] { return round_.load(std::memory_order_acquire) != seen; });
      ++seen;  // run() waits for all, so there is never more than one
      if (stop_.load()) return;
      call_(job_, thread);
      left_.fetch_sub(1, std::memory_order_release);
    }
  }
  std::vector<std::thread> members_;
  std::atomic<uint64_t> round_{0};
  std::atomic<int> left_{0};
  std::atomic<bool> stop_{false};
  const void* job_ = nullptr;
  void (*call_)(const void*, int) = nullptr;
};

/// Zeroed memory from the system, in huge pages where it has them (a fourth of a long row's time is else spent on
/// misses of the TLB, the longer rows' more than the shorter ones').
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes) : bytes_((bytes + kHuge - 1) / kHuge * kHuge + kHuge) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    madvise(data_, bytes_, MADV_HUGEPAGE);
  }
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  uint8_t* data() const {
    return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(data_) + kHuge - 1) / kHuge * kHuge);
  }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;
  void swap(Memory& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kvcc::bench
