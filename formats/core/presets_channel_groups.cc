// Presets whose keys are coded per channel in groups of tokens, on-line.
#include "formats/core/presets_published.h"

namespace kvcc::scheme_parts {
namespace {

Scheme kivi(int bits, const Options& o) {
  return of(integer(bits, Axis::channel_group, o.group), integer(bits, Axis::token_group, o.group), o);
}

/// Keys of two widths, by channel.
Scheme two_widths(double share, int wide_bits, const Options& o) {
  TensorScheme key = integer(2, Axis::channel_group, 128);
  key.wide = share;
  key.wide_bits = wide_bits;
  return of(key, integer(2, Axis::token_group, 128), o);
}

Scheme oscar_norm(const Options& o) {
  TensorScheme key = integer(2, Axis::channel_group, 32, Rounding::zero);
  key.rotation = Rotation::hadamard;
  key.norm = Norm::token;
  TensorScheme value = integer(2, Axis::token_group, 32, Rounding::zero);
  value.rotation = Rotation::hadamard;
  return of(key, value, o);
}

}  // namespace

std::vector<Family> channel_group_families() {
  std::vector<Family> all;
  all.push_back({{"kivi-{2,4}", "kivi-2",
                  "keys per channel of 32 tokens, values per token of 32 channels; the last 128 tokens exact",
                  "KIVI (arXiv 2402.02750); -g128 as in KVarN's comparison"},
                 widths("kivi", {2, 4}, "g r sink", {.group = 32, .residual = 128}, kivi)});
  all.push_back(
      {{"kitty{,-pro}", "kitty",
        "KIVI in pages of 128 tokens; the keys' greatest 12.5 % (pro: 20 %) of channels get 4 bits; 32 sinks",
        "Kitty (arXiv 2511.18643)"},
       {{"kitty", "r sink", {.residual = 128, .sink = 32}, [](const Options& o) { return two_widths(0.125, 4, o); }},
        {"kitty-pro", "r sink", {.residual = 128, .sink = 32}, [](const Options& o) {
           return two_widths(0.2, 4, o);
         }}}});
  all.push_back(
      {{"kvquant-1%-channels", "kvquant-1%-channels",
        "2-bit groups of 128 with the keys' greatest 1 % of channels in fp16: what KVarN's paper calls KVQuant",
        "KVarN (arXiv 2606.03458), appendix D"},
       {{"kvquant-1%-channels", "r sink", {.residual = 128, .sink = 128}, [](const Options& o) {
           return two_widths(0.01, 16, o);
         }}}});
  all.push_back({{"oscar-norm", "oscar-norm",
                  "rotated by Hadamard's matrix, tokens of all heads scaled to length 1, 2-bit keys per channel of 32 "
                  "tokens, values per token of 32 channels",
                  "OScaR (arXiv 2605.19660)"},
                 {{"oscar-norm", "r sink", {}, oscar_norm}}});
  return all;
}

}  // namespace kvcc::scheme_parts
