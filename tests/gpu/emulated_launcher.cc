// The back end on a CPU, in the emulator: proves the script itself where there is no GPU.
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/emulator/emulator.h"
#include "tests/gpu/launcher.h"

namespace kvcc::gpu {
namespace {

class EmulatedLauncher : public Launcher {
 public:
  EmulatedLauncher() {
    device_.name = "emulator";
    device_.driver = "none";
    device_.multiprocessors = 2;
    device_.memory_bytes = size_t{1} << 30;
    device_.l2_bytes = 1 << 16;
  }
  const Device& device() const override { return device_; }

  // Exact sizes, so that the address sanitizer sees the end of an array.
  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, bytes) != 0) throw std::bad_alloc();
    std::memset(memory, 0xff, bytes);
    return memory;
  }
  void release(void* memory) override { std::free(memory); }
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void fill(void* to, int byte, size_t bytes) override { std::memset(to, byte, bytes); }

  void launch(const Kernel& kernel, KvccGrid grid, const void* params, const char* name) override {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    emulator::Options options;  // another order and the other kind of asynchronous copy in every launch
    options.order = emulator::Order::random;
    options.seed = ++launches_;
    options.async_early = launches_ % 2 == 0;
    emulator::launch(reinterpret_cast<emulator::Entry>(const_cast<void*>(kernel.entry)), params, grid,
                     static_cast<int>(kernel.threads), kernel.shared_bytes, options, name);
  }
  void wait(const char*) override {}
  std::vector<double> time(int, int launches, const std::function<void(int)>& launch,
                           const std::function<void()>& reset) override {
    launch(0);  // as on the device
    reset();
    for (int i = 0; i < launches; ++i) launch(i);
    return {0.0};
  }

 private:
  Device device_;
  uint32_t launches_ = 0;
};

}  // namespace

std::unique_ptr<Launcher> make_launcher() { return std::make_unique<EmulatedLauncher>(); }

}  // namespace kvcc::gpu
