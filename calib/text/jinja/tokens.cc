#include "calib/text/jinja/tokens.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "calib/text/jinja/syntax.h"
#include "calib/text/utf8.h"

namespace kvcc::jinja {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

class Lexer {
 public:
  Lexer(std::string source, const std::string& place) : source_(std::move(source)), place_(place) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag();
      data(tag);
      if (tag == source_.size()) break;
      source_[tag + 1] == '#' ? comment() : code();
    }
    push(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& found, const std::string& wanted = "") const {
    throw template_error(place_, line_, found, wanted);
  }
  void push(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(size_t to) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<long>(at_), source_.begin() + static_cast<long>(to), '\n'));
    at_ = to;
  }

  size_t next_tag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) return i;
    }
    return source_.size();
  }

  /// Text up to a tag, whose marks say what of its end stays.
  void data(size_t tag) {
    std::string text = source_.substr(at_, tag - at_);
    if (tag < source_.size()) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      if (sign == '-') {
        while (!text.empty() && is_space(text.back())) text.pop_back();
      } else if (source_[tag + 1] != '{' && sign != '+') {
        // lstrip_blocks: a tag that comes first in its line takes the blanks before it away.
        const size_t line = text.rfind('\n') + 1;  // 0 where there is none
        const bool whole = line > 0 || line_starts_;
        if (whole && text.find_first_not_of(" \t", line) == std::string::npos) text.resize(line);
      }
    }
    if (!text.empty()) push(Token::Kind::data, text);
    advance(tag);
  }

  /// After a tag: what it takes of the text that follows.
  void after(bool strip, bool block) {
    size_t to = at_;
    if (strip) {
      while (to < source_.size() && is_space(source_[to])) ++to;
    } else if (block && to < source_.size() && source_[to] == '\n') {
      ++to;  // trim_blocks
    }
    line_starts_ = to > at_ && source_[to - 1] == '\n';
    advance(to);
  }

  void comment() {
    const size_t end = source_.find("#}", at_ + 2);
    if (end == std::string::npos) fail("a comment without end", "#}");
    const bool strip = end > at_ + 2 && source_[end - 1] == '-', keep = source_[end - 1] == '+';
    advance(end + 2);
    after(strip, !keep);
  }

  void code() {
    const bool block = source_[at_ + 1] == '%';
    push(block ? Token::Kind::begin_block : Token::Kind::begin_output, "");
    advance(at_ + 2);
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) advance(at_ + 1);
    const std::string end = block ? "%}" : "}}";
    int open = 0;  // braces of objects, so that "}}" may end one
    while (true) {
      while (at_ < source_.size() && is_space(source_[at_])) advance(at_ + 1);
      if (at_ >= source_.size()) fail("a tag without end", end);
      const std::string_view rest = std::string_view(source_).substr(at_);
      const bool strip = rest.starts_with('-'), keep = rest.starts_with('+');
      if (open == 0 && (rest.starts_with(end) || ((strip || keep) && rest.substr(1).starts_with(end)))) {
        push(block ? Token::Kind::end_block : Token::Kind::end_output, "");
        advance(at_ + 2 + (strip || keep ? 1 : 0));
        after(strip, block && !keep);
        return;
      }
      if (rest[0] == '{') ++open;
      if (rest[0] == '}') --open;
      token(rest);
    }
  }

  void token(std::string_view rest) {
    const char c = rest[0];
    size_t length = 1;
    if (c == '\'' || c == '"') return string(c);
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      while (length < rest.size() && (is_word(rest[length]) || (rest[length] == '.' && length + 1 < rest.size() &&
                                                                std::isdigit(rest[length + 1]) != 0))) {
        ++length;
      }
      push(Token::Kind::number, std::string(rest.substr(0, length)));
    } else if (is_word(c)) {
      while (length < rest.size() && is_word(rest[length])) ++length;
      push(Token::Kind::name, std::string(rest.substr(0, length)));
    } else {
      for (const char* mark : {"==", "!=", "<=", ">=", "//", "**"}) {
        if (rest.starts_with(mark)) length = 2;
      }
      if (length == 1 && std::string_view("+-*/%~<>=.:,|()[]{}").find(c) == std::string_view::npos) {
        fail(std::string("'") + c + "'", "an expression");
      }
      push(Token::Kind::mark, std::string(rest.substr(0, length)));
    }
    advance(at_ + length);
  }

  /// A literal with Python's escapes.
  void string(char quote) {
    std::string out;
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\') {
        out += source_[i];
        continue;
      }
      if (++i >= source_.size()) break;
      const char c = source_[i];
      constexpr std::string_view kNames = "nrtabfv0\\'\"\n", kMeanings("\n\r\t\a\b\f\v\0\\'\"", 11);
      const size_t known = kNames.find(c);
      if (c == '\n') continue;
      if (known != std::string_view::npos) {
        out += kMeanings[known];
      } else if (c == 'x' || c == 'u') {
        const size_t digits = c == 'x' ? 2 : 4;
        const std::string hex = source_.substr(i + 1, digits);
        if (hex.size() != digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
          fail("the escape \\" + std::string(1, c) + hex);
        }
        append_utf8(out, static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
        i += digits;
      } else {
        out += '\\';
        out += c;
      }
    }
    if (i >= source_.size()) fail("a text without end", std::string(1, quote));
    push(Token::Kind::string, out);
    advance(i + 1);
  }

  std::string source_;
  const std::string& place_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  ///< what came before ends in a line's end
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenise(const std::string& source, const std::string& place) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();  // keep_trailing_newline is off
  return Lexer(std::move(text), place).run();
}

}  // namespace kvcc::jinja
