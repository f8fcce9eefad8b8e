// The one accounting of effective bits (DESIGN.md). Every table that kvcc prints comes from here.
#pragma once

#include <cstdint>
#include <span>

#include "formats/core/model_info.h"
#include "formats/core/scheme.h"

namespace kvcc {

struct EffectiveBitsQuery {
  int64_t context = 32768;             ///< tokens in the cache; weighs sinks and residual window
  int64_t amortise = 1 << 20;          ///< cached tokens that share the deployment's constants
  double key_outlier_fraction = -1.0;  ///< measured on calibration text; < 0: the scheme's nominal fraction
};

/// Bits per cached element, averaged over keys and values of all layers, and its parts. Full precision counts 16.
struct EffectiveBits {
  double total = 0;       ///< what tables print
  double codes = 0;       ///< index bits
  double scales = 0;      ///< online scales and zero-points (fp16 each)
  double sparse = 0;      ///< outlier values (16), indices (16) and the row pointers the layout stores
  double exceptions = 0;  ///< what sinks and residual window add over quantised tokens
  double constants = 0;   ///< codebooks, static scales, zeros and thresholds over `amortise` tokens
  int64_t constant_bytes = 0;
};

EffectiveBits effective_bits(const Scheme& scheme, const CacheShape& shape, const EffectiveBitsQuery& query = {});

/// Mean of an artifact's measured fractions, as `key_outlier_fraction` takes it: -1 where nothing is measured.
double mean_outlier_fraction(std::span<const float> fractions);

/// Mean of the key's and the value's code width, e.g. 4 for nuq4; of the layers after early ones.
double nominal_bits(const Scheme& scheme);

}  // namespace kvcc
