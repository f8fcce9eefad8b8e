#include "formats/codec/tensor_codec.h"

#include <algorithm>

#include "formats/codec/rows.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

int64_t sum(const std::vector<uint16_t>& values) {
  int64_t total = 0;
  for (const uint16_t value : values) total += value;
  return total;
}

int64_t bytes_of(int bits, int64_t count) { return (bits * count + 7) / 8; }

/// Tokens that go through a codec at once: enough to amortise its buffers, few enough to stay in a cache.
constexpr int64_t kChunkTokens = 128;

}  // namespace

TensorCodec::TensorCodec(int heads, int dim, int64_t block_tokens)
    : heads_(heads), dim_(dim), block_tokens_(block_tokens) {
  if (heads < 1 || dim < 1 || int64_t{heads} * dim > 65536 || block_tokens < 1) {
    throw Error(ErrorKind::failed, "codec",
                std::to_string(heads) + " heads of " + std::to_string(dim) + " channels in blocks of " +
                    std::to_string(block_tokens) + " tokens",
                "1 to 65536 channels in all, blocks of at least one token");
  }
}

int64_t TensorCodec::round_trip(std::span<const float> x, std::span<float> out, int threads, const std::string& place,
                                int64_t first_token) const {
  const int64_t n = int64_t{heads_} * dim_;
  const int64_t blocks = check_rows(x.size(), out.size(), n * block_tokens_, place);
  const int64_t chunk = std::max<int64_t>(1, kChunkTokens / block_tokens_);
  return over_rows(blocks, threads, [&](int64_t begin, int64_t end) {
    CodedTokens coded;
    for (int64_t b = begin; b < end; b += chunk) {
      const int64_t first = b * block_tokens_, tokens = std::min(chunk, end - b) * block_tokens_;
      encode(x.subspan(first * n, tokens * n), coded, place, first_token + first);
      decode(coded, out.subspan(first * n, tokens * n));
    }
    return int64_t{0};
  });
}

std::vector<uint8_t> pack(const CodedTokens& coded) {
  std::vector<uint8_t> bytes;
  for (const CodedPart& part : coded) {
    uint64_t waiting = 0;  // bits that make no whole byte yet
    int count = 0;
    for (const uint16_t value : part.values) {
      waiting |= uint64_t{value} << count;
      for (count += part.bits; count >= 8; count -= 8, waiting >>= 8) bytes.push_back(static_cast<uint8_t>(waiting));
    }
    if (count > 0) bytes.push_back(static_cast<uint8_t>(waiting));
  }
  return bytes;
}

CodedTokens unpack(const TensorCodec& codec, int64_t tokens, std::span<const uint8_t> bytes, const std::string& place) {
  CodedTokens coded;
  size_t at = 0;
  int64_t counted = 0;
  for (const PartShape& shape : codec.parts(tokens)) {
    const int64_t count = shape.count == kCountedBefore ? counted : shape.count;
    const int64_t size = bytes_of(shape.bits, count);
    if (static_cast<int64_t>(bytes.size() - at) < size) {
      throw bad_input(place + ", " + shape.name, std::to_string(bytes.size() - at) + " bytes", std::to_string(size));
    }
    CodedPart part{shape.name, shape.bits, {}};
    part.values.reserve(count);
    uint64_t waiting = 0;
    int held = 0;
    for (int64_t i = 0; i < count; ++i) {
      for (; held < shape.bits; held += 8) waiting |= uint64_t{bytes[at++]} << held;
      part.values.push_back(static_cast<uint16_t>(waiting & ((1u << shape.bits) - 1)));
      waiting >>= shape.bits;
      held -= shape.bits;
    }
    if (waiting != 0) throw bad_input(place + ", " + shape.name, "padding bits that are set", "zeros");
    if (shape.count != kCountedBefore) counted = sum(part.values);
    coded.push_back(std::move(part));
  }
  if (at != bytes.size()) {
    throw bad_input(place, std::to_string(bytes.size()) + " bytes", std::to_string(at));
  }
  return coded;
}

int64_t coded_end(int64_t tokens, int64_t sink, int64_t residual, int64_t block_tokens) {
  const int64_t first = std::min(sink, tokens), rest = tokens - first;
  if (block_tokens == 1) return first + std::max<int64_t>(0, rest - residual);
  const int64_t unit = tail_unit(residual, block_tokens);
  return first + rest / unit * unit;
}

}  // namespace kvcc
