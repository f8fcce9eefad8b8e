// Changes a text step by step before it is cut into words, as PyPI tokenizers' normalizers do.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "calib/text/regex.h"
#include "calib/text/tokenizer_spec.h"

namespace kvcc {

class Normalizer {
 public:
  Normalizer(const std::vector<NormalizerStep>& steps, const std::string& place);

  bool empty() const { return steps_.empty(); }
  /// `text` is well-formed UTF-8, and so is the result. `goes_on`: it follows text that was cut off only because a
  /// byte between them is invalid, so nothing is put before it. O(n log n).
  std::string run(std::string_view text, bool goes_on) const;

 private:
  struct Step {
    NormalizerStep step;
    std::optional<Regex> regex;
  };
  std::vector<Step> steps_;
};

}  // namespace kvcc
