// Presets that code every token alone: integers in groups of channels, and FP8.
#include <fmt/format.h>

#include "formats/core/presets_published.h"

namespace kvcc::scheme_parts {
namespace {

Scheme quarot(int bits, const Options& o) {
  const auto turned = [](TensorScheme tensor) {
    tensor.rotation = Rotation::hadamard;
    tensor.clip = 0.95;
    return tensor;
  };
  return of(turned(integer(bits, Axis::token_group, 0, Rounding::zero_inside)),
            turned(integer(bits, Axis::token_group, 0, Rounding::zero)), o);
}

Scheme oscar_qk(const Options& o) {
  TensorScheme tensor = integer(2, Axis::token_group, 0);
  tensor.rotation = Rotation::spectral;
  return of(tensor, tensor, o);
}

Scheme ggml(int bits, bool turned, const Options& o) {
  TensorScheme key = integer(bits, Axis::token_group, 32, Rounding::ggml), value = key;
  if (turned) {
    key.rotation = Rotation::hadamard;
    value.rotation = Rotation::hadamard_64;
  }
  return of(key, value, o);
}

Scheme fp8(const Options& o) {
  TensorScheme tensor;
  tensor.grid = Grid::floating;
  tensor.bits = 8;
  tensor.axis = Axis::tensor;
  return both(tensor, o);
}

}  // namespace

std::vector<Family> token_families() {
  std::vector<Family> all;
  all.push_back(
      {{"quarot-{2,3,4}", "quarot-4",
        "each head rotated by Hadamard's matrix, then integer levels per token and head, ends clipped to 0.95",
        "QuaRot (arXiv 2404.00456), its KV cache"},
       widths("quarot", {2, 3, 4}, "sink r", {}, quarot)});
  all.push_back({{"atom-{2,3,4}", "atom-4",
                  "per token in groups of 128 channels with a zero-point that is a code; keys after RoPE as in "
                  "KVQuant's table, -prerope as released",
                  "Atom (arXiv 2310.19102)"},
                 widths("atom", {2, 3, 4}, "g prerope sink r", {.group = 128}, [](int bits, const Options& o) {
                   return both(integer(bits, Axis::token_group, o.group, Rounding::zero_clamped), o);
                 })});
  all.push_back({{"flexgen-{2,3,4}", "flexgen-4", "per token in groups of 64 channels, minimum and inverse scale",
                  "FlexGen (arXiv 2303.06865)"},
                 widths("flexgen", {2, 3, 4}, "g sink r", {.group = 64}, [](int bits, const Options& o) {
                   return both(integer(bits, Axis::token_group, o.group, Rounding::inverse), o);
                 })});
  all.push_back({{"fp8", "fp8", "every element rounded to FP8 E4M3, no scale; above 448 saturates",
                  "OCP 8-bit floating point (arXiv 2209.05433); vLLM's fp8_e4m3 cache with scale 1"},
                 {{"fp8", "sink r", {}, fp8}}});
  all.push_back(
      {{"q{4,8}_0{,-hadamard}", "q8_0",
        "blocks of 32 channels with one fp16 scale; -hadamard: rotated first, as its default since 2026-04-01",
        "llama.cpp's cache types (ggml Q4_0, Q8_0; pull request 21038)"},
       {}});
  for (const int bits : {4, 8}) {
    for (const bool turned : {false, true}) {
      all.back().members.push_back(
          {fmt::format("q{}_0{}", bits, turned ? "-hadamard" : ""), "sink r", {}, [=](const Options& o) {
             return ggml(bits, turned, o);
           }});
    }
  }
  all.push_back({{"oscar-qk", "oscar-qk",
                  "2-bit integers per token and head, turned into the eigenvectors of queries (keys) and of outputs "
                  "(values) and by Hadamard's matrix, clipped as calibrated; 4 sinks, the last 64 exact",
                  "OSCAR (arXiv 2605.17757); kvcc eval makes its rotations from --calibration"},
                 {{"oscar-qk", "sink r", {.residual = 64, .sink = 4}, oscar_qk}}});
  return all;
}

}  // namespace kvcc::scheme_parts
