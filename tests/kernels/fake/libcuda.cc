// A CUDA driver of the tests' own: it records calls, insists on what the real one insists on (initialised, a context
// current, modules and functions that exist), and fails where it is told to. Two devices, of 8.6 and 9.0. It runs
// nothing, or, with FAKE_EMULATES, runs kernels in the emulator: an image is then the path of a unit built for it
// (-DKVCC_EMULATE) and linked with this library.
#ifdef FAKE_EMULATES
#include <dlfcn.h>

#include "kernels/emulator/emulator.h"
#endif

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

struct Kernel {
  std::string name;
  uint32_t shared_bytes;
};

struct Fake {
  std::string log;
  std::map<std::string, int> failures;
  bool initialised = false;
  int devices = 2;
  std::map<int, int> retained;
  std::vector<void*> contexts;
  std::set<void*> modules;
  std::map<void*, Kernel> kernels;
  std::string params;
  std::map<void*, int> dynamic_shared;  ///< allowed, by function
  char context[2], function;
} fake;

/// Writes the call down; the result that it must return at once, or 0.
int enter(const char* name, bool needs_context = false) {
  fake.log += std::string(name) + "\n";
  if (fake.failures.contains(name)) return fake.failures[name];
  if (!fake.initialised && std::strcmp(name, "cuInit") != 0) return 3;
  if (needs_context && fake.contexts.empty()) return 201;
  return 0;
}
#define ENTER(...) \
  if (const int failed = enter(__func__ __VA_OPT__(, ) __VA_ARGS__); failed != 0) return failed

}  // namespace

extern "C" {

// The test's side.
void fake_reset() { fake = Fake{}; }
void fake_fail(const char* name, int result) { fake.failures[name] = result; }
void fake_devices(int count) { fake.devices = count; }
const char* fake_log() { return fake.log.c_str(); }
const char* fake_params(size_t* bytes) {
  *bytes = fake.params.size();
  return fake.params.data();
}
/// Contexts retained and current, modules loaded: 0 when everything was given back.
int fake_held() {
  int held = static_cast<int>(fake.contexts.size() + fake.modules.size());
  for (const auto& [device, count] : fake.retained) held += count;
  return held;
}

int cuInit(unsigned) {
  ENTER();
  fake.initialised = true;
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  ENTER();
  *count = fake.devices;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  ENTER();
  *device = ordinal;
  return ordinal < fake.devices ? 0 : 101;
}
int cuDeviceGetName(char* name, int bytes, int device) {
  ENTER();
  std::snprintf(name, static_cast<size_t>(bytes), "Fake %c", 'A' + device);
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER();
  switch (attribute) {
    case 16:
      *value = device == 0 ? 84 : 132;
      return 0;
    case 75:
      *value = device == 0 ? 8 : 9;
      return 0;
    case 76:
      *value = device == 0 ? 6 : 0;
      return 0;
    case 97:
      *value = device == 0 ? 101376 : 232448;
      return 0;
    default:
      return 1;
  }
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  ENTER();
  ++fake.retained[device];
  *context = &fake.context[device];
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER();
  --fake.retained[device];
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  ENTER();
  fake.contexts.push_back(context);
  return 0;
}
int cuCtxPopCurrent_v2(void** context) {
  ENTER(true);
  *context = fake.contexts.back();
  fake.contexts.pop_back();
  return 0;
}
int cuModuleLoadDataEx(void** module, const void* image, unsigned count, int* options, void** values) {
  ENTER(true);
  const std::string text(static_cast<const char*>(image));
  if (text.starts_with("wrong ptx")) {
    for (unsigned i = 0; i < count; ++i) {
      if (options[i] == 5) std::strcpy(static_cast<char*>(values[i]), "line 7: unknown opcode frob\n");
    }
    return 218;
  }
  if (text.starts_with("another device")) return 209;
  if (text.starts_with("newer ptx")) return 222;
#ifdef FAKE_EMULATES
  void* unit = dlopen(text.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (unit == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 200;
  }
  *module = unit;
#else
  *module = new char;
#endif
  fake.modules.insert(*module);
  return 0;
}
int cuModuleUnload(void* module) {
  ENTER(true);
  if (fake.modules.erase(module) == 0) return 1;
#ifndef FAKE_EMULATES
  delete static_cast<char*>(module);
#endif
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  ENTER(true);
  if (!fake.modules.contains(module)) return 1;
#ifdef FAKE_EMULATES
  void* entry = dlsym(module, name);
  if (entry == nullptr) return 500;
  const void* shared = dlsym(module, (std::string(name) + "_shared_bytes").c_str());
  fake.kernels[entry] = {name, *static_cast<const uint32_t*>(shared)};
  *function = entry;
#else
  if (std::string(name) != "kvcc_kernel") return 500;
  *function = &fake.function;
#endif
  return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  ENTER(true);
  if (attribute != 8) return 1;
  fake.dynamic_shared[function] = value;
  return 0;
}
#ifndef FAKE_WITHOUT_LAUNCH
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                   unsigned threads_z, unsigned shared, void* stream, void** params, void** extra) {
  ENTER(true);
  if (params != nullptr || threads_y != 1 || threads_z != 1) return 1;
  if (static_cast<int>(shared) > 49152 && static_cast<int>(shared) > fake.dynamic_shared[function]) return 1;
  // CU_LAUNCH_PARAM_BUFFER_POINTER, …_SIZE, …_END
  if (extra[0] != reinterpret_cast<void*>(1) || extra[2] != reinterpret_cast<void*>(2) || extra[4] != nullptr) return 1;
  fake.params.assign(static_cast<const char*>(extra[1]), *static_cast<size_t*>(extra[3]));
  char line[160];
  std::snprintf(line, sizeof line, "grid %u %u %u threads %u shared %u stream %p device %d\n", x, y, z, threads, shared,
                stream, fake.contexts.back() == &fake.context[0] ? 0 : 1);
  fake.log += line;
#ifdef FAKE_EMULATES
  const auto kernel = fake.kernels.find(function);
  if (kernel == fake.kernels.end() || shared != kernel->second.shared_bytes) return 1;
  try {
    kvcc::emulator::launch(reinterpret_cast<kvcc::emulator::Entry>(function), extra[1], {x, y, z},
                           static_cast<int>(threads), shared, {}, kernel->second.name);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 719;
  }
  return 0;
#else
  return function == &fake.function ? 0 : 1;
#endif
}
#endif
int cuGetErrorName(int result, const char** name) {
  static const std::map<int, const char*> names = {
      {1, "CUDA_ERROR_INVALID_VALUE"}, {3, "CUDA_ERROR_NOT_INITIALIZED"}, {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {218, "CUDA_ERROR_INVALID_PTX"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},   {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}};
  const auto found = names.find(result);
  if (found == names.end()) return 1;
  *name = found->second;
  return 0;
}
int cuGetErrorString(int result, const char** text) {
  *text = "words";
  return result == 2 ? 0 : 1;
}
}
