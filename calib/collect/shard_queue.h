// Writes shards on a thread of its own, so that hashing and syncing do not hold up the passes.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace kvcc {

/// Runs jobs one after another, in order. At most `capacity` wait, so memory stays bounded.
class ShardQueue {
 public:
  explicit ShardQueue(size_t capacity) : capacity_(capacity), worker_([this] { work(); }) {}
  /// Finishes what was put; an error that nobody asked for is dropped here, call drain() to get it.
  ~ShardQueue();
  ShardQueue(const ShardQueue&) = delete;
  ShardQueue& operator=(const ShardQueue&) = delete;

  /// Waits for room. Throws what an earlier job threw.
  void put(std::function<void()> job);
  /// Waits until all jobs are done. Throws what a job threw.
  void drain();

 private:
  void work();

  size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false, closing_ = false;
  std::exception_ptr error_;
  std::thread worker_;
};

}  // namespace kvcc
