#include "calib/model/description.h"

#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr DecoderDescription kDecoders[] = {
    {"llama", NormKind::rms, MlpKind::swiglu, {}},
};

}  // namespace

const DecoderDescription& describe_decoder(const std::string& architecture) {
  std::string known;
  for (const DecoderDescription& decoder : kDecoders) {
    if (architecture == decoder.architecture) return decoder;
    known += (known.empty() ? "" : ", ") + std::string(decoder.architecture);
  }
  throw bad_input("architecture", architecture, "one of: " + known);
}

}  // namespace kvcc
