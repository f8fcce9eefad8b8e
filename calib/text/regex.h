// A splitting pattern, compiled by PCRE2 (JIT where there is one) to mean what Oniguruma means by it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace kvcc {

class Regex {
 public:
  /// Throws Error(bad_input) at `place` for a pattern that doesn't compile, matches the empty string, or uses what the
  /// two dialects read differently (\h, &&).
  Regex(const std::string& pattern, const std::string& place);
  ~Regex();
  Regex(Regex&&) noexcept;

  /// The first match at or after `from`; false when there is none. `text` is well-formed UTF-8. Reentrant.
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace kvcc
