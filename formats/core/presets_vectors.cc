// Presets that code a head's vector as a whole: by a length and a direction, by angles, by signs of projections.
#include <fmt/format.h>

#include <tuple>

#include "formats/core/presets_published.h"

namespace kvcc::scheme_parts {
namespace {

/// Half of the rotated channels get one bit more when `half` says so.
Scheme turboquant(int bits, bool half, const Options& o) {
  TensorScheme tensor;
  tensor.grid = Grid::lloyd;
  tensor.bits = bits - (o.prod ? 1 : 0);
  tensor.axis = Axis::token_group;
  tensor.rotation = Rotation::random;
  tensor.norm = Norm::head;
  if (half) {
    tensor.wide = 0.5;
    tensor.wide_bits = tensor.bits + 1;
  }
  tensor.sketch = o.prod ? 1 : 0;
  return both(tensor, o);
}

Scheme turboquant_vllm(int bits, const Options& o) {
  TensorScheme key;
  key.grid = Grid::lloyd;
  key.bits = bits;
  key.axis = Axis::token_group;
  key.rotation = Rotation::hadamard;
  key.norm = Norm::head_corrected;
  return of(key, integer(bits, Axis::token_group, 0), o);
}

Scheme polarquant_a(int value_bits, const Options& o) {
  TensorScheme key;
  key.grid = Grid::polar;
  key.bits = 4;
  key.axis = Axis::channel_group;
  key.group = 128;
  return of(key, integer(value_bits, Axis::token_group, 128), o);
}

Scheme polarquant_b(const Options& o) {
  TensorScheme tensor;
  tensor.grid = Grid::angles;
  tensor.bits = 4;
  tensor.axis = Axis::token_group;
  tensor.group = 16;
  tensor.rotation = Rotation::random;
  return both(tensor, o);
}

Scheme qjl(const Options& o) {
  TensorScheme key;
  key.grid = Grid::sign;
  key.bits = 1;
  key.axis = Axis::channel_group;
  key.group = 32;
  key.sketch = 2;
  key.early_layers = 15;
  key.early_sketch = 4;
  key.wide = 0.0625;
  key.wide_bits = 1;
  return of(key, integer(2, Axis::token_group, 32), o);
}

std::vector<Published> turboquant_members() {
  std::vector<Published> members;
  for (const auto& [width, bits, half] :
       {std::tuple{"2", 2, false}, {"2.5", 2, true}, {"3", 3, false}, {"3.5", 3, true}, {"4", 4, false}}) {
    members.push_back(
        {fmt::format("turboquant-{}", width), "prod sink r", {}, [bits = bits, half = half](const Options& o) {
           return turboquant(bits, half, o);
         }});
  }
  return members;
}

}  // namespace

std::vector<Family> vector_families() {
  std::vector<Family> all;
  all.push_back({{"turboquant-{2,2.5,3,3.5,4}", "turboquant-3",
                  "each head's vector randomly rotated, scaled to length 1, Lloyd-Max levels; -prod: one bit of them "
                  "is a sketch of the rest; half widths: the first half of the rotated channels gets one bit more",
                  "TurboQuant (arXiv 2504.19874)"},
                 turboquant_members()});
  all.push_back(
      {{"turboquant-vllm-{3,4}", "turboquant-vllm-3",
        "Hadamard instead of a random rotation, decoded keys of length 1; values per token and head, unrotated",
        "vLLM's turboquant_3bit_nc and turboquant_4bit_nc"},
       widths("turboquant-vllm", {3, 4}, "sink r", {}, turboquant_vllm)});
  all.push_back(
      {{"polarquant-a{,-v2}", "polarquant-a",
        "radius and angle of the pairs that RoPE turns, 4 bits each, per pair of 128 tokens; values as KIVI's",
        "PolarQuant (Wu et al., arXiv 2502.00527)"},
       {{"polarquant-a", "r sink", {.residual = 128}, [](const Options& o) { return polarquant_a(4, o); }},
        {"polarquant-a-v2", "r sink", {.residual = 128}, [](const Options& o) { return polarquant_a(2, o); }}}});
  all.push_back(
      {{"polarquant-b", "polarquant-b", "randomly rotated, blocks of 16 channels as a radius and 15 recursive angles",
        "PolarQuant (Han et al., arXiv 2502.02617)"},
       {{"polarquant-b", "sink r", {}, polarquant_b}}});
  all.push_back(
      {{"qjl", "qjl",
        "keys as signs of two random projections a channel, in the first 15 layers four; the greatest channels of 32 "
        "tokens apart; 2-bit values",
        "QJL (arXiv 2406.03482)"},
       {{"qjl", "r sink", {.residual = 128}, qjl}}});
  return all;
}

}  // namespace kvcc::scheme_parts
