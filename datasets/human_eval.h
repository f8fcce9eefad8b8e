// HumanEval: whether a completion passes its tests. Executes what a model wrote.
#pragma once

#include <string>
#include <string_view>

namespace kvcc {

struct HumanEvalProblem {
  std::string prompt, test, entry_point;  ///< as in the published file
};

/// The completion up to where the function ends (a line that begins a definition, class, condition or call at the left
/// edge, or a fence).
std::string_view function_body(std::string_view completion);

/// Runs prompt, completion and tests with python3 in a process of its own, in an empty folder, isolated from the user's
/// settings (-I), with at most 10 s of processor time and 20 s in all; no sandbox. Throws Error(failed) without
/// python3.
bool passes(const HumanEvalProblem& problem, std::string_view completion);

}  // namespace kvcc
