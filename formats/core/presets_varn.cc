// KVarN's presets.
#include <fmt/format.h>

#include <tuple>

#include "formats/core/presets_published.h"

namespace kvcc::scheme_parts {
namespace {

Scheme kvarn(int key_bits, int value_bits, const Options& o) {
  const auto normalised = [&](TensorScheme tensor) {
    tensor.rotation = Rotation::hadamard;
    tensor.norm = o.rms ? Norm::varn_rms : Norm::varn;
    tensor.iterations = o.iterations;
    tensor.tile = o.group;
    tensor.half_scales = !o.fp8;
    return tensor;
  };
  return of(normalised(integer(key_bits, Axis::channel_group, o.group)),
            normalised(integer(value_bits, Axis::token_group, 0)), o);
}

}  // namespace

std::vector<Family> varn_families() {
  std::vector<Family> all;
  all.push_back({{"kvarn-{2,k4v2,k4v4}", "kvarn-2",
                  "rotated tiles of 128 tokens, balanced in both directions by 8 rounds of variance normalisation; 128 "
                  "sinks, the incomplete tile exact",
                  "KVarN (arXiv 2606.03458); -rms mends its scale's floor, -fp8 as its appendix D counts"},
                 {}});
  for (const auto& [name, k, v] : {std::tuple{"2", 2, 2}, {"k4v2", 4, 2}, {"k4v4", 4, 4}}) {
    all.back().members.push_back({fmt::format("kvarn-{}", name),
                                  "g it rms fp8 sink",
                                  {.group = 128, .sink = 128, .iterations = 8},
                                  [k = k, v = v](const Options& o) { return kvarn(k, v, o); }});
  }
  return all;
}

}  // namespace kvcc::scheme_parts
