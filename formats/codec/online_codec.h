// Codecs of schemes whose ranges are found on-line, by what they do. make_codec() picks one. Host only.
#pragma once

#include <memory>

#include "formats/codec/tensor_codec.h"

namespace kvcc {

/// Throws Error(usage) when the scheme is not of the kind, or the heads do not fit it.
std::shared_ptr<const TensorCodec> make_group_codec(const TensorScheme& scheme, int heads, int dim);
std::shared_ptr<const TensorCodec> make_varn_codec(const TensorScheme& scheme, int heads, int dim);
std::shared_ptr<const TensorCodec> make_lloyd_codec(const TensorScheme& scheme, int heads, int dim);
std::shared_ptr<const TensorCodec> make_fp8_codec(int heads, int dim);
std::shared_ptr<const TensorCodec> make_polar_codec(const TensorScheme& scheme, int heads, int dim);
std::shared_ptr<const TensorCodec> make_angles_codec(const TensorScheme& scheme, int heads, int dim);
std::shared_ptr<const TensorCodec> make_sign_codec(const TensorScheme& scheme, int heads, int dim);

}  // namespace kvcc
