#include "datasets/scoring.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>

#include "datasets/pattern.h"

namespace kvcc {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

template <typename Sequence>
size_t common_subsequence(const Sequence& a, const Sequence& b) {
  std::vector<size_t> row(b.size() + 1, 0);
  for (const auto& x : a) {
    size_t corner = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = x == b[j] ? corner + 1 : std::max(row[j + 1], row[j]);
      corner = above;
    }
  }
  return row.back();
}

double f1(double common, double answer, double truth) {
  if (common == 0) return 0;
  const double precision = common / answer, recall = common / truth;
  return 2 * precision * recall / (precision + recall);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string plain_mathematics(std::string_view text) {
  std::string plain(trimmed(text));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"\\left", ""},
                                                                                 {"\\right", ""},
                                                                                 {"\\!", ""},
                                                                                 {"\\,", ""},
                                                                                 {"\\;", ""},
                                                                                 {"\\ ", ""},
                                                                                 {"dfrac", "frac"},
                                                                                 {"tfrac", "frac"},
                                                                                 {"^{\\circ}", ""},
                                                                                 {"^\\circ", ""},
                                                                                 {"\\%", ""},
                                                                                 {"%", ""},
                                                                                 {"\\$", ""},
                                                                                 {"$", ""}}) {
    plain = replaced(std::move(plain), from, to);
  }
  static const Pattern text_command("\\\\(?:text|mbox|mathrm|textbf)\\{([^{}]*)\\}"),
      short_fraction("\\\\frac(\\d)(\\d)"), thousands("(\\d),(?=\\d{3}(?!\\d))"), variable("^[a-zA-Z]=");
  plain = text_command.replaced(plain, "$1");
  plain.erase(std::remove_if(plain.begin(), plain.end(), is_space), plain.end());
  plain = short_fraction.replaced(plain, "\\frac{$1}{$2}");
  plain = thousands.replaced(plain, "$1");
  plain = variable.replaced(plain, "");
  while (!plain.empty() && plain.back() == '.') plain.pop_back();
  return plain;
}

std::optional<double> whole_number(const std::string& text) {
  double value = 0;
  const char *begin = text.data(), *end = begin + text.size();
  const auto [stopped, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return value;
}

/// A number, a/b or \frac{a}{b}.
std::optional<double> value_of(const std::string& text) {
  static const Pattern fraction("\\A(-?)(?:\\\\frac\\{(-?\\d+)\\}\\{(\\d+)\\}|(-?\\d+)/(\\d+))\\z");
  const auto parts = fraction.groups(text);
  if (!parts) return whole_number(text);
  const auto part = [&](size_t a, size_t b) {
    return whole_number(std::string((*parts)[a] ? *(*parts)[a] : *(*parts)[b]));
  };
  const std::optional<double> above = part(1, 3), below = part(2, 4);
  if (!above || !below) return std::nullopt;  // too many digits
  return ((*parts)[0]->empty() ? 1 : -1) * *above / *below;
}

}  // namespace

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view first_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text.substr(0, text.find('\n'));
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    if (!is_space(c)) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

std::string normal_answer(std::string_view text) {
  std::string bare = lower(text);
  bare.erase(std::remove_if(bare.begin(), bare.end(), [](unsigned char c) { return c < 128 && std::ispunct(c) != 0; }),
             bare.end());
  std::string result;
  for (const std::string& word : words_of(bare)) {
    if (word == "a" || word == "an" || word == "the") continue;
    result += (result.empty() ? "" : " ") + word;
  }
  return result;
}

double word_f1(std::string_view answer, std::string_view truth) {
  const std::vector<std::string> theirs = words_of(normal_answer(answer)), right = words_of(normal_answer(truth));
  std::map<std::string, int> left;
  for (const std::string& word : right) ++left[word];
  double common = 0;
  for (const std::string& word : theirs) {
    if (left[word]-- > 0) ++common;
  }
  return f1(common, static_cast<double>(theirs.size()), static_cast<double>(right.size()));
}

double rouge_l(std::string_view answer, std::string_view truth) {
  const auto words = [](std::string_view text) {
    std::string spaced = lower(text);
    for (char& c : spaced) {
      if (!(c >= 'a' && c <= 'z') && !is_digit(c)) c = ' ';
    }
    return words_of(spaced);
  };
  const std::vector<std::string> theirs = words(answer), right = words(truth);
  return f1(static_cast<double>(common_subsequence(theirs, right)), static_cast<double>(theirs.size()),
            static_cast<double>(right.size()));
}

double edit_similarity(std::string_view a, std::string_view b) {
  const size_t all = a.size() + b.size();
  return all == 0 ? 1 : 2 * static_cast<double>(common_subsequence(a, b)) / static_cast<double>(all);
}

std::vector<std::string> digit_runs(std::string_view text) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_digit(text[i])) continue;
    if (i == 0 || !is_digit(text[i - 1])) runs.emplace_back();
    runs.back() += text[i];
  }
  return runs;
}

std::optional<double> last_number(std::string_view text) {
  static const Pattern number("-?\\d[\\d,]*(?:\\.\\d+)?");
  const std::vector<std::string_view> numbers = number.all(text);
  if (numbers.empty()) return std::nullopt;
  std::string last(numbers.back());
  last.erase(std::remove(last.begin(), last.end(), ','), last.end());
  return whole_number(last);
}

std::optional<std::string> last_boxed(std::string_view text) {
  size_t at = std::string_view::npos;
  for (const std::string_view mark : {"\\boxed{", "\\fbox{"}) {
    if (const size_t found = text.rfind(mark); found != std::string_view::npos) {
      const size_t inside = found + mark.size();
      at = at == std::string_view::npos ? inside : std::max(at, inside);
    }
  }
  if (at == std::string_view::npos) return std::nullopt;
  int depth = 1;
  for (size_t i = at; i < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) return std::string(text.substr(at, i - at));
  }
  return std::nullopt;
}

bool same_mathematics(std::string_view answer, std::string_view truth) {
  const std::string a = plain_mathematics(answer), b = plain_mathematics(truth);
  if (a == b) return true;
  const std::optional<double> x = value_of(a), y = value_of(b);
  return x && y && std::abs(*x - *y) <= 1e-9 * std::max(1.0, std::abs(*y));
}

}  // namespace kvcc
