// Persistent threads that share the blocks of one call: the caller works too, the others spin for some microseconds
// after a job, so that the next layer's finds them awake, and sleep after that. Host only.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace kvcc::host {

class ThreadPool {
 public:
  /// `threads`: with the caller's, at least 1. Threads are started with the first job that can use them; fewer where
  /// the system refuses more.
  explicit ThreadPool(int threads) : threads_(threads) {}
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls work(thread, first, last) for parts of [0, count) of at most `part` each until all are done; `thread` is
  /// from 0 to threads() - 1, and one thread's calls follow one another. An exception of the work is thrown here, after
  /// all threads have stopped. By one thread at a time, and not from within the work.
  template <class Work>
  void run(uint32_t count, uint32_t part, const Work& work) {
    run_job({[](const void* context, int thread, uint32_t first, uint32_t last) {
               (*static_cast<const Work*>(context))(thread, first, last);
             },
             &work, count, part});
  }

 private:
  struct Job {
    void (*call)(const void* context, int thread, uint32_t first, uint32_t last) = nullptr;
    const void* context = nullptr;
    uint32_t count = 0, part = 1;
  };

  void run_job(const Job& job);
  void start();
  void serve(int thread);
  void take_parts(int thread);
  bool await_job(uint64_t& seen);

  const int threads_;
  std::vector<std::thread> workers_;
  bool started_ = false;

  Job job_;
  std::atomic<uint64_t> next_{0};  ///< first block that nobody has taken
  /// Bit 0: a job is open; bits 1 to 15: workers in it; above: its number. A worker enters and leaves by one atomic
  /// step, so that the caller need not wait for those that still sleep.
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<bool> failed_{false};
  std::exception_ptr error_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace kvcc::host
