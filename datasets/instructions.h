// IFEval's instructions (arXiv 2311.07911): each a check of the answer alone.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace kvcc {

/// Whether an answer follows it; empty for an instruction that kvcc can't check.
using Instruction = std::function<bool(std::string_view answer)>;

/// The check of "keywords:existence" and the like with its arguments, a JSON object text; "combination:repeat_prompt"
/// without one takes `prompt`. Empty for language:response_language, which needs a detector of languages. An empty
/// answer follows nothing. Throws Error(bad_input) at `place` for an instruction that IFEval does not have, or without
/// an argument that it needs.
Instruction make_instruction(const std::string& id, const std::string& arguments, const std::string& prompt,
                             const std::string& place);

/// Whether the answer follows it loosely: as it is, without its first line, its last or both, each with and without
/// asterisks; one of the eight that is not empty must do (IFEval's evaluation_lib, test_instruction_following_loose).
bool follows_loosely(const Instruction& instruction, std::string_view answer);

/// Sentences: runs that end in full stops, question or exclamation marks before white space or the end, abbreviations
/// of titles and single letters not counted as ends.
int64_t count_sentences(std::string_view text);

}  // namespace kvcc
