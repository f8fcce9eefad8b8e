// From the tree of a .kvcw to QuantisedWeights, with everything that is wrong on the way. Not for other folders.
#pragma once

#include <string>
#include <vector>

#include "formats/store/weights_file.h"

namespace kvcc {

struct ParsedWeights {
  QuantisedWeights weights;
  std::vector<std::string> problems;  ///< the weights are to be used only when there are none
};

ParsedWeights parse_weights(const Tree& tree);

}  // namespace kvcc
