// Writing and reading the parts of coded tokens. Host only.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "formats/codec/rows.h"
#include "formats/codec/tails.h"
#include "formats/codec/tensor_codec.h"

namespace kvcc {

/// Gives `out` the parts of `tokens` tokens; those with a known count get their size, the others are empty.
inline void start_parts(const TensorCodec& codec, int64_t tokens, CodedTokens& out) {
  const std::vector<PartShape> parts = codec.parts(tokens);
  out.resize(parts.size());
  for (size_t p = 0; p < parts.size(); ++p) {
    out[p].name = parts[p].name;
    out[p].bits = parts[p].bits;
    out[p].values.assign(parts[p].count == kCountedBefore ? 0 : parts[p].count, 0);
  }
}

/// Throws Error(failed) unless `in` has the parts of `tokens` tokens, each value within its width.
void check_parts(const TensorCodec& codec, int64_t tokens, const CodedTokens& in);

/// Tokens of x [T, H, D], a whole number of blocks, every value finite; throws as TensorCodec says.
int64_t check_tokens(const TensorCodec& codec, std::span<const float> x, const std::string& place, int64_t first_token);

/// Where in a tensor a value lies; made a text only for an error.
struct Where {
  const std::string& place;  ///< of the tensor
  int64_t token;
  int head = -1;  ///< -1: all heads
  std::string text() const;
};

/// float_to_half() that throws Error(bad_input) "WHERE: `what` X" when a finite x overflows fp16. Never -0.
uint16_t stored_half(float x, const char* what, const Where& where);

/// Bits of an index of `count` things.
constexpr int index_bits(int count) {
  int bits = 1;
  while ((1 << bits) < count) ++bits;
  return bits;
}

}  // namespace kvcc
