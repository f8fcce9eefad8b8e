// From the tree of a .kvcb to a Codebook, with everything that is wrong on the way. Not for other folders.
#pragma once

#include <string>
#include <vector>

#include "formats/store/codebook.h"

namespace kvcc {

struct ParsedCodebook {
  Codebook codebook;
  std::vector<std::string> problems;  ///< "/key/scale: …"; the codebook is to be used only when there are none
  bool stop = false;                  ///< of another kind or a higher major version: nothing else was looked at
};

ParsedCodebook parse_codebook(const Tree& tree);

/// Ranges and meaning of the values, for a codebook whose shapes are right.
void check_codebook_values(const Codebook& codebook, std::vector<std::string>& problems);

}  // namespace kvcc
