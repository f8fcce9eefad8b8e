// The vector codebooks that an artifact holds of one tensor of one layer.
#pragma once

#include <cstddef>

#include "calib/eval/simulated_cache.h"
#include "formats/codec/key_prediction.h"
#include "formats/codec/vector_codec.h"

namespace kvcc {

/// Of row `row` (of codebook.layer_index); the scheme has vector codebooks.
VectorQuantiser vector_quantiser(const Codebook& codebook, size_t row, CacheTensor tensor);

/// Of the row's values; empty where they are not predicted.
KeyPrediction key_prediction(const Codebook& codebook, size_t row);

}  // namespace kvcc
