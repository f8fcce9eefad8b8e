#include "kernels/host/thread_pool.h"

#include <algorithm>
#include <system_error>

namespace kvcc::host {
namespace {

constexpr uint64_t kOpen = 1, kEntered = 2, kEnteredMask = 0xfffe, kNumber = 0x10000;
constexpr int kSpins = 1500;  // about 20 microseconds; waking a thread that sleeps takes as long

void pause_a_little() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::start() {
  started_ = true;
  try {
    workers_.reserve(threads_ - 1);
    for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { serve(i); });
  } catch (const std::system_error&) {  // the work gets done all the same
  }
}

void ThreadPool::run_job(const Job& job) {
  if (threads_ <= 1 || job.count <= job.part) {
    if (job.count > 0) job.call(job.context, 0, 0, job.count);
    return;
  }
  if (!started_) start();
  job_ = job;
  next_.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  error_ = nullptr;
  state_.store((state_.load(std::memory_order_relaxed) & ~uint64_t{kNumber - 1}) + kNumber + kOpen);
  if (sleepers_.load() > 0) {
    const std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  take_parts(0);
  state_.fetch_and(~kOpen);
  for (int spins = 0; (state_.load(std::memory_order_acquire) & kEnteredMask) != 0; ++spins) {
    pause_a_little();
    if (spins > kSpins) std::this_thread::yield();  // another may wait for this core
  }
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(error_);
}

void ThreadPool::take_parts(int thread) {
  try {
    while (true) {
      const uint64_t first = next_.fetch_add(job_.part, std::memory_order_relaxed);
      if (first >= job_.count) return;
      const auto last = static_cast<uint32_t>(std::min<uint64_t>(first + job_.part, job_.count));
      job_.call(job_.context, thread, static_cast<uint32_t>(first), last);
    }
  } catch (...) {
    next_.store(job_.count, std::memory_order_relaxed);  // the others stop
    const std::lock_guard lock(mutex_);
    if (!failed_.load(std::memory_order_relaxed)) error_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }
}

/// Waits for an open job with another number than `seen`, and enters it. False: the pool ends.
bool ThreadPool::await_job(uint64_t& seen) {
  const auto fresh = [&](uint64_t state) { return (state & kOpen) != 0 && state / kNumber != seen; };
  while (!stop_.load(std::memory_order_relaxed)) {
    uint64_t state = state_.load(std::memory_order_acquire);
    for (int spins = 0; spins < kSpins && !fresh(state); ++spins) {
      pause_a_little();
      state = state_.load(std::memory_order_acquire);
    }
    if (fresh(state)) {
      if (!state_.compare_exchange_weak(state, state + kEntered, std::memory_order_acq_rel)) continue;
      seen = state / kNumber;
      return true;
    }
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);  // before the last look at the state, as the caller opens before it looks for sleepers
    wake_.wait(lock, [&] { return stop_.load() || fresh(state_.load()); });
    sleepers_.fetch_sub(1);
  }
  return false;
}

void ThreadPool::serve(int thread) {
  uint64_t seen = 0;
  while (await_job(seen)) {
    take_parts(thread);
    state_.fetch_sub(kEntered, std::memory_order_release);
  }
}

}  // namespace kvcc::host
