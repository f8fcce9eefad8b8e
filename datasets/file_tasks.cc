#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "datasets/human_eval.h"
#include "datasets/instructions.h"
#include "datasets/scoring.h"
#include "datasets/tasks.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/json.h"

namespace kvcc {
namespace {

using Json = nlohmann::json;
using Score = std::function<double(std::string_view)>;

double exact(bool right) { return right ? 1.0 : 0.0; }

/// The best over the right answers, each of which counts.
Score best_of(std::vector<std::string> truths, double (*score)(std::string_view, std::string_view), bool one_line) {
  return [truths = std::move(truths), score, one_line](std::string_view answer) {
    double best = 0;
    for (const std::string& truth : truths) best = std::max(best, score(one_line ? first_line(answer) : answer, truth));
    return best;
  };
}

double share_of_numbers(std::string_view answer, const std::string& right) {
  const std::vector<std::string> numbers = digit_runs(answer);
  if (numbers.empty()) return 0;
  return static_cast<double>(std::count(numbers.begin(), numbers.end(), right)) / static_cast<double>(numbers.size());
}

double count_score(std::string_view answer, std::string_view truth) {
  return share_of_numbers(answer, std::string(truth));
}

/// "Paragraph 7": the share of the numbers in the answer that are 7.
double retrieval_score(std::string_view answer, std::string_view truth) {
  const std::vector<std::string> runs = digit_runs(truth);
  return runs.empty() ? 0 : share_of_numbers(answer, runs[0]);
}

/// The first line that is neither fence nor comment.
double code_score(std::string_view answer, std::string_view truth) {
  std::string_view rest = answer, line = first_line(answer);
  while (!rest.empty()) {
    line = rest.substr(0, rest.find('\n'));
    if (!trimmed(line).empty() && !contains(line, "`") && !contains(line, "#") && !contains(line, "//")) break;
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    line = {};
  }
  return edit_similarity(line, truth);
}

/// One of the classes is in the answer, and it is the right one; others in it share the point.
Score class_score(std::vector<std::string> truths, std::vector<std::string> classes) {
  return [truths = std::move(truths), classes = std::move(classes)](std::string_view answer) {
    double best = 0;
    for (const std::string& truth : truths) {
      std::vector<std::string> named;
      for (const std::string& name : classes) {
        if (!contains(first_line(answer), name) || (name != truth && contains(truth, name))) continue;
        named.push_back(name);
      }
      if (std::find(named.begin(), named.end(), truth) != named.end()) {
        best = std::max(best, 1 / static_cast<double>(named.size()));
      }
    }
    return best;
  };
}

/// LongBench's English and code sets: what is asked of the context, and how answers are scored.
struct LongBenchSet {
  const char* name;
  int64_t tokens;
  const char* before;                                   ///< the context
  const char* after;                                    ///< it; {} is the record's input
  double (*score)(std::string_view, std::string_view);  ///< null: classes
  bool one_line;
  const char* metric;
  bool chat;
};

constexpr const char *kDocument = "Read the text and answer the question about it.\n\n",
                     *kAsk =
                         "\n\nAnswer the question from the text above, in a few words and nothing else.\n\nQuestion: {}"
                         "\nAnswer:",
                     *kCode = "Please complete the code given below.\n";
constexpr std::array<LongBenchSet, 16> kLongBench{{
    {"narrativeqa", 128, kDocument, kAsk, word_f1, false, "F1", true},
    {"qasper", 128, kDocument, kAsk, word_f1, false, "F1", true},
    {"multifieldqa_en", 64, kDocument, kAsk, word_f1, false, "F1", true},
    {"hotpotqa", 32, kDocument, kAsk, word_f1, false, "F1", true},
    {"2wikimqa", 32, kDocument, kAsk, word_f1, false, "F1", true},
    {"musique", 32, kDocument, kAsk, word_f1, false, "F1", true},
    {"gov_report", 512, "Write a one-page summary of this report.\n\n", "\n\nSummary:", rouge_l, false, "ROUGE-L",
     true},
    {"qmsum", 512, "Here is the transcript of a meeting.\n\n",
     "\n\nAnswer in one or more sentences.\nQuery: {}\nAnswer:", rouge_l, false, "ROUGE-L", true},
    {"multi_news", 512, "Write a one-page summary of these news articles.\n\n", "\n\nSummary:", rouge_l, false,
     "ROUGE-L", true},
    {"trec", 64, "Give the type of the question. Here are examples.\n\n", "\n{}", nullptr, true, "exact match", false},
    {"triviaqa", 32, "Answer the question from the passage, with the answer alone. Here are examples.\n\n", "\n\n{}",
     word_f1, true, "F1", false},
    {"samsum", 128, "Summarise the dialogue in a few short sentences. Here are examples.\n\n", "\n\n{}", rouge_l, true,
     "ROUGE-L", false},
    {"passage_count", 32, "These paragraphs may repeat each other. How many different ones are there?\n\n",
     "\n\nGive the number alone, such as 1, 2 or 3.\nThe final answer is:", count_score, false, "share of numbers",
     true},
    {"passage_retrieval_en", 32, "Here are 30 paragraphs and an abstract of one of them.\n\n",
     "\n\nThe abstract:\n\n{}\n\nName the paragraph that it belongs to, such as \"Paragraph 1\".\nThe answer is:",
     retrieval_score, false, "share of numbers", true},
    {"lcc", 64, kCode, "Next line of code:\n", code_score, false, "edit similarity", false},
    {"repobench-p", 64, kCode, "{}Next line of code:\n", code_score, false, "edit similarity", false},
}};

TaskSample long_bench(const Json& record, const std::string& place, std::string& metric) {
  const std::string set = record.at("dataset");
  const auto* known =
      std::find_if(kLongBench.begin(), kLongBench.end(), [&](const LongBenchSet& s) { return set == s.name; });
  if (known == kLongBench.end()) {
    std::string names;
    for (const LongBenchSet& s : kLongBench) names += std::string(names.empty() ? "" : ", ") + s.name;
    throw bad_input(place, "dataset " + set, names, "sets in Chinese need a word splitter, which kvcc has not");
  }
  TaskSample sample;
  std::string after = known->after;
  if (const size_t at = after.find("{}"); at != std::string::npos) {
    after.replace(at, 2, record.at("input").get<std::string>());
  }
  sample.prompt = known->before + record.at("context").get<std::string>() + after;
  sample.chat = known->chat;
  sample.max_tokens = known->tokens;
  metric = known->metric;
  auto truths = record.at("answers").get<std::vector<std::string>>();
  sample.score = known->score != nullptr
                     ? best_of(std::move(truths), known->score, known->one_line)
                     : class_score(std::move(truths), record.at("all_classes").get<std::vector<std::string>>());
  return sample;
}

constexpr int64_t kMostAnswer = 1 << 20;  ///< tokens

/// Strings that must all be in the answer, whatever their case; of questions (qa_…) one of them.
TaskSample ruler(const Json& record, const std::string& place) {
  TaskSample sample;
  sample.prompt = record.at("input").get<std::string>() + record.value("answer_prefix", "");
  sample.chat = record.value("chat", false);
  sample.max_tokens = record.contains("max_tokens") ? json_member<int64_t>(record, "max_tokens", place) : 128;
  if (sample.max_tokens < 1 || sample.max_tokens > kMostAnswer) {
    throw bad_input(place, fmt::format("max_tokens {}", sample.max_tokens), fmt::format("1 to {}", kMostAnswer));
  }
  const bool any = record.value("task", "").starts_with("qa");
  sample.score = [wanted = record.at("outputs").get<std::vector<std::string>>(), any](std::string_view answer) {
    const std::string text = lower(answer);
    double found = 0;
    for (const std::string& part : wanted) found += contains(text, lower(part)) ? 1 : 0;
    return any ? exact(found > 0) : found / static_cast<double>(std::max<size_t>(1, wanted.size()));
  };
  return sample;
}

TaskSample gsm8k(const Json& record, const std::string& place) {
  const std::string solution = record.at("answer");
  const size_t mark = solution.rfind("####");
  const auto right = mark == std::string::npos ? std::nullopt : last_number(solution.substr(mark));
  if (!right) throw bad_input(place, "an answer without a number after ####");
  TaskSample sample;
  sample.prompt = record.at("question").get<std::string>() +
                  "\n\nThink step by step, and end with a line \"The answer is\" and the number.";
  sample.max_tokens = 512;
  sample.score = [right](std::string_view answer) {
    const auto number = last_number(answer);
    return exact(number && std::abs(*number - *right) < 1e-6);
  };
  return sample;
}

TaskSample math500(const Json& record) {
  TaskSample sample;
  sample.prompt =
      record.at("problem").get<std::string>() + "\n\nReason step by step, and put the final answer within \\boxed{}.";
  sample.max_tokens = 2048;
  sample.score = [truth = record.at("answer").get<std::string>()](std::string_view answer) {
    const auto boxed = last_boxed(answer);
    return exact(boxed && same_mathematics(*boxed, truth));
  };
  return sample;
}

TaskSample human_eval(const Json& record, bool run_code) {
  TaskSample sample;
  sample.prompt = record.at("prompt");
  sample.chat = false;
  sample.max_tokens = 512;
  const HumanEvalProblem problem{sample.prompt, record.at("test"), record.at("entry_point")};
  sample.score = [problem, run_code](std::string_view answer) {
    return run_code ? exact(passes(problem, answer)) : std::numeric_limits<double>::quiet_NaN();
  };
  return sample;
}

TaskSample if_eval(const Json& record, const std::string& place) {
  TaskSample sample;
  sample.prompt = record.at("prompt");
  sample.max_tokens = 1280;
  std::vector<Instruction> instructions;
  const auto ids = record.at("instruction_id_list").get<std::vector<std::string>>();
  const Json& keywords = record.at("kwargs");
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string arguments = keywords.at(i).is_null() ? "{}" : keywords.at(i).dump();
    instructions.push_back(make_instruction(ids[i], arguments, sample.prompt, place));
  }
  const bool known = std::all_of(instructions.begin(), instructions.end(), [](const Instruction& i) { return !!i; });
  sample.score = [instructions, known](std::string_view answer) {
    if (!known) return std::numeric_limits<double>::quiet_NaN();
    return exact(
        std::all_of(instructions.begin(), instructions.end(), [&](const Instruction& i) { return i(answer); }));
  };
  sample.further = [instructions, known](std::string_view answer) -> std::vector<Points> {
    if (!known) return {};
    const auto all = static_cast<double>(instructions.size());
    double strict = 0, loose = 0;
    for (const Instruction& instruction : instructions) {
      strict += instruction(answer) ? 1 : 0;
      loose += follows_loosely(instruction, answer) ? 1 : 0;
    }
    return {{loose == all ? 1.0 : 0.0, 1}, {strict, all}, {loose, all}};
  };
  return sample;
}

}  // namespace

const std::vector<std::string>& file_task_names() {
  static const std::vector<std::string> names{"longbench", "ruler", "gsm8k", "math500", "humaneval", "ifeval"};
  return names;
}

Task file_task(std::string_view name, const std::string& path, const FileTaskOptions& options) {
  if (std::find(file_task_names().begin(), file_task_names().end(), name) == file_task_names().end()) {
    throw Error(ErrorKind::usage, "task " + std::string(name), "no such task of a file",
                fmt::format("{}", fmt::join(file_task_names(), ", ")));
  }
  constexpr size_t kMostOfLine = size_t{64} << 20;
  const MappedFile file(path);
  std::string_view rest(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  Task task{std::string(name), "exact match", {}, {}};
  if (name == "humaneval") task.metric = "pass@1";
  if (name == "ifeval") {
    task.metric = "all instructions followed (strict)";
    task.further_metrics = {"all instructions followed (loose)", "instructions followed (strict)",
                            "instructions followed (loose)"};
  }
  if (name == "ruler") task.metric = "strings found";
  int64_t number = 0;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.substr(0, kMostOfLine).find('\n'));
    const std::string place = path + " line " + std::to_string(++number);
    if (line.size() >= kMostOfLine) throw bad_input(place, "no end within 64 MiB", "JSON lines");
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (trimmed(line).empty()) continue;
    if (options.samples > 0 && static_cast<int64_t>(task.samples.size()) == options.samples) break;
    try {
      const auto record = parse_json<Json>(line, place);
      if (name == "longbench") {
        std::string metric;
        task.samples.push_back(long_bench(record, place, metric));
        if (task.samples.size() > 1 && metric != task.metric) throw bad_input(place, "another metric than above");
        task.metric = metric;
        task.name = "longbench:" + record.at("dataset").get<std::string>();
      } else if (name == "ruler") {
        task.samples.push_back(ruler(record, place));
      } else if (name == "gsm8k") {
        task.samples.push_back(gsm8k(record, place));
      } else if (name == "math500") {
        task.samples.push_back(math500(record));
      } else if (name == "humaneval") {
        task.samples.push_back(human_eval(record, options.run_code));
      } else {
        task.samples.push_back(if_eval(record, place));
      }
    } catch (const Json::exception& error) {
      throw bad_input(place, error.what(), "JSON with the fields of " + std::string(name), "formats/spec/tasks.md");
    }
  }
  if (task.samples.empty()) throw bad_input(path, "no records", "JSON lines");
  return task;
}

}  // namespace kvcc
