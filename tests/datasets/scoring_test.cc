#include "datasets/scoring.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "datasets/pattern.h"

namespace kvcc {
namespace {

TEST(Scoring, NormalAnswers) {
  EXPECT_EQ(normal_answer("The  U.S. Army, an ANSWER!"), "us army answer");
  EXPECT_EQ(normal_answer("a the an"), "");
}

TEST(Scoring, WordF1) {
  EXPECT_DOUBLE_EQ(word_f1("The cat sat", "cat sat"), 1);
  EXPECT_DOUBLE_EQ(word_f1("cat cat dog", "cat bird"), 2 * (1.0 / 3) * 0.5 / (1.0 / 3 + 0.5));  // one cat is in common
  EXPECT_EQ(word_f1("", "x"), 0);
  EXPECT_EQ(word_f1("y", "x"), 0);
}

TEST(Scoring, RougeL) {
  // "police killed gunman" and "gunman kill police": two words in order at most one long.
  EXPECT_DOUBLE_EQ(rouge_l("police killed the gunman", "police kill the gunman"), 0.75);
  EXPECT_DOUBLE_EQ(rouge_l("the gunman kill police", "police kill the gunman"), 0.5);
  EXPECT_EQ(rouge_l("", "x"), 0);
}

TEST(Scoring, EditSimilarity) {
  EXPECT_DOUBLE_EQ(edit_similarity("this is a test", "this is a test!"), 28.0 / 29);  // fuzz.ratio says 97
  EXPECT_EQ(edit_similarity("", ""), 1);
  EXPECT_EQ(edit_similarity("ab", "cd"), 0);
}

TEST(Scoring, Numbers) {
  EXPECT_EQ(digit_runs("a12b 3"), (std::vector<std::string>{"12", "3"}));
  EXPECT_EQ(last_number("from 3 to -1,234.50."), -1234.5);
  EXPECT_EQ(last_number("it is 42."), 42);
  EXPECT_EQ(last_number("none"), std::nullopt);
}

/// The standard library's regular expressions end the program here: one frame of the stack a character.
TEST(Scoring, LongTextsAreScoredLikeShortOnes) {
  const std::string digits(1 << 20, '1'), commas(1 << 20, ',');
  EXPECT_EQ(last_number(digits), std::nullopt) << "more than a double holds";
  EXPECT_EQ(last_number("7" + commas), 7);
  EXPECT_EQ(last_number("7 " + std::string(1 << 20, 'x')), 7);
  EXPECT_TRUE(same_mathematics("\\text{" + digits + "}", digits));
  EXPECT_FALSE(same_mathematics("\\frac{" + digits + "}{3}", "1"));
  EXPECT_FALSE(same_mathematics("1/" + digits, "1"));
  EXPECT_TRUE(same_mathematics("1" + std::string(300, '0') + "/1" + std::string(299, '0'), "10"));
}

TEST(Scoring, PatternsFindAndReplace) {
  const Pattern pair("(a)|(b+)");
  EXPECT_EQ(pair.all("xabbya"), (std::vector<std::string_view>{"a", "bb", "a"}));
  EXPECT_FALSE(pair.is_in("xyz"));
  EXPECT_EQ(pair.groups("xyz"), std::nullopt);
  EXPECT_EQ(pair.groups("bb"), (std::vector<std::optional<std::string_view>>{std::nullopt, "bb"}));
  EXPECT_EQ(Pattern("(\\d)").replaced(std::string(999, '7'), "<$1$1$1>"), [] {
    std::string wanted;
    for (int i = 0; i < 999; ++i) wanted += "<777>";
    return wanted;
  }());
  EXPECT_EQ(Pattern("x*").all("axx").size(), 3u) << "empty matches do not repeat without end";
  EXPECT_THROW(Pattern("("), std::logic_error);
}

TEST(Scoring, Boxed) {
  EXPECT_EQ(last_boxed("\\boxed{1} so \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
  EXPECT_EQ(last_boxed("\\boxed{1"), std::nullopt);
  EXPECT_EQ(last_boxed("1"), std::nullopt);
}

TEST(Scoring, SameMathematics) {
  for (const auto& [a, b] : std::vector<std::pair<const char*, const char*>>{
           {"\\dfrac{1}{2}", "\\frac12"},
           {"0.5", "\\frac{1}{2}"},
           {"-\\frac{3}{4}", "-3/4"},
           {"$1,000$", "1000"},
           {"x = 5", "5"},
           {"90^\\circ", "90"},
           {"50\\%", "50"},
           {"\\text{Evelyn}", "Evelyn"},
           {"\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})"}}) {
    EXPECT_TRUE(same_mathematics(a, b)) << a << " and " << b;
  }
  for (const auto& [a, b] : std::vector<std::pair<const char*, const char*>>{
           {"1", "2"}, {"\\frac{1}{3}", "0.33"}, {"(1,2)", "(2,1)"}, {"x", "y"}, {"", "1"}}) {
    EXPECT_FALSE(same_mathematics(a, b)) << a << " and " << b;
  }
}

}  // namespace
}  // namespace kvcc
