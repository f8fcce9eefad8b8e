// arithmetic_probe: the processor's bf16 instructions ("none" without), then what is said where there are none.
#include <cstdio>
#include <string>

#include "calib/model/arithmetic.h"
#include "formats/core/error.h"

int main() {
  const std::string instructions = kvcc::bf16_instructions();
  std::printf("%s\n", instructions.empty() ? "none" : instructions.c_str());
  kvcc::require_bf16("--dtype bf16", "avx512_bf16");
  try {
    kvcc::require_bf16("--dtype bf16", "");
  } catch (const kvcc::Error& error) {
    std::printf("%d %s\n", static_cast<int>(error.kind()), error.what());
    return 0;
  }
  return 1;
}
