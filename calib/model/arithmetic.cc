#include "calib/model/arithmetic.h"

#include <ATen/cpu/Utils.h>

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

}  // namespace kvcc
