#include "kernels/host/launcher.h"

#include <array>
#include <map>
#include <mutex>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "kernels/host/driver.h"

namespace kvcc::host {
namespace {

DeviceFacts facts_of(const Driver& driver, int number, CuDevice& device) {
  const std::string place = "CUDA device " + std::to_string(number);
  int count = 0;
  driver.check(driver.device_count(&count), place, "cuDeviceGetCount");
  if (number < 0 || number >= count) {
    throw Error(ErrorKind::failed, place, "not there", "0 to " + std::to_string(count - 1));
  }
  driver.check(driver.device(&device, number), place, "cuDeviceGet");
  DeviceFacts facts;
  char name[256] = {};
  driver.check(driver.device_name(name, sizeof name - 1, device), place, "cuDeviceGetName");
  facts.name = name;
  const auto attribute = [&](CuDeviceAttribute which) {
    int value = 0;
    driver.check(driver.device_attribute(&value, which, device), place, "cuDeviceGetAttribute");
    return value;
  };
  facts.major = attribute(kCuCapabilityMajor);
  facts.minor = attribute(kCuCapabilityMinor);
  facts.multiprocessors = attribute(kCuMultiprocessors);
  facts.shared_bytes = attribute(kCuSharedBytesOptIn);
  driver.check(driver.driver_version(&facts.driver_version), place, "cuDriverGetVersion");
  return facts;
}

/// Makes a context current for a scope, and what was current before again after it.
class Current {
 public:
  Current(const Driver& driver, CuContext context, const std::string& place) : driver_(driver) {
    driver.check(driver.push_context(context), place, "cuCtxPushCurrent");
  }
  ~Current() {
    CuContext popped = nullptr;
    driver_.pop_context(&popped);
  }
  Current(const Current&) = delete;

 private:
  const Driver& driver_;
};

}  // namespace

struct Module::State {
  struct Function {
    CuFunction handle = nullptr;
    int64_t shared_bytes = 0;  ///< allowed so far
  };

  State(const std::string& module_name, int number) : name(module_name), facts(facts_of(driver, number, device)) {
    driver.check(driver.retain_primary_context(&context, device), name, "cuDevicePrimaryCtxRetain");
  }
  ~State() {
    // Errors have nowhere to go, and at the end of the process the driver may be gone already.
    CuContext popped = nullptr;
    if (module != nullptr && driver.push_context(context) == kCuSuccess) {
      driver.unload_module(module);
      driver.pop_context(&popped);
    }
    if (context != nullptr) driver.release_primary_context(device);
  }
  State(const State&) = delete;

  void load(std::string_view image);
  CuFunction find(const std::string& symbol, int64_t shared_bytes);

  Driver driver;
  std::string name;
  CuDevice device = 0;
  DeviceFacts facts;
  CuContext context = nullptr;
  CuModule module = nullptr;
  std::mutex mutex;
  std::map<std::string, Function> functions;
};

void Module::State::load(std::string_view image) {
  const Current current(driver, context, name);
  const std::string text(image);  // PTX must end in a zero byte
  std::array<char, 4096> log{};
  std::array<CuJitOption, 2> options = {kCuErrorLog, kCuErrorLogBytes};
  std::array<void*, 2> values = {log.data(), reinterpret_cast<void*>(log.size() - 1)};
  const CuResult result = driver.load_module(&module, text.data(), options.size(), options.data(), values.data());
  if (result == kCuSuccess) return;
  module = nullptr;
  const std::string capability = std::to_string(facts.major) + "." + std::to_string(facts.minor);
  std::string found = driver.text(result), wanted, hint;
  const std::string words(log.data());
  if (!words.empty()) found += ": " + words.substr(0, words.find_last_not_of(" \n") + 1);
  if (result == kCuNoBinaryForDevice || result == kCuInvalidImage || result == kCuInvalidPtx) {
    wanted = "a cubin or PTX for " + facts.name + " (compute capability " + capability + ")";
    hint = "kvcc compile with --arch sm_" + std::to_string(facts.major) + std::to_string(facts.minor);
  } else if (result == kCuUnsupportedPtxVersion) {
    wanted = "PTX that the driver knows, which is of CUDA " + std::to_string(facts.driver_version / 1000) + "." +
             std::to_string(facts.driver_version % 1000 / 10);
    hint = "a newer driver, or a cubin by kvcc compile with --arch sm_" + std::to_string(facts.major) +
           std::to_string(facts.minor);
  }
  throw Error(ErrorKind::failed, name, found, wanted, hint);
}

CuFunction Module::State::find(const std::string& symbol, int64_t shared_bytes) {
  const std::lock_guard lock(mutex);
  Function& function = functions[symbol];
  if (function.handle == nullptr) {
    const CuResult result = driver.module_function(&function.handle, module, symbol.c_str());
    if (result == kCuNotFound) {
      throw Error(ErrorKind::failed, name, "no kernel " + symbol, "the symbol that kernels.json names");
    }
    driver.check(result, name + ", " + symbol, "cuModuleGetFunction");
  }
  if (shared_bytes > function.shared_bytes) {  // more than 48 KiB needs asking for, and less does no harm
    driver.check(driver.set_function_attribute(function.handle, kCuDynamicSharedBytes, static_cast<int>(shared_bytes)),
                 name + ", " + symbol, "cuFuncSetAttribute");
    function.shared_bytes = shared_bytes;
  }
  return function.handle;
}

bool launcher_available() {
  try {
    const Driver driver;
    return true;
  } catch (const Error&) {
    return false;
  }
}

DeviceFacts device_facts(int device) {
  const Driver driver;
  CuDevice handle = 0;
  return facts_of(driver, device, handle);
}

Module::Module(std::unique_ptr<State> state) : state_(std::move(state)) {}
Module::Module(Module&&) noexcept = default;
Module::~Module() = default;

Module::Module(const std::string& path, int device) : state_(std::make_unique<State>(path, device)) {
  state_->load(read_text_file(path));
}

Module::Module(const std::string& kernel, std::span<const KernelImage> images, int device)
    : state_(std::make_unique<State>(kernel, device)) {
  const KernelImage& image = pick_image(kernel, images, state_->facts);
  state_->name = image.path;
  state_->load(read_text_file(image.path));
}

Module Module::from_memory(const std::string& name, std::string_view image, int device) {
  auto state = std::make_unique<State>(name, device);
  state->load(image);
  return Module(std::move(state));
}

const DeviceFacts& Module::device() const { return state_->facts; }

void Module::launch(const std::string& symbol, KvccGrid grid, const void* params, size_t params_bytes, void* stream,
                    int64_t shared_bytes) const {
  State& s = *state_;
  const std::string place = s.name + ", " + symbol;
  const std::string dimensions =
      std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " + std::to_string(grid.z);
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffffu || grid.y > 65535u || grid.z > 65535u) {
    throw Error(ErrorKind::failed, place, "a grid of " + dimensions + " blocks", "1 to 2147483647 x 65535 x 65535");
  }
  if (shared_bytes < 0 || shared_bytes > s.facts.shared_bytes) {
    throw Error(ErrorKind::failed, place, std::to_string(shared_bytes) + " bytes of shared memory",
                "at most " + std::to_string(s.facts.shared_bytes) + ", a block's on " + s.facts.name);
  }
  const Current current(s.driver, s.context, place);
  const CuFunction function = s.find(symbol, shared_bytes);
  // The arguments as one buffer, so that the driver compares the struct's size with the kernel's.
  void* extra[] = {reinterpret_cast<void*>(1), const_cast<void*>(params), reinterpret_cast<void*>(2), &params_bytes,
                   nullptr};
  s.driver.check(s.driver.launch(function, grid.x, grid.y, grid.z, KVCC_THREADS, 1, 1,
                                 static_cast<unsigned>(shared_bytes), stream, nullptr, extra),
                 place, ("cuLaunchKernel, " + dimensions + " blocks").c_str());
}

}  // namespace kvcc::host
