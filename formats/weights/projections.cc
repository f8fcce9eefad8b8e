#include "formats/weights/projections.h"

#include <algorithm>
#include <iterator>

namespace kvcc {

std::vector<ExpectedTensor> projections(const ModelFiles& files) {
  constexpr Part kProjections[] = {Part::query,          Part::key,         Part::value,       Part::query_key_value,
                                   Part::output,         Part::query_down,  Part::query_up,    Part::latent_down,
                                   Part::latent_up,      Part::gate,        Part::up,          Part::gate_up,
                                   Part::down,           Part::expert_gate, Part::expert_up,   Part::expert_down,
                                   Part::shared_gate,    Part::shared_up,   Part::shared_down, Part::convolution_in,
                                   Part::convolution_out};
  const Architecture& architecture = find_architecture(files.config.architecture, files.path);
  std::vector<ExpectedTensor> found;
  for (ExpectedTensor& tensor : expected_tensors(architecture, files.config)) {
    const bool one = std::find(std::begin(kProjections), std::end(kProjections), tensor.part) != std::end(kProjections);
    if (one && !tensor.is_bias && tensor.layer >= 0) found.push_back(std::move(tensor));
  }
  std::stable_sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.layer < b.layer; });
  return found;
}

}  // namespace kvcc
