#include "calib/model/arithmetic.h"

#include <ATen/Context.h>
#include <ATen/cpu/Utils.h>
#include <dlfcn.h>

#include <array>

#include "formats/core/error.h"

namespace kvcc {

std::string bf16_instructions() {
  const auto has = at::cpu::get_cpu_capabilities();
  for (const char* name : std::array{"amx_bf16", "avx512_bf16"}) {
    if (const auto found = has.find(name); found != has.end() && found->second.isBool() && found->second.toBool()) {
      return name;
    }
  }
  return "";
}

void require_bf16(const std::string& option, const std::string& instructions) {
  if (!instructions.empty()) return;
  throw Error(ErrorKind::usage, option, "a processor without AVX-512-BF16 and AMX", "one that has either",
              "f32 is the default and runs everywhere");
}

void require_cpu(const std::string& device) {
  if (device == "cpu") return;
  throw Error(ErrorKind::usage, "--device " + device, "this version runs models on the CPU", "--device cpu");
}

at::Device device_named(const std::string& name) {
  if (name == "cpu") return at::kCPU;
  // Programs link libtorch's CPU part; the CUDA part, where it is there, makes itself known when it is loaded.
  dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  if (at::hasCUDA()) return at::Device(at::kCUDA, 0);
  throw Error(ErrorKind::usage, "--device " + name, "libtorch without CUDA, or no GPU", "--device cpu",
              "KVCC_TORCH_LIB names the folder of a libtorch with CUDA of the same version");
}

}  // namespace kvcc
