// Cuts a text into words, stage by stage, as PyPI tokenizers' pre-tokenizers do.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "calib/text/regex.h"
#include "calib/text/tokenizer_spec.h"

namespace kvcc {

class Splitter {
 public:
  Splitter(const std::vector<SplitStage>& stages, const std::string& place);

  /// Where a text stands.
  struct Position {
    bool first = false;    ///< at the beginning of all text
    bool goes_on = false;  ///< after an invalid byte: nothing is put before its first word
  };
  /// Calls `word` for each word, in order. The views are good during the call; those that no stage changed lie in
  /// `text`.
  void run(std::string_view text, Position position, const std::function<void(std::string_view)>& word) const {
    split(text, position, 0, word);
  }

 private:
  struct Stage {
    SplitStage split;
    std::optional<Regex> regex;
  };
  void split(std::string_view text, Position position, size_t depth,
             const std::function<void(std::string_view)>& word) const;

  std::vector<Stage> stages_;
};

}  // namespace kvcc
