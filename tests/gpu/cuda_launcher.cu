// The one back end: the CUDA runtime, or what fake/cuda_runtime.h makes of it.
#include <cuda_runtime.h>

#include <cstdlib>
#include <set>
#include <stdexcept>

#include "tests/gpu/launcher.h"

namespace kvcc::gpu {
namespace {

void check(cudaError_t error, const std::string& what) {
  if (error != cudaSuccess) throw std::runtime_error(what + ": " + cudaGetErrorString(error));
}

class CudaLauncher : public Launcher {
 public:
  CudaLauncher() {
    int count = 0, driver = 0;
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    if (driver == 0) {
      device_.why = "no CUDA driver is installed";
      return;
    }
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
      device_.why = "the CUDA driver finds no device";
      return;
    }
    check(error, "cudaGetDeviceCount");  // a driver too old, or a device out of order, is no reason to skip
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    check(cudaStreamCreate(&stream_), "cudaStreamCreate");
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    device_.name = properties.name;
    device_.driver = "CUDA " + std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10);
    device_.multiprocessors = properties.multiProcessorCount;
    device_.memory_bytes = free;
    device_.l2_bytes = static_cast<size_t>(properties.l2CacheSize);
    device_.emulated = device_.name == "emulator";
    // The emulator's clock is made up: ten milliseconds a kernel. Tests of this script read it.
    device_.has_clock = !device_.emulated || std::getenv("KVCC_GPU_FAKE_CLOCK") != nullptr;
  }

  ~CudaLauncher() override {
    if (!stream_) return;
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  const Device& device() const override { return device_; }

  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "cudaMalloc of " + std::to_string(bytes) + " bytes");
    fill(memory, 0xff, bytes);
    return memory;
  }
  void release(void* memory) override { cudaFree(memory); }
  void upload(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "upload");
    wait("upload");
  }
  void download(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "download");
    wait("download");
  }
  void copy(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copy");
  }
  void fill(void* to, int byte, size_t bytes) override { check(cudaMemsetAsync(to, byte, bytes, stream_), "fill"); }

  void launch(const Kernel& kernel, KvccGrid grid, const void* params, const char* name) override {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    if (kernel.shared_bytes > 48u * 1024u && large_.insert(kernel.entry).second) {
      check(cudaFuncSetAttribute(kernel.entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kernel.shared_bytes)),
            std::string(name) + ", " + std::to_string(kernel.shared_bytes) + " bytes of shared memory");
    }
    void* arguments[] = {const_cast<void*>(params)};
    check(cudaLaunchKernel(kernel.entry, dim3(grid.x, grid.y, grid.z), dim3(kernel.threads), arguments,
                           kernel.shared_bytes, stream_),
          name);
  }
  void wait(const char* name) override { check(cudaStreamSynchronize(stream_), name); }

  std::vector<double> time(int samples, int launches, const std::function<void(int)>& launch,
                           const std::function<void()>& reset) override {
    launch(0);  // loads the kernels, which a capture must not do
    wait("first launch");
    // Recorded once and replayed as a graph, so that the CPU's time of a launch does not hide a short kernel's.
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < launches; ++i) launch(i);
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphUpload(executable, stream_), "cudaGraphUpload");
    std::vector<double> milliseconds;
    for (int sample = 0; sample < samples; ++sample) {
      reset();
      check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
      check(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
      check(cudaEventRecord(end_, stream_), "cudaEventRecord");
      wait("timed launches");
      float elapsed = 0;
      check(cudaEventElapsedTime(&elapsed, begin_, end_), "cudaEventElapsedTime");
      milliseconds.push_back(elapsed);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    return milliseconds;
  }

 private:
  Device device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::set<const void*> large_;
};

}  // namespace

std::unique_ptr<Launcher> make_launcher() { return std::make_unique<CudaLauncher>(); }

}  // namespace kvcc::gpu
