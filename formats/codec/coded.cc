#include "formats/codec/coded.h"

#include "formats/core/error.h"

namespace kvcc {

void check_parts(const TensorCodec& codec, int64_t tokens, const CodedTokens& in) {
  const std::vector<PartShape> parts = codec.parts(tokens);
  const auto refuse = [](const std::string& found, const std::string& wanted) {
    throw Error(ErrorKind::failed, "coded tokens", found, wanted);
  };
  if (in.size() != parts.size()) refuse(std::to_string(in.size()) + " parts", std::to_string(parts.size()));
  for (size_t p = 0; p < parts.size(); ++p) {
    const std::vector<uint16_t>& values = in[p].values;
    if (parts[p].count != kCountedBefore && static_cast<int64_t>(values.size()) != parts[p].count) {
      refuse(std::to_string(values.size()) + " values of " + parts[p].name, std::to_string(parts[p].count));
    }
    if (parts[p].bits == 16) continue;
    uint32_t all = 0;
    for (const uint16_t value : values) all |= value;
    if (all >> parts[p].bits != 0) {
      refuse(std::string("a value of ") + parts[p].name + " of more bits", std::to_string(parts[p].bits));
    }
  }
}

int64_t check_tokens(const TensorCodec& codec, std::span<const float> x, const std::string& place,
                     int64_t first_token) {
  const int64_t n = int64_t{codec.heads()} * codec.dim();
  const int64_t tokens = check_rows(x.size(), x.size(), n * codec.block_tokens(), place) * codec.block_tokens();
  if (const int64_t bad = first_non_finite(x); bad >= 0) {
    check_finite(x.subspan(bad / n * n, n), codec.dim(), token_place(place, first_token + bad / n));
  }
  return tokens;
}

std::string Where::text() const {
  return token_place(place, token) + (head < 0 ? "" : ", head " + std::to_string(head));
}

uint16_t stored_half(float x, const char* what, const Where& where) {
  const uint16_t half = float_to_half(x);
  if (half_is_infinite(half)) {
    throw bad_input(where.text(), std::string(what) + " " + std::to_string(x), "one that fits fp16 (at most 65504)");
  }
  return half == 0x8000u ? uint16_t{0} : half;
}

}  // namespace kvcc
