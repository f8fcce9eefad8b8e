#include "kernels/host/driver.h"

#include <dlfcn.h>

#include <cstdlib>

#include "formats/core/error.h"

namespace kvcc::host {
namespace {

std::string library_name() {
  const char* set = std::getenv("KVCC_CUDA_DRIVER");
  return set != nullptr && *set != '\0' ? set : "libcuda.so.1";
}

}  // namespace

Driver::Driver() {
  const std::string name = library_name(), place = "CUDA driver " + name;
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: a driver does not expect it
  if (library == nullptr) {
    const char* why = dlerror();
    throw Error(ErrorKind::failed, place, std::string("not loaded (") + (why ? why : "no reason given") + ")",
                "an NVIDIA driver on this machine", "KVCC_CUDA_DRIVER names it where it lies elsewhere");
  }
  const auto find = [&](auto& function, const char* symbol) {
    void* address = dlsym(library, symbol);
    if (address == nullptr) {
      throw Error(ErrorKind::failed, place, std::string("no function ") + symbol, "a driver of CUDA 11.0 or later");
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  find(init, "cuInit");
  find(driver_version, "cuDriverGetVersion");
  find(device_count, "cuDeviceGetCount");
  find(device, "cuDeviceGet");
  find(device_name, "cuDeviceGetName");
  find(device_attribute, "cuDeviceGetAttribute");
  find(retain_primary_context, "cuDevicePrimaryCtxRetain");
  find(release_primary_context, "cuDevicePrimaryCtxRelease_v2");
  find(push_context, "cuCtxPushCurrent_v2");
  find(pop_context, "cuCtxPopCurrent_v2");
  find(load_module, "cuModuleLoadDataEx");
  find(unload_module, "cuModuleUnload");
  find(module_function, "cuModuleGetFunction");
  find(set_function_attribute, "cuFuncSetAttribute");
  find(launch, "cuLaunchKernel");
  find(error_name, "cuGetErrorName");
  find(error_string, "cuGetErrorString");
  const CuResult result = init(0);
  int devices = 0;
  if (result == kCuSuccess) check(device_count(&devices), place, "cuDeviceGetCount");
  if (result == kCuNoDevice || (result == kCuSuccess && devices == 0)) {
    throw Error(ErrorKind::failed, place, "no CUDA device", "a device that this process may use",
                "see nvidia-smi, and CUDA_VISIBLE_DEVICES");
  }
  check(result, place, "cuInit");
}

std::string Driver::text(CuResult result) const {
  const char *name = nullptr, *words = nullptr;
  if (error_name(result, &name) != kCuSuccess || name == nullptr) return "CUDA error " + std::to_string(result);
  if (error_string(result, &words) != kCuSuccess || words == nullptr) return name;
  return std::string(name) + " (" + words + ")";
}

void Driver::check(CuResult result, const std::string& place, const char* what) const {
  if (result != kCuSuccess) throw Error(ErrorKind::failed, place, std::string(what) + ": " + text(result));
}

}  // namespace kvcc::host
