#include "calib/collect/shard_queue.h"

#include <utility>

namespace kvcc {

ShardQueue::~ShardQueue() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void ShardQueue::put(std::function<void()> job) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.size() < capacity_ || error_; });
  if (error_) std::rethrow_exception(error_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void ShardQueue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return (jobs_.empty() && !busy_) || error_; });
  if (error_) std::rethrow_exception(error_);
}

void ShardQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !jobs_.empty() || closing_; });
    if (jobs_.empty() || error_) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    error_ = error;
    changed_.notify_all();
    if (error_) return;
  }
}

}  // namespace kvcc
