// One layer's keys or values through a cache: the reference codec of every scheme behind one interface, so that eval's
// modes, the packed form and the accounting of bits need not know the method. Host only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/codec/reference.h"
#include "formats/core/scheme.h"

namespace kvcc {

/// Unsigned numbers of one width: codes, or scales, zeros and norms as the bits of fp16 or FP8.
struct CodedPart {
  const char* name;  ///< "codes", "scale", …
  int bits;          ///< width of each number, 1 to 16
  std::vector<uint16_t> values;
};
/// Tokens as they are stored, one part after another.
using CodedTokens = std::vector<CodedPart>;

/// How many numbers a part has.
struct PartShape {
  const char* name;
  int bits;
  int64_t count;  ///< or kCountedBefore
};
/// As many as the numbers of the last part with a count of its own add up to (outliers that depend on the data).
constexpr int64_t kCountedBefore = -1;

/// Encodes and decodes one layer's keys or values. Immutable, so that threads may share one. All x and out are
/// [T, H, D], T a multiple of block_tokens(); `place` names layer and tensor, and errors count tokens from
/// `first_token`. They throw Error(bad_input) for a value that is not finite or that the scheme can't hold.
class TensorCodec {
 public:
  TensorCodec(int heads, int dim, int64_t block_tokens = 1);
  virtual ~TensorCodec() = default;
  int heads() const { return heads_; }
  int dim() const { return dim_; }
  /// Tokens that can only be coded together, counted from the end of the sinks: 1 where every token stands alone.
  int64_t block_tokens() const { return block_tokens_; }

  /// The parts that `tokens` tokens are coded as.
  virtual std::vector<PartShape> parts(int64_t tokens) const = 0;
  virtual void encode(std::span<const float> x, CodedTokens& out, const std::string& place,
                      int64_t first_token = 0) const = 0;
  /// `in` has the parts of out.size() / (H D) tokens. Throws Error(failed) for codes that the scheme does not have.
  virtual void decode(const CodedTokens& in, std::span<float> out) const = 0;

  /// decode(encode(x)), in place allowed. Returns how many elements were outliers. The result does not depend on
  /// `threads`.
  virtual int64_t round_trip(std::span<const float> x, std::span<float> out, int threads, const std::string& place,
                             int64_t first_token = 0) const;

 private:
  int heads_, dim_;
  int64_t block_tokens_;
};

/// Parts one after another, each a string of bits, low bits first, padded with zeros to a whole byte.
std::vector<uint8_t> pack(const CodedTokens& coded);
/// The parts of `tokens` tokens. Throws Error(bad_input) when the bytes are too few or too many, or a padding bit is
/// set.
CodedTokens unpack(const TensorCodec& codec, int64_t tokens, std::span<const uint8_t> bytes, const std::string& place);

/// Of a cache of `tokens` tokens, those from min(sink, tokens) to here are coded and the others are at full precision.
/// Schemes whose tokens stand alone keep the last `residual` exact. The others code whole blocks of the least multiple
/// of block_tokens that is not less than `residual` (KIVI's rule, METHODS.md 4; KVarN's incomplete tile), so the exact
/// tail grows from nothing to one token less than that. Never falls as tokens are added.
int64_t coded_end(int64_t tokens, int64_t sink, int64_t residual, int64_t block_tokens);

/// Codecs of the quantisers that an artifact describes, and of full precision, rounded to the precision of record.
std::shared_ptr<const TensorCodec> make_codec(ChannelQuantiser quantiser);
std::shared_ptr<const TensorCodec> make_codec(TokenQuantiser quantiser);
std::shared_ptr<const TensorCodec> make_half_codec(int heads, int dim);

/// The codec of a tensor that needs no calibration; `sparse` is the scheme's fraction. Throws Error(usage) for one that
/// does.
std::shared_ptr<const TensorCodec> make_codec(const TensorScheme& scheme, double sparse, int heads, int dim);
/// The codec of integers in online groups whose heads are turned by matrices of their own, [heads][D D] by rows and
/// orthogonal (Rotation::spectral).
std::shared_ptr<const TensorCodec> make_codec(const TensorScheme& scheme, int heads, int dim,
                                              const std::vector<std::vector<float>>& rotations);

}  // namespace kvcc
