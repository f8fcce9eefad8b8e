#define PCRE2_CODE_UNIT_WIDTH 8
#include "calib/text/regex.h"

#include <pcre2.h>

#include <algorithm>

#include "calib/text/tokenizer_spec.h"

namespace kvcc {
namespace {

// White_Space of Unicode, for use inside a class.
constexpr const char* kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

// Space at the ends of lines. As it stands it is tried from every space of a run that does not end a line, which takes
// time in proportion to the square of the run; this skips such a run after the first.
constexpr const char* kTrailing = R"(\s+$)";
constexpr const char* kTrailingOnce = R"((?:(?!\n)\s)++(?!$)(*SKIP)(*FAIL)|\s+$)";

// Writes out \s and \S, because PCRE2 counts U+180E as a space and Oniguruma and Rust don't.
std::string translate(const std::string& given, const std::string& place) {
  const std::string pattern = given == kTrailing ? kTrailingOnce : given;
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 'h' || next == 'H' || (next == 'S' && in_class)) {
        throw tokenizer_error(place, std::string("splitting pattern with \\") + next + ": " + pattern);
      }
      if (next == 's') {
        out += in_class ? kSpaces : std::string("[") + kSpaces + "]";
      } else if (next == 'S') {
        out += std::string("[^") + kSpaces + "]";
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (in_class && c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') {
      throw tokenizer_error(place, "splitting pattern with && in a class: " + pattern);
    }
    if (in_class && c == '[') throw tokenizer_error(place, "splitting pattern with a class in a class: " + pattern);
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

// A pattern of a model takes some steps a byte. One whose time doubles with each byte is stopped: PCRE2's own default,
// and more for long texts. Its memory, used where the JIT's stack does not do, is bounded likewise.
constexpr uint64_t kLeastSteps = 10'000'000, kStepsPerByte = 64;
constexpr uint32_t kHeapKib = 512 << 10;

struct Scratch {  // one per thread: match data and a JIT stack that grows to 64 MiB
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(64 << 10, 64 << 20, nullptr);
  Scratch() {
    if (!data || !context) throw std::bad_alloc();
    pcre2_set_depth_limit(context, UINT32_MAX);
    pcre2_set_heap_limit(context, kHeapKib);
    if (stack) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

}  // namespace

struct Regex::Compiled {
  std::string pattern, place;
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

Regex::Regex(const std::string& pattern, const std::string& place) : compiled_(std::make_unique<Compiled>()) {
  compiled_->pattern = pattern;
  compiled_->place = place;
  const std::string text = translate(pattern, place);
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at,
                                  context);  // \C would cut characters into bytes
  pcre2_compile_context_free(context);
  if (!compiled_->code) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    throw tokenizer_error(place, "splitting pattern " + pattern + ": " + reinterpret_cast<const char*>(message));
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(compiled_->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty) throw tokenizer_error(place, "splitting pattern that matches nothing at all: " + pattern);
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter gives the same matches
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

bool Regex::find(std::string_view text, size_t from, size_t& begin, size_t& end) const {
  thread_local const Scratch scratch;
  const uint64_t steps = kLeastSteps + kStepsPerByte * (text.size() - std::min(from, text.size()));
  pcre2_set_match_limit(scratch.context, static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  const auto match = [&](uint32_t options) {
    return pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, scratch.data, scratch.context);
  };
  int result = match(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result == PCRE2_ERROR_MATCHLIMIT || result == PCRE2_ERROR_HEAPLIMIT) {
    throw tokenizer_error(compiled_->place, "splitting pattern " + compiled_->pattern + " takes too many steps",
                          "a pattern whose time grows with the text as its length does");
  }
  if (result < 0) {
    throw Error(ErrorKind::resource, compiled_->place,
                "splitting pattern " + compiled_->pattern + ": PCRE2 error " + std::to_string(result));
  }
  const PCRE2_SIZE* pair = pcre2_get_ovector_pointer(scratch.data);
  begin = pair[0];
  end = pair[1];
  if (begin < from || end <= from || begin > end) {  // \K and (*ACCEPT) can do that
    throw tokenizer_error(compiled_->place, "splitting pattern that matches nothing at all: " + compiled_->pattern);
  }
  return true;
}

}  // namespace kvcc
