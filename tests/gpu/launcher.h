// Where kernels run: on a GPU by the CUDA runtime, or in the emulator by fake/cuda_runtime.h, which has the same calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/layout/launch.h"
#include "tests/gpu/kernel.h"

namespace kvcc::gpu {

struct Device {
  std::string name;         ///< "" when there is none; then `why` says so
  std::string why;          ///< e.g. the driver's error
  std::string driver;       ///< version of the driver's CUDA
  int multiprocessors = 0;  ///< of the device
  size_t memory_bytes = 0;  ///< free when the program began
  size_t l2_bytes = 0;      ///< of the second-level cache
  bool emulated = false;    ///< by fake/cuda_runtime.h
  bool has_clock = false;   ///< times mean something
};

/// Failures are exceptions of std::runtime_error that name the call and the kernel.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual const Device& device() const = 0;

  virtual void* allocate(size_t bytes) = 0;  ///< 256-byte aligned, filled with ones (NaN)
  virtual void release(void* memory) = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;  ///< waits for what was launched
  virtual void copy(void* to, const void* from, size_t bytes) = 0;      ///< on the device
  virtual void fill(void* to, int byte, size_t bytes) = 0;

  /// `params`: the kernel's one argument. Does nothing for a grid without blocks. Does not wait.
  virtual void launch(const Kernel& kernel, KvccGrid grid, const void* params, const char* name) = 0;
  virtual void wait(const char* name) = 0;

  /// Milliseconds of `launches` calls of launch(i) in one stream, for each of `samples` repetitions; before each,
  /// reset() runs untimed. launch() must do nothing but launch. Zeros without a clock.
  virtual std::vector<double> time(int samples, int launches, const std::function<void(int)>& launch,
                                   const std::function<void()>& reset) = 0;
};

std::unique_ptr<Launcher> make_launcher();

/// An array on the device.
template <class T>
class Array {
 public:
  Array() = default;
  Array(Launcher& launcher, size_t count)
      : launcher_(&launcher), count_(count), data_(count ? launcher.allocate(count * sizeof(T)) : nullptr) {}
  Array(Launcher& launcher, const std::vector<T>& from) : Array(launcher, from.size()) { upload(from); }
  Array(Array&& other) noexcept { swap(other); }
  Array& operator=(Array&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Array() {
    if (data_) launcher_->release(data_);
  }

  T* data() const { return static_cast<T*>(data_); }
  size_t size() const { return count_; }
  void upload(const std::vector<T>& from) const {
    if (!from.empty()) launcher_->upload(data_, from.data(), from.size() * sizeof(T));
  }
  std::vector<T> download() const {
    std::vector<T> out(count_);
    if (count_) launcher_->download(out.data(), data_, count_ * sizeof(T));
    return out;
  }
  void fill(int byte) const {
    if (count_) launcher_->fill(data_, byte, count_ * sizeof(T));
  }

 private:
  void swap(Array& other) {
    std::swap(launcher_, other.launcher_);
    std::swap(count_, other.count_);
    std::swap(data_, other.data_);
  }
  Launcher* launcher_ = nullptr;
  size_t count_ = 0;
  void* data_ = nullptr;
};

}  // namespace kvcc::gpu
