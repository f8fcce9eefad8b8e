// Scores of generated answers, as the published benchmarks define them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

/// Lower case, without ASCII punctuation, without the words a, an, the, single spaces between words (SQuAD's rule,
/// which LongBench uses).
std::string normal_answer(std::string_view text);
std::vector<std::string> words_of(std::string_view text);  ///< split at white space
/// F1 of the bags of words of the two normal answers; 0 where they share none.
double word_f1(std::string_view answer, std::string_view truth);
/// F1 of the longest common subsequence of lower-case words of letters and digits (ROUGE-L of a single sequence).
double rouge_l(std::string_view answer, std::string_view truth);
/// 2 M / (|a| + |b|) in bytes, M the length of the longest common subsequence (the indel ratio); 1 for two empty texts.
double edit_similarity(std::string_view a, std::string_view b);

/// Digits that stand together, without sign.
std::vector<std::string> digit_runs(std::string_view text);
/// The last decimal number, its sign and fraction included, commas between digits left out ("1,234.50" is 1234.5).
std::optional<double> last_number(std::string_view text);
/// What the last \boxed{…} or \fbox{…} holds, nested braces included.
std::optional<std::string> last_boxed(std::string_view text);
/// Whether two answers in LaTeX say the same after notation is made alike: spaces, \left and \right, \dfrac and \tfrac,
/// \text, units of degree and per cent, "x =" and dollar signs; numbers and simple fractions by their values.
bool same_mathematics(std::string_view answer, std::string_view truth);

std::string lower(std::string_view text);            ///< ASCII
std::string_view trimmed(std::string_view text);     ///< without white space at both ends
std::string_view first_line(std::string_view text);  ///< after leading line ends
bool contains(std::string_view text, std::string_view part);

}  // namespace kvcc
