// What inspect prints on a terminal: it fits, and shows what it says.
#include "calib/report/text_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/formats/store/made.h"

namespace kvcc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

int widest(const std::string& text) {
  int most = 0;
  for (const std::string& line : lines_of(text)) most = std::max(most, columns_of(line));
  return most;
}

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); });
}

/// A SmolLM2-like and a Llama-like geometry, with warnings and numbers of many digits.
ReportData made_report(int head_dim) {
  Codebook codebook = made::codebook("kvcc-nuq3-1%-sink1", 30);
  codebook.model.shape.head_dim = head_dim;
  codebook.key = made::tensor(30, 2, head_dim, 3, true, true, 0.5f);
  for (float& x : codebook.key.stats.max) x *= -12345.678f;
  for (float& x : codebook.key.stats.min) x *= 12345.678f;
  codebook.key.stats.drift.assign(60, 0.9f);
  codebook.value.stats.weighted_sse[7] = 1.23456e-12f;
  return report_data(codebook);
}

class Widths : public ::testing::TestWithParam<int> {};

TEST_P(Widths, NothingIsWider) {
  const int width = GetParam();
  for (const int head_dim : {8, 64, 128, 256}) {
    const ReportData data = made_report(head_dim);
    for (const bool unicode : {true, false}) {
      const TextStyle style{width, unicode, false};
      const std::string text = layers_text(data.heads, style) + warnings_text(data.warnings, style) +
                               heads_text(data.heads, "-token_position", style) +
                               head_text(data.heads[2], data.codebook, style) +
                               head_text(data.heads[5], data.codebook, style);
      EXPECT_LE(widest(text), width);
      EXPECT_EQ(is_ascii(text), !unicode);
      EXPECT_THAT(text, Not(HasSubstr("\x1b")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Terminals, Widths, ::testing::Values(80, 81, 100, 140, 200));

TEST(Text, MoreRoomShowsMore) {
  const ReportData data = made_report(64);
  const std::string narrow = layers_text(data.heads, {80, true, false}),
                    wide = layers_text(data.heads, {140, true, false});
  EXPECT_THAT(narrow, Not(HasSubstr("wsse")));
  EXPECT_THAT(wide, HasSubstr("wsse"));
  EXPECT_GT(widest(wide), 110);
  EXPECT_THAT(heads_text(data.heads, "", {80, true, false}), Not(HasSubstr("heaviest_sample")));
  EXPECT_THAT(heads_text(data.heads, "", {300, true, false}), HasSubstr("heaviest_sample"));
  EXPECT_THAT(heads_text(data.heads, "-heaviest_sample", {80, true, false}), HasSubstr("heaviest_sample"));
}

TEST(Text, ColoursOnlyWhenAsked) {
  const ReportData data = made_report(64);
  EXPECT_THAT(layers_text(data.heads, {80, true, true}), HasSubstr("\x1b["));
  EXPECT_EQ(paint("a", Ink::blue, {80, true, false}), "a");
}

TEST(Text, BarsHaveTheirWidthAndLength) {
  const TextStyle unicode{80, true, false}, ascii{80, false, false};
  EXPECT_EQ(bar(0, 4, unicode), "    ");
  EXPECT_EQ(bar(0.5, 4, unicode), "██  ");
  EXPECT_EQ(bar(0.53125, 4, unicode), "██▏ ");
  EXPECT_EQ(bar(1, 4, unicode), "████");
  EXPECT_EQ(bar(2, 4, unicode), "████");
  EXPECT_EQ(bar(NAN, 4, unicode), "    ");
  EXPECT_EQ(bar(0.6, 5, ascii), "###  ");
  EXPECT_EQ(bar(0.7, 5, ascii), "###- ");
}

TEST(Text, ColumnsAndExtents) {
  const TextStyle unicode{80, true, false};
  const double heights[] = {0, 0.001, 0.5, 1};
  const int marks[] = {0};
  EXPECT_THAT(column_chart(heights, 2, marks, unicode), ElementsAre("┊  █", "┊▁██"));
  const double low[] = {0, 0.25, 0.9}, high[] = {1, 0.5, 0.9};
  EXPECT_THAT(extent_chart(low, high, 2, unicode), ElementsAre("█ ▀", "█▀ "));
}

TEST(Text, WhatAFileSaysCannotDriveTheTerminal) {
  const TextStyle unicode{80, true, false}, ascii{80, false, false};
  EXPECT_EQ(printable("a\x1b[31m\nb\x7f", unicode), "a?[31m?b?");
  EXPECT_EQ(printable("a\xc2\x9b"
                      "b",
                      unicode),
            "a?b");
  EXPECT_EQ(printable("модель", unicode), "модель");
  EXPECT_EQ(printable("мод", ascii), "???");
}

TEST(Text, LongWordsAndListsAreFolded) {
  const TextStyle style{40, true, false};
  EXPECT_EQ(folded("name", "short", 8, style), "name    short\n");
  const std::string text = folded("name", std::string(70, 'x') + " and,more,words", 8, style);
  EXPECT_LE(widest(text), 40);
  EXPECT_EQ(std::count(text.begin(), text.end(), 'x'), 70);
  EXPECT_EQ(folded("", "", 4, style), "\n");
}

TEST(Text, OneHeadShowsItsNumbers) {
  Codebook codebook = made::codebook();
  codebook.key.stats.histogram.assign(codebook.key.stats.histogram.size(), 0.0f);
  codebook.key.stats.histogram[3 * kNormalisedBins + 64] = 1;  // all elements just above 0
  const ReportData data = report_data(codebook);
  const std::string text = head_text(data.heads[5], data.codebook, {80, true, false});
  EXPECT_THAT(text, HasSubstr("layer 2 key head 1: 3 bits, scaled per channel"));
  EXPECT_THAT(text, HasSubstr("1.30 %; 1.13 % on held-out text; 1 % asked"));
  EXPECT_THAT(text, HasSubstr("0.801 nat^2 weighted; SQNR 22.00 dB"));
  EXPECT_THAT(text, HasSubstr("25.00 % on first tokens; of the rest 23.00\n"));
  EXPECT_THAT(text, HasSubstr("% on sample 3, 2.30 % on token 35 of sample 4"));
  // One high column at the middle, thresholds on both sides, and 8 codes below with their ends.
  const std::vector<std::string> lines = lines_of(text);
  const auto chart = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("┊") != std::string::npos && line.find("█") != std::string::npos;
  });
  ASSERT_NE(chart, lines.end());
  const auto codes = std::find_if(lines.begin(), lines.end(),
                                  [](const std::string& line) { return line.find("┃") != std::string::npos; });
  ASSERT_NE(codes, lines.end());
  size_t levels = 0;
  for (size_t at = codes->find("┼"); at != std::string::npos; at = codes->find("┼", at + 1)) ++levels;
  EXPECT_EQ(levels, 8u);
  EXPECT_THAT(text, HasSubstr("ranges before RoPE, channels 0 to 7"));
}

TEST(Text, ValuesThatAreNotKnownAreDashes) {
  Codebook codebook = made::codebook();
  codebook.key.stats = {};
  const ReportData data = report_data(codebook);
  EXPECT_THAT(head_text(data.heads[0], data.codebook, {80, true, false}), HasSubstr("- nat^2 weighted; SQNR - dB"));
  EXPECT_THAT(layers_text(data.heads, {80, true, false}), HasSubstr("-"));
}

TEST(Text, CsvHasEveryNumberOfEveryHead) {
  const ReportData data = report_data(made::codebook());
  const std::vector<std::string> lines = lines_of(heads_csv(data.heads));
  ASSERT_EQ(lines.size(), data.heads.size() + 1);
  const size_t columns = head_columns().size() + 3 + channel_columns().size();
  for (const std::string& line : lines) EXPECT_EQ(std::count(line.begin(), line.end(), ','), long(columns) - 1);
  EXPECT_THAT(lines[0], ::testing::StartsWith("layer,kind,head,bits,range_min"));
  EXPECT_THAT(lines[6], ::testing::StartsWith("2,key,1,3,"));
}

}  // namespace
}  // namespace kvcc
