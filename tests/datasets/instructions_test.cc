#include "datasets/instructions.h"

#include <gtest/gtest.h>

#include "formats/core/error.h"

namespace kvcc {
namespace {

struct Case {
  const char *id, *arguments, *follows, *breaks;
};

/// Every one of IFEval's instructions that can be checked, with an answer that follows it and one that does not.
const Case kCases[] = {
    {"keywords:existence", R"({"keywords":["Apple","pear"]})", "An apple and a PEAR.", "An apple."},
    {"keywords:frequency", R"({"keyword":"go","frequency":2,"relation":"at least"})", "Go, go!", "Go!"},
    {"keywords:frequency", R"({"keyword":"go","frequency":2,"relation":"less than"})", "Go!", "Go, go!"},
    {"keywords:forbidden_words", R"({"forbidden_words":["cat"]})", "A category.", "A Cat."},
    {"keywords:letter_frequency", R"({"letter":"q","let_frequency":2,"let_relation":"at least"})", "Quick quiz",
     "Quick"},
    {"length_constraints:number_sentences", R"({"num_sentences":3,"relation":"less than"})",
     "Dr. Smith came. He saw 3.5 birds!", "One. Two. Three."},
    {"length_constraints:number_words", R"({"num_words":3,"relation":"at least"})", "one two three", "one two"},
    {"length_constraints:number_paragraphs", R"({"num_paragraphs":2})", "One.\n***\nTwo.\n***", "One.\n\nTwo."},
    {"length_constraints:nth_paragraph_first_word", R"({"num_paragraphs":2,"nth_paragraph":2,"first_word":"Hello"})",
     "One.\n\n\"Hello, you.\"", "Hello.\n\nTwo."},
    {"detectable_content:number_placeholders", R"({"num_placeholders":2})", "[name] at [place]", "[name] alone"},
    {"detectable_content:postscript", R"({"postscript_marker":"P.S."})", "Bye.\nP.S. Write!", "Bye."},
    {"detectable_content:postscript", R"({"postscript_marker":"P.P.S"})", "Bye.\nP.P.S Write!", "Bye. P.S. Write!"},
    {"detectable_format:number_bullet_lists", R"({"num_bullets":2})", "* one\n- two", "* one\n**two**"},
    {"detectable_format:constrained_response", "{}", "My answer is no.", "No."},
    {"detectable_format:number_highlighted_sections", R"({"num_highlights":1})", "This is *it*.", "This is **."},
    {"detectable_format:multiple_sections", R"({"section_spliter":"SECTION","num_sections":2})",
     "SECTION 1\na\nSECTION 2\nb", "SECTION 1\nSECTIONS"},
    {"detectable_format:json_format", "{}", "```json\n{\"a\": 1}\n```", "{a: 1}"},
    {"detectable_format:title", "{}", "<<Poem>>\nRoses", "<< >>\nRoses"},
    {"combination:two_responses", "{}", "One.\n******\nTwo.", "One.\n******\nOne."},
    {"combination:repeat_prompt", R"({"prompt_to_repeat":"Say it."})", "say it.\nIt.", "It."},
    {"startend:end_checker", R"({"end_phrase":"That is all."})", "Done. that is ALL.", "That is all. Done."},
    {"startend:quotation", "{}", " \"Done.\" ", "\"Done."},
    {"change_case:capital_word_frequency", R"({"capital_frequency":2,"capital_relation":"at least"})", "THIS IS it",
     "THIS is it"},
    {"change_case:english_capital", "{}", "ALL OF IT, 1", "ALL of it"},
    {"change_case:english_lowercase", "{}", "all of it, 1", "All of it"},
    {"punctuation:no_comma", "{}", "One two.", "One, two."},
};

TEST(Instructions, EachHoldsAndFails) {
  for (const Case& c : kCases) {
    const Instruction check = make_instruction(c.id, c.arguments, "The prompt", "here");
    ASSERT_TRUE(check) << c.id;
    EXPECT_TRUE(check(c.follows)) << c.id << ": " << c.follows;
    EXPECT_FALSE(check(c.breaks)) << c.id << ": " << c.breaks;
    EXPECT_FALSE(check("  ")) << c.id;
  }
}

TEST(Instructions, LooselyWithoutEndsAndAsterisks) {
  const Instruction lower = make_instruction("change_case:english_lowercase", "{}", "", "here");
  const Instruction quoted = make_instruction("startend:quotation", "{}", "", "here");
  for (const char* answer : {"all", "Here:\nall", "all\nBye", "Here:\nall\nBye"}) {
    EXPECT_TRUE(follows_loosely(lower, answer)) << answer;
  }
  for (const char* answer : {"", " ", "Here", "Here\nBye", "Here\nNot\nall\nBye", "A\nB\nc\nD"}) {
    EXPECT_FALSE(follows_loosely(lower, answer)) << answer;
  }
  EXPECT_FALSE(quoted("**\"Yes.\"**"));
  EXPECT_TRUE(follows_loosely(quoted, "**\"Yes.\"**"));
  EXPECT_TRUE(follows_loosely(quoted, "Sure:\n\n*\"Yes.\"*\n\nBye"));
}

TEST(Instructions, WhatCannotBeChecked) {
  EXPECT_FALSE(make_instruction("language:response_language", R"({"language":"de"})", "", "here"));
}

TEST(Instructions, ThePromptIsRepeatedWhereNothingElseIsNamed) {
  EXPECT_TRUE(make_instruction("combination:repeat_prompt", "{}", "Do it.", "here")("Do it. Done."));
}

TEST(Instructions, WrongOnesAreNamed) {
  for (const auto& [id, arguments, named] :
       {std::tuple{"keywords:absence", "{}", "keywords:absence"}, std::tuple{"keywords:existence", "{}", "keywords"},
        std::tuple{"length_constraints:number_words", R"({"num_words":3,"relation":null})", "relation"}}) {
    try {
      make_instruction(id, arguments, "", "line 7");
      FAIL() << id;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("line 7"), std::string::npos);
    }
  }
}

TEST(Instructions, Sentences) {
  EXPECT_EQ(count_sentences("Hello there. How are you? Fine!"), 3);
  EXPECT_EQ(count_sentences("Mr. A. Smith paid 3.50 dollars."), 1);
  EXPECT_EQ(count_sentences("He said \"No.\" She left"), 2);
  EXPECT_EQ(count_sentences(""), 0);
}

TEST(Instructions, NumbersAreWholeHoweverTheyAreWritten) {
  const auto words = [](const std::string& number) {
    return make_instruction("length_constraints:number_words", R"({"relation":"at least","num_words":)" + number + "}",
                            "", "test");
  };
  EXPECT_TRUE(words("3.0")("one two three"));
  EXPECT_FALSE(words("4e0")("one two three"));
  for (const char* number : {"2.5", "1e30", "-1e400", "\"3\"", "[3]"}) EXPECT_THROW(words(number), Error) << number;
}

TEST(Instructions, LongAnswersAreCheckedLikeShortOnes) {
  const std::string line(1 << 18, 'x');
  for (const Case& one : kCases) {
    const Instruction check = make_instruction(one.id, one.arguments, "", "test");
    for (const char* begin : {"<<", "[", "*", "p.", "", "{\"a\":\""}) {
      for (const char* end : {">>", "]", "*", "s.", "", "\"}"}) check(begin + line + end);
    }
  }
  EXPECT_TRUE(make_instruction("detectable_format:title", "{}", "", "test")("<<" + line + ">>"));
  EXPECT_TRUE(make_instruction("detectable_content:number_placeholders", R"({"num_placeholders":1})", "",
                               "test")("[" + line + "]"));
}

}  // namespace
}  // namespace kvcc
