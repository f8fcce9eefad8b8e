#include "datasets/instructions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "datasets/pattern.h"
#include "datasets/scoring.h"
#include "formats/core/error.h"
#include "formats/core/json.h"

namespace kvcc {
namespace {

using Json = nlohmann::json;

bool word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

int64_t count(std::string_view text, std::string_view part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

bool whole_word(const std::string& text, const std::string& word) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const bool begins = at == 0 || !word_character(text[at - 1]);
    const size_t end = at + word.size();
    if (begins && (end == text.size() || !word_character(text[end]))) return true;
  }
  return false;
}

/// "less than" or "at least" `number`.
bool compares(int64_t found, const std::string& relation, int64_t number) {
  return relation == "less than" ? found < number : found >= number;
}

int64_t count_words(std::string_view text) {
  int64_t words = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (word_character(text[i]) && (i == 0 || !word_character(text[i - 1]))) ++words;
  }
  return words;
}

std::vector<std::string> split(std::string_view text, const std::string& mark) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, begin)) {
    parts.emplace_back(text.substr(begin, at - begin));
    begin = at + mark.size();
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

/// Parts that say something; one in the middle that does not is an error of form, -1.
int64_t count_paragraphs(std::string_view text) {
  const std::vector<std::string> parts = split(text, "***");
  int64_t found = static_cast<int64_t>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!trimmed(parts[i]).empty()) continue;
    if (i != 0 && i + 1 != parts.size()) return -1;
    --found;
  }
  return found;
}

bool first_word_of_paragraph(std::string_view text, int64_t paragraphs, int64_t nth, const std::string& wanted) {
  std::vector<std::string> parts;
  for (const std::string& part : split(text, "\n\n")) {
    if (!trimmed(part).empty()) parts.push_back(std::string(trimmed(part)));
  }
  if (static_cast<int64_t>(parts.size()) != paragraphs || nth < 1 || nth > paragraphs) return false;
  const std::string word = words_of(parts[nth - 1]).at(0);
  std::string first;
  for (const char c : word) {
    if (c == '.' || c == ',' || c == '?' || c == '!' || c == '\'' || c == '"') {
      if (!first.empty()) break;
      continue;
    }
    first += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return first == lower(wanted);
}

bool has_json_alone(std::string_view text) {
  std::string_view bare = trimmed(text);
  for (const std::string_view fence : {"```json", "```Json", "```JSON", "```"}) {
    if (bare.starts_with(fence)) {
      bare.remove_prefix(fence.size());
      break;
    }
  }
  if (bare.ends_with("```")) bare.remove_suffix(3);
  return Json::accept(trimmed(bare));
}

bool has_title(std::string_view text) {
  static const Pattern title("<<[^\n]+>>");
  for (const std::string_view match : title.all(text)) {
    std::string inside(match);
    inside.erase(0, inside.find_first_not_of('<'));
    inside.erase(inside.find_last_not_of('>') + 1);
    if (!trimmed(inside).empty()) return true;
  }
  return false;
}

bool two_responses(std::string_view text) {
  const std::vector<std::string> parts = split(text, "******");
  std::vector<std::string> answers;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!trimmed(parts[i]).empty()) {
      answers.push_back(std::string(trimmed(parts[i])));
    } else if (i != 0 && i + 1 != parts.size()) {
      return false;
    }
  }
  return answers.size() == 2 && answers[0] != answers[1];
}

int64_t capital_words(std::string_view text) {
  int64_t found = 0;
  for (const std::string& word : words_of(text)) {
    bool cased = false, small = false;
    for (const char c : word) {
      cased = cased || (c >= 'A' && c <= 'Z');
      small = small || (c >= 'a' && c <= 'z');
    }
    if (cased && !small) ++found;
  }
  return found;
}

bool has_case(std::string_view text, bool upper) {
  bool cased = false;
  for (const unsigned char c : text) {
    if (std::isalpha(c) == 0) continue;
    cased = true;
    if ((std::isupper(c) != 0) != upper) return false;
  }
  return cased;
}

bool has_postscript(std::string_view text, const std::string& marker) {
  static const Pattern pps("p\\.\\s?p\\.\\s?s"), ps("p\\.\\s?s\\.");
  const std::string small = lower(text);
  if (marker == "P.P.S") return pps.is_in(small);
  if (marker == "P.S.") return ps.is_in(small);
  return contains(small, lower(marker));
}

int64_t highlights(std::string_view text) {
  static const Pattern one("\\*[^\n\\*]*\\*"), two("\\*\\*[^\n\\*]*\\*\\*");
  int64_t found = 0;
  for (const Pattern* pattern : {&one, &two}) {
    for (const std::string_view match : pattern->all(text)) {
      std::string inside(match);
      inside.erase(std::remove(inside.begin(), inside.end(), '*'), inside.end());
      if (!trimmed(inside).empty()) ++found;
    }
  }
  return found;
}

/// Reads arguments; an absent one is an error that names it.
class Arguments {
 public:
  Arguments(const std::string& json, std::string place)
      : json_(parse_json<Json>(json, place)), place_(std::move(place)) {}
  std::string text(const char* name) const { return get(name).get<std::string>(); }
  std::vector<std::string> texts(const char* name) const { return get(name).get<std::vector<std::string>>(); }
  /// Also written as 3.0, as tables make of whole numbers in a column with gaps.
  int64_t number(const char* name) const {
    constexpr double kMost = 1e15;
    const Json& value = get(name);
    const double number = value.is_number() ? value.get<double>() : kMost + 1;
    if (!(std::abs(number) <= kMost) || number != std::floor(number)) {
      throw bad_input(place_, fmt::format("{} is {}", name, json_brief(value)), "a whole number");
    }
    return static_cast<int64_t>(number);
  }
  std::string text_or(const char* name, const std::string& otherwise) const {
    return json_.contains(name) && json_.at(name).is_string() ? json_.at(name).get<std::string>() : otherwise;
  }

 private:
  const Json& get(const char* name) const {
    if (!json_.contains(name) || json_.at(name).is_null()) throw bad_input(place_, std::string("no argument ") + name);
    return json_.at(name);
  }
  Json json_;
  std::string place_;
};

using Maker = Instruction (*)(const Arguments&, const std::string& prompt);
using Text = std::string_view;

Instruction counted(const Arguments& a, const char* relation, const char* number, int64_t (*counter)(Text)) {
  return [r = a.text(relation), n = a.number(number), counter](Text t) { return compares(counter(t), r, n); };
}

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> all{
      {"keywords:existence",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [words = a.texts("keywords")](Text t) {
           const std::string text = lower(t);
           return std::all_of(words.begin(), words.end(), [&](const auto& w) { return contains(text, lower(w)); });
         };
       }},
      {"keywords:frequency",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [w = lower(a.text("keyword")), n = a.number("frequency"), r = a.text("relation")](Text t) {
           return compares(count(lower(t), w), r, n);
         };
       }},
      {"keywords:forbidden_words",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [words = a.texts("forbidden_words")](Text t) {
           const std::string text = lower(t);
           return std::none_of(words.begin(), words.end(), [&](const auto& w) { return whole_word(text, lower(w)); });
         };
       }},
      {"keywords:letter_frequency",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [l = lower(a.text("letter")), n = a.number("let_frequency"), r = a.text("let_relation")](Text t) {
           return compares(count(lower(t), l), r, n);
         };
       }},
      {"language:response_language", [](const Arguments&, const std::string&) -> Instruction { return {}; }},
      {"length_constraints:number_sentences",
       [](const Arguments& a, const std::string&) { return counted(a, "relation", "num_sentences", count_sentences); }},
      {"length_constraints:number_words",
       [](const Arguments& a, const std::string&) { return counted(a, "relation", "num_words", count_words); }},
      {"length_constraints:number_paragraphs",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [n = a.number("num_paragraphs")](Text t) { return count_paragraphs(t) == n; };
       }},
      {"length_constraints:nth_paragraph_first_word",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [n = a.number("num_paragraphs"), i = a.number("nth_paragraph"), w = a.text("first_word")](Text t) {
           return first_word_of_paragraph(t, n, i, w);
         };
       }},
      {"detectable_content:number_placeholders",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [n = a.number("num_placeholders")](Text t) {
           static const Pattern placeholder("\\[[^\n]*?\\]");
           return static_cast<int64_t>(placeholder.all(t).size()) >= n;
         };
       }},
      {"detectable_content:postscript",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [m = a.text("postscript_marker")](Text t) { return has_postscript(t, m); };
       }},
      {"detectable_format:number_bullet_lists",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [n = a.number("num_bullets")](Text t) {
           int64_t found = 0;
           for (const std::string& line : split(t, "\n")) {
             const Text bare = trimmed(line);
             found += bare.starts_with("-") || (bare.starts_with("*") && !bare.starts_with("**")) ? 1 : 0;
           }
           return found == n;
         };
       }},
      {"detectable_format:constrained_response",
       [](const Arguments&, const std::string&) -> Instruction {
         return [](Text t) {
           return contains(t, "My answer is yes.") || contains(t, "My answer is no.") ||
                  contains(t, "My answer is maybe.");
         };
       }},
      {"detectable_format:number_highlighted_sections",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [n = a.number("num_highlights")](Text t) { return highlights(t) >= n; };
       }},
      {"detectable_format:multiple_sections",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [s = std::string(trimmed(a.text("section_spliter"))), n = a.number("num_sections")](Text t) {
           int64_t found = 0;
           for (size_t at = t.find(s); at != Text::npos; at = t.find(s, at + 1)) {
             size_t next = at + s.size();
             while (next < t.size() && t[next] == ' ') ++next;
             if (next < t.size() && std::isdigit(static_cast<unsigned char>(t[next])) != 0) ++found;
           }
           return found >= n;
         };
       }},
      {"detectable_format:json_format",
       [](const Arguments&, const std::string&) -> Instruction { return has_json_alone; }},
      {"detectable_format:title",
       [](const Arguments&, const std::string&) -> Instruction { return [](Text t) { return has_title(t); }; }},
      {"combination:two_responses", [](const Arguments&, const std::string&) -> Instruction { return two_responses; }},
      {"combination:repeat_prompt",
       [](const Arguments& a, const std::string& prompt) -> Instruction {
         return [p = lower(trimmed(a.text_or("prompt_to_repeat", prompt)))](Text t) {
           return lower(trimmed(t)).starts_with(p);
         };
       }},
      {"startend:end_checker",
       [](const Arguments& a, const std::string&) -> Instruction {
         return [e = lower(trimmed(a.text("end_phrase")))](Text t) {
           Text bare = trimmed(t);
           while (bare.ends_with("\"")) bare.remove_suffix(1);
           return lower(bare).ends_with(e);
         };
       }},
      {"startend:quotation",
       [](const Arguments&, const std::string&) -> Instruction {
         return [](Text t) {
           const Text bare = trimmed(t);
           return bare.size() > 1 && bare.front() == '"' && bare.back() == '"';
         };
       }},
      {"change_case:capital_word_frequency",
       [](const Arguments& a, const std::string&) {
         return counted(a, "capital_relation", "capital_frequency", capital_words);
       }},
      {"change_case:english_capital",
       [](const Arguments&, const std::string&) -> Instruction { return [](Text t) { return has_case(t, true); }; }},
      {"change_case:english_lowercase",
       [](const Arguments&, const std::string&) -> Instruction { return [](Text t) { return has_case(t, false); }; }},
      {"punctuation:no_comma",
       [](const Arguments&, const std::string&) -> Instruction { return [](Text t) { return !contains(t, ","); }; }},
  };
  return all;
}

}  // namespace

int64_t count_sentences(std::string_view text) {
  static const std::set<std::string> titles{"mr", "mrs", "ms",  "dr",  "prof", "st",
                                            "vs", "etc", "inc", "ltd", "e.g",  "i.e"};
  int64_t found = 0;
  std::string word;
  bool open = false;  // something was said since the last end
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (word_character(c)) open = true;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      word.clear();
    } else if (c != '.' && c != '!' && c != '?') {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      size_t next = i + 1;
      while (next < text.size() && (text[next] == '"' || text[next] == '\'' || text[next] == ')')) ++next;
      const bool ends = next == text.size() || std::isspace(static_cast<unsigned char>(text[next])) != 0;
      const bool short_form = c == '.' && next < text.size() &&
                              (titles.contains(word) || (word.size() == 1 && word != "i" &&
                                                         std::isalpha(static_cast<unsigned char>(word[0])) != 0));
      if (ends && !short_form && open) {
        ++found;
        open = false;
      }
      if (c == '.') word += c;
    }
  }
  return found + (open ? 1 : 0);
}

Instruction make_instruction(const std::string& id, const std::string& arguments, const std::string& prompt,
                             const std::string& place) {
  const auto maker = makers().find(id);
  if (maker == makers().end()) throw bad_input(place, "instruction " + id, "one of IFEval's 25");
  Instruction check = maker->second(Arguments(arguments, place + ", " + id), prompt);
  if (!check) return {};
  return [check](std::string_view answer) { return !trimmed(answer).empty() && check(answer); };
}

bool follows_loosely(const Instruction& instruction, std::string_view answer) {
  const size_t first = answer.find('\n'), last = answer.rfind('\n');
  const bool lines = first != std::string_view::npos;
  const std::string_view without_first = lines ? answer.substr(first + 1) : std::string_view();
  const std::string_view without_last = lines ? answer.substr(0, last) : std::string_view();
  const std::string_view without_both = lines && last > first ? answer.substr(first + 1, last - first - 1) : "";
  for (const std::string_view part : {answer, without_first, without_last, without_both}) {
    // What lines were cut from is trimmed there, and what they were not is not.
    std::string text(part.size() == answer.size() ? part : trimmed(part));
    if (instruction(text)) return true;
    std::erase(text, '*');
    if (instruction(text)) return true;
  }
  return false;
}

}  // namespace kvcc
