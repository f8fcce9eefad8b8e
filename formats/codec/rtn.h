// Round to nearest of one group of values that share an online range: the flavours of METHODS.md 1.1. Host only.
#pragma once

#include <cstdint>

#include "formats/codec/coded.h"
#include "formats/core/scheme.h"

namespace kvcc {

/// What of the flavour is stored beside the codes, and how wide.
struct RtnForm {
  Rounding rounding;
  int bits;    ///< of a code, 1 to 8
  float clip;  ///< both ends of the range are multiplied by it
  /// Bits of the zero-point: 16 (fp16), those of a code, or 0 for none. Scales are fp16.
  int zero_bits() const;
};

struct RtnRange {
  uint16_t scale;  ///< fp16, > 0; of Rounding::inverse its inverse; of ggml of either sign
  uint16_t zero;   ///< fp16: the least value, or the whole number of RTN-Z; else a code
};

/// Codes of x [n], n >= 1, finite. Codes are found with the range as it is stored. A constant group, or one of zeros,
/// decodes to its value in fp16. Throws Error(bad_input) when the range overflows fp16, naming `where`.
RtnRange rtn_encode(const RtnForm& form, const float* x, int n, uint16_t* codes, const Where& where);
/// The values of codes [n]. The arithmetic is binary32, a fused multiply-add for the flavours that add their least
/// value.
void rtn_decode(const RtnForm& form, RtnRange range, const uint16_t* codes, int n, float* out);

}  // namespace kvcc
