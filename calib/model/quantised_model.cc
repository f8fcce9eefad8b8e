#include "calib/model/quantised_model.h"

#include <ATen/ATen.h>

#include <map>

#include "formats/codec/weight_codec.h"
#include "formats/core/error.h"
#include "formats/core/text.h"
#include "formats/weights/projections.h"

namespace kvcc {

QuantisedWeights read_weights_for(const std::string& path, const ModelFiles& files, const ModelInfo& info) {
  QuantisedWeights weights = read_weights(path);
  if (weights.model.weights_sha256 != info.weights_sha256) {
    throw bad_input(path, "made from the weights of " + weights.model.name + " (" + weights.model.weights_sha256 + ")",
                    "those of " + files.path + " (" + info.weights_sha256 + ")",
                    "kvcc fit-weights makes them for this model");
  }
  std::map<std::string, const QuantisedMatrix*> there;
  for (const QuantisedMatrix& matrix : weights.matrices) there[matrix.name] = &matrix;
  const std::vector<ExpectedTensor> wanted = projections(files);
  for (const ExpectedTensor& tensor : wanted) {
    const auto found = there.find(tensor.hf);
    if (found == there.end()) throw bad_input(path, "no " + tensor.hf, "all projections of " + files.path);
    const std::vector<int64_t> shape{found->second->rows, found->second->columns};
    if (shape == tensor.shape && found->second->layer == tensor.layer) continue;
    throw bad_input(path, tensor.hf + " is " + shape_text(shape) + " of layer " + std::to_string(found->second->layer),
                    shape_text(tensor.shape) + " of layer " + std::to_string(tensor.layer));
  }
  if (there.size() != wanted.size()) {
    throw bad_input(path, std::to_string(there.size()) + " matrices",
                    std::to_string(wanted.size()) + ", the projections of " + files.path);
  }
  return weights;
}

void use_weights(Decoder& decoder, const ModelFiles& files, const QuantisedWeights& weights) {
  std::map<std::string, const QuantisedMatrix*> there;
  for (const QuantisedMatrix& matrix : weights.matrices) there[matrix.name] = &matrix;
  for (const ExpectedTensor& tensor : projections(files)) {
    const at::Tensor decoded = at::empty(tensor.shape, at::kFloat);
    decode_matrix(*there.at(tensor.hf), weights.bits,
                  {decoded.mutable_data_ptr<float>(), static_cast<size_t>(decoded.numel())});
    decoder.replace(tensor, decoded);
  }
}

uint64_t projection_bytes(const ModelFiles& files) {
  uint64_t bytes = 0;
  for (const ExpectedTensor& tensor : projections(files)) {
    bytes += sizeof(float) * static_cast<uint64_t>(tensor.shape[0]) * static_cast<uint64_t>(tensor.shape[1]);
  }
  return bytes;
}

}  // namespace kvcc
