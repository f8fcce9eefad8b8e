// Patterns over texts that models and files give, by PCRE2: the standard library's regular expressions recurse once a
// character, and a long line ends the program.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

/// A Perl-compatible pattern over bytes. A search that takes more than PCRE2's ten million steps finds nothing.
/// Reentrant.
class Pattern {
 public:
  /// `pattern` is the program's own: std::logic_error for one that does not compile.
  explicit Pattern(const char* pattern);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  bool is_in(std::string_view text) const;
  /// Parts of `text` that match, in order, none of which overlap.
  std::vector<std::string_view> all(std::string_view text) const;
  /// The groups of the first match, 1 and on, nullopt where one took no part; nullopt without a match.
  std::optional<std::vector<std::optional<std::string_view>>> groups(std::string_view text) const;
  /// `text` with every match replaced; $1, $2 … in `by` are groups. As it is where that takes too many steps.
  std::string replaced(const std::string& text, const std::string& by) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace kvcc
