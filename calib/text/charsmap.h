// SentencePiece's table of replacements (precompiled_charsmap): a double-array trie of what is replaced, and the texts
// that replace it. S. Kanda et al., "Compressed double-array tries for string dictionaries", 2017; as Darts-clone
// writes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

class Charsmap {
 public:
  /// Reads uint32 size, the trie's units (uint32 each) and the texts, each ended by a NUL. Every unit that a text can
  /// lead to is checked, so that a look-up stays inside. Linear. Throws Error(bad_input) at `place`.
  Charsmap(std::string_view bytes, const std::string& place);

  /// What replaces `text` by its shortest beginning that the table has, which is how PyPI tokenizers reads the table.
  std::optional<std::string_view> find(std::string_view text) const;
  const std::string& bytes() const { return bytes_; }  ///< as it was read

 private:
  std::string bytes_;
  std::vector<uint32_t> units_;
  size_t texts_ = 0;  ///< where in bytes_ the texts begin
};

}  // namespace kvcc
