// The matrices of a decoder's layers that weight quantisation is about.
#pragma once

#include <vector>

#include "formats/weights/architecture.h"

namespace kvcc {

/// Weights of all linear projections of the layers: attention, latents, convolution's in and out, MLP and experts. Not
/// the embedding, norms, biases and the output head, nor routers, which are small and decide. Layers ascend.
std::vector<ExpectedTensor> projections(const ModelFiles& files);

}  // namespace kvcc
