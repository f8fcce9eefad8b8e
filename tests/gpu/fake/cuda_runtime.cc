#include "tests/gpu/fake/cuda_runtime.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/emulator/emulator.h"
#include "tests/gpu/kernel.h"

using Work = std::vector<std::function<void()>>;
struct FakeStream {
  Work waiting;
  Work* capture = nullptr;  ///< where work goes instead
  double now = 0;           ///< milliseconds: 10 a kernel
};
struct FakeEvent {
  double when = -1;
};
struct FakeGraph {
  Work work;
};

namespace {

std::string message;  ///< of the last failed launch
std::set<const void*> large;
FakeStream* the_stream = nullptr;
uint32_t launches = 0;

bool capturing() { return the_stream && the_stream->capture; }
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  (stream->capture ? *stream->capture : stream->waiting).push_back(std::move(work));
  return cudaSuccess;
}

}  // namespace

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorLaunchFailure:
      return message.c_str();
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return "no error";
  }
}

cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "emulator");
  properties->multiProcessorCount = 2;
  properties->l2CacheSize = 1 << 14;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return *free = *total = size_t{1} << 30, cudaSuccess; }

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = the_stream = new FakeStream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->capture) return cudaErrorStreamCaptureUnsupported;
  const Work work = std::exchange(stream->waiting, {});
  try {
    for (const auto& step : work) step();
  } catch (const std::exception& error) {
    message = error.what();
    return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new FakeEvent, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t error = cudaStreamSynchronize(stream);
  delete stream;
  the_stream = nullptr;
  return error;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->when = -1;
  return enqueue(stream, [=] { event->when = stream->now; });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (begin->when < 0 || end->when < 0) return cudaErrorInvalidValue;
  *milliseconds = static_cast<float>(end->when - begin->when);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (capturing()) return cudaErrorStreamCaptureUnsupported;
  return posix_memalign(memory, 256, bytes) == 0 ? cudaSuccess : cudaErrorMemoryAllocation;  // exact, for sanitizers
}
cudaError_t cudaFree(void* memory) {
  const cudaError_t error = cudaStreamSynchronize(the_stream);
  std::free(memory);
  return error;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (stream->capture && kind != cudaMemcpyDeviceToDevice) return cudaErrorStreamCaptureUnsupported;
  return enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memset(to, byte, bytes); });
}

cudaError_t cudaFuncSetAttribute(const void* entry, cudaFuncAttribute, int value) {
  if (value > 232448) return cudaErrorInvalidValue;
  large.insert(entry);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* entry, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  const kvcc::gpu::EmulatedKernel* kernel = kvcc::gpu::find_emulated(entry);
  if (!kernel || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 || block.y != 1) {
    return cudaErrorInvalidValue;
  }
  if (shared_bytes > 48 * 1024 && !large.contains(entry)) return cudaErrorInvalidValue;
  struct alignas(16) Line {
    uint8_t byte[16];
  };
  const auto params = std::make_shared<std::vector<Line>>(kernel->params_bytes / sizeof(Line) + 1);
  std::memcpy(static_cast<void*>(params->data()), arguments[0], kernel->params_bytes);
  return enqueue(stream, [=] {
    kvcc::emulator::Options options;  // another order and the other kind of asynchronous copy in every launch
    options.order = kvcc::emulator::Order::random;
    options.seed = ++launches;
    options.async_early = launches % 2 == 0;
    kvcc::emulator::launch(kernel->entry, params->data(), {grid.x, grid.y, grid.z}, static_cast<int>(block.x),
                           shared_bytes, options, kernel->name);
    stream->now += 10;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->capture = new Work;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = new FakeGraph{*stream->capture};
  delete std::exchange(stream->capture, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new FakeGraph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const auto& step : executable->work) enqueue(stream, step);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
