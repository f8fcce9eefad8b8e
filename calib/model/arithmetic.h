// Which arithmetic this processor has.
#pragma once

#include <string>

namespace kvcc {

/// How the processor multiplies bf16: "amx_bf16", "avx512_bf16", or "" where it has no instruction for it.
std::string bf16_instructions();

/// Throws Error(usage) that names `option` where there is no such instruction: bf16 would be slower than f32, and less
/// exact.
void require_bf16(const std::string& option, const std::string& instructions = bf16_instructions());

}  // namespace kvcc
