// FP8 E4M3 without a scale, as vLLM's fp8 cache with scale 1.
#include "formats/codec/coded.h"
#include "formats/codec/fp8.h"
#include "formats/codec/online_codec.h"

namespace kvcc {
namespace {

class Fp8Codec : public TensorCodec {
 public:
  using TensorCodec::TensorCodec;
  std::vector<PartShape> parts(int64_t tokens) const override { return {{"codes", 8, tokens * heads() * dim()}}; }
  void encode(std::span<const float> x, CodedTokens& out, const std::string& place, int64_t first) const override {
    start_parts(*this, check_tokens(*this, x, place, first), out);
    for (size_t i = 0; i < x.size(); ++i) out[0].values[i] = float_to_fp8(x[i]);
  }
  void decode(const CodedTokens& in, std::span<float> out) const override {
    check_parts(*this, check_rows(out.size(), out.size(), int64_t{heads()} * dim(), "decoded"), in);
    for (size_t i = 0; i < out.size(); ++i) out[i] = fp8_to_float(static_cast<uint8_t>(in[0].values[i]));
  }
};

}  // namespace

std::shared_ptr<const TensorCodec> make_fp8_codec(int heads, int dim) { return std::make_shared<Fp8Codec>(heads, dim); }

}  // namespace kvcc
