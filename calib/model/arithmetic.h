// Which arithmetic and which devices this machine has.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace kvcc {

/// How the processor multiplies bf16: "amx_bf16", "avx512_bf16", or "" where it has no instruction for it.
std::string bf16_instructions();

/// Throws Error(usage) that names `option` where there is no such instruction: bf16 would be slower than f32, and less
/// exact.
void require_bf16(const std::string& option, const std::string& instructions = bf16_instructions());

/// For programs that run models on the CPU alone: throws Error(usage) for any other device.
void require_cpu(const std::string& device);

/// "cpu", or "cuda": the first GPU. Throws Error(usage) where libtorch has no CUDA or finds no GPU.
at::Device device_named(const std::string& name);

}  // namespace kvcc
