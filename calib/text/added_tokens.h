// Finding added tokens in a text: the longest at the leftmost place, as PyPI tokenizers' AddedVocabulary does.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "calib/text/regex.h"
#include "calib/text/tokenizer_spec.h"

namespace kvcc {

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  explicit AddedTokenFinder(const std::vector<const AddedToken*>& tokens);

  struct Match {
    const AddedToken* token = nullptr;
    size_t begin = 0, end = 0;  ///< with the white space that lstrip and rstrip take
  };
  /// All matches in order. The tokens themselves are disjoint, but one may lie in the white space that the one before
  /// it takes. Linear in the text times the longest token.
  std::vector<Match> find(std::string_view text) const;

 private:
  struct Node {
    std::map<unsigned char, uint32_t> next;
    const AddedToken* token = nullptr;
  };
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  bool touches_word(std::string_view text, size_t begin, size_t end) const;

  std::vector<Node> nodes_;
  bool first_[256] = {};
  std::optional<Regex> word_;  // one character of a word; only made when a token asks for it
};

}  // namespace kvcc
