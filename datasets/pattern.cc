#define PCRE2_CODE_UNIT_WIDTH 8
#include "datasets/pattern.h"

#include <pcre2.h>

#include <new>
#include <stdexcept>

namespace kvcc {
namespace {

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Pattern::Compiled {
  struct FreeCode {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  struct FreeMatch {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  using Match = std::unique_ptr<pcre2_match_data, FreeMatch>;
  std::unique_ptr<pcre2_code, FreeCode> code;

  Match new_match() const {
    Match match(pcre2_match_data_create_from_pattern(code.get(), nullptr));
    if (match == nullptr) throw std::bad_alloc();
    return match;
  }
  /// Offsets of the first match at or after `from`, two a group; null without one.
  const PCRE2_SIZE* find(std::string_view text, size_t from, const Match& match) const {
    if (pcre2_match(code.get(), bytes_of(text), text.size(), from, 0, match.get(), nullptr) < 0) return nullptr;
    return pcre2_get_ovector_pointer(match.get());
  }
};

Pattern::Pattern(const char* pattern) : compiled_(std::make_unique<Compiled>()) {
  int error = 0;
  PCRE2_SIZE at = 0;
  compiled_->code.reset(pcre2_compile(bytes_of(pattern), PCRE2_ZERO_TERMINATED, PCRE2_NEVER_UTF, &error, &at, nullptr));
  if (compiled_->code == nullptr) throw std::logic_error(std::string("no pattern: ") + pattern);
}

Pattern::~Pattern() = default;

bool Pattern::is_in(std::string_view text) const { return compiled_->find(text, 0, compiled_->new_match()) != nullptr; }

std::vector<std::string_view> Pattern::all(std::string_view text) const {
  const Compiled::Match match = compiled_->new_match();
  std::vector<std::string_view> found;
  for (size_t from = 0; from <= text.size();) {
    const PCRE2_SIZE* const at = compiled_->find(text, from, match);
    if (at == nullptr) break;
    found.push_back(text.substr(at[0], at[1] - at[0]));
    from = at[1] > at[0] ? at[1] : at[1] + 1;
  }
  return found;
}

std::optional<std::vector<std::optional<std::string_view>>> Pattern::groups(std::string_view text) const {
  const Compiled::Match match = compiled_->new_match();
  const PCRE2_SIZE* const at = compiled_->find(text, 0, match);
  if (at == nullptr) return std::nullopt;
  std::vector<std::optional<std::string_view>> parts(pcre2_get_ovector_count(match.get()) - 1);
  for (size_t i = 0; i < parts.size(); ++i) {
    const PCRE2_SIZE begin = at[2 * i + 2], end = at[2 * i + 3];
    if (begin != PCRE2_UNSET) parts[i] = text.substr(begin, end - begin);
  }
  return parts;
}

std::string Pattern::replaced(const std::string& text, const std::string& by) const {
  std::string out(2 * text.size() + 64, '\0');
  const auto substitute = [&](PCRE2_SIZE& size) {
    return pcre2_substitute(compiled_->code.get(), bytes_of(text), text.size(), 0,
                            PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH, nullptr, nullptr, bytes_of(by),
                            by.size(), reinterpret_cast<PCRE2_UCHAR*>(out.data()), &size);
  };
  PCRE2_SIZE size = out.size();
  int result = substitute(size);
  if (result == PCRE2_ERROR_NOMEMORY) {  // `size` is what it takes
    out.resize(size);
    result = substitute(size);
  }
  if (result < 0) return text;
  out.resize(size);
  return out;
}

}  // namespace kvcc
