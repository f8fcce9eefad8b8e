#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "datasets/scoring.h"
#include "datasets/tasks.h"
#include "formats/core/error.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

/// 0 to n - 1, the same on every machine (the standard's distributions are not).
class Dice {
 public:
  explicit Dice(uint64_t seed) : bits_(seed) {}
  int64_t below(int64_t n) {
    const auto range = static_cast<uint64_t>(n);
    const uint64_t fair = UINT64_MAX - UINT64_MAX % range;
    uint64_t roll = bits_();
    while (roll >= fair) roll = bits_();
    return static_cast<int64_t>(roll % range);
  }

 private:
  std::mt19937_64 bits_;
};

std::string sentences(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    text += "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
  }
  return text;
}

/// Tokens of the parts in KVQuant's script: description, key and question, and a repetition of the garbage.
constexpr int64_t kDescription = 32, kKey = 26, kQuestion = 11, kGarbage = 25;

TaskSample passkey(int64_t tokens, Dice& dice) {
  const int64_t garbage = (tokens - kDescription - kKey - kQuestion) / kGarbage, before = dice.below(garbage + 1);
  const int64_t key = 1 + dice.below(50000);
  TaskSample sample;
  sample.prompt = fmt::format(
      "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
      "about the important information there.\n{}\nThe pass key is {}. Remember it. {} is the pass key.\n{}\nWhat is "
      "the pass key? The pass key is",
      sentences(before), key, key, sentences(garbage - before));
  sample.chat = false;
  sample.max_tokens = 10;
  sample.score = [key](std::string_view answer) {
    const auto numbers = digit_runs(answer);
    return !numbers.empty() && numbers[0] == std::to_string(key) ? 1.0 : 0.0;
  };
  return sample;
}

constexpr std::array kAdjectives{"amber", "brisk", "calm",  "dusty", "eager", "faint", "gentle", "hollow",
                                 "icy",   "jolly", "keen",  "loud",  "mild",  "noble", "odd",    "plain",
                                 "quick", "rough", "shiny", "tidy",  "urban", "vivid", "warm",   "young"};
constexpr std::array kNouns{"anchor", "bridge", "candle", "desert", "engine",   "forest", "garden",  "harbor",
                            "island", "jacket", "kettle", "ladder", "market",   "needle", "orchard", "pepper",
                            "quarry", "ribbon", "saddle", "temple", "umbrella", "valley", "window",  "yard"};

TaskSample lines(int64_t count, Dice& dice) {
  std::string text =
      "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains a "
      "'<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its "
      "corresponding <REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding "
      "<REGISTER_CONTENT> of a certain line index. Now the record starts:\n\n";
  const int64_t asked = dice.below(count);
  std::set<std::string> used;
  std::string asked_name;
  int64_t content = 0;
  for (int64_t i = 0; i < count; ++i) {
    std::string name;
    do {
      name = fmt::format("{}-{}", kAdjectives[dice.below(kAdjectives.size())], kNouns[dice.below(kNouns.size())]);
      // More lines than names: a number makes the difference.
      if (count > static_cast<int64_t>(kAdjectives.size() * kNouns.size()) / 2) {
        name += "-" + std::to_string(dice.below(1000));
      }
    } while (!used.insert(name).second);
    const int64_t value = 1 + dice.below(50000);
    if (i == asked) {
      asked_name = name;
      content = value;
    }
    text += fmt::format("line {}: REGISTER_CONTENT is <{}>\n", name, value);
  }
  TaskSample sample;
  sample.prompt = text + fmt::format(
                             "\nNow the record is over. Tell me what is the <REGISTER_CONTENT> in line {}? I need the "
                             "number.",
                             asked_name);
  sample.max_tokens = 100;
  sample.score = [content](std::string_view answer) {
    const auto numbers = digit_runs(answer);
    return !numbers.empty() && numbers.back() == std::to_string(content) ? 1.0 : 0.0;
  };
  return sample;
}

bool code_character(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

/// The last run of exactly ten letters and digits.
std::string last_code(std::string_view text) {
  std::string last, run;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && code_character(text[i])) {
      run += text[i];
      continue;
    }
    if (run.size() == 10) last = run;
    run.clear();
  }
  return last;
}

TaskSample codes(int64_t count, Dice& dice) {
  const int64_t asked = dice.below(count);
  std::string text = "Remember the code on each of these lines.\n", wanted;
  for (int64_t i = 0; i < count; ++i) {
    std::string code;
    for (int c = 0; c < 10; ++c) code += "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"[dice.below(36)];
    if (i == asked) wanted = code;
    text += fmt::format("line {}: {}\n", i + 1, code);
  }
  TaskSample sample;
  sample.prompt =
      text +
      fmt::format("What is the code on line {}? Reply with only the 10-character code, nothing else.", asked + 1);
  sample.max_tokens = 32;
  sample.score = [wanted](std::string_view answer) { return last_code(answer) == wanted ? 1.0 : 0.0; };
  return sample;
}

constexpr std::array kHay{
    "A good plan is one that you can still change on the second day.",
    "Most of the work in a project is finding out what the work is.",
    "When the tools are quiet, people notice the questions they had put off.",
    "Small teams talk more and write less, until they grow.",
    "An old machine that runs teaches more than a new one that does not.",
    "The letter arrived late, and by then nobody remembered who had asked for it.",
    "Rivers find the valley, and roads follow the rivers.",
    "It takes a winter to know a house and a summer to know its garden.",
};

TaskSample needle(int64_t tokens, double depth, Dice& dice) {
  constexpr int64_t kSentence = 14;  // tokens of a sentence of the haystack, about
  const int64_t count = std::max<int64_t>(1, (tokens - 60) / kSentence);
  const auto place = static_cast<int64_t>(depth * static_cast<double>(count));
  std::string text = "Here is a text. A question about it follows.\n\n";
  for (int64_t i = 0; i <= count; ++i) {
    if (i == place) {
      text += "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day. ";
    }
    if (i < count) text += std::string(kHay[dice.below(kHay.size())]) + " ";
  }
  TaskSample sample;
  sample.prompt = text + "\n\nWhat is the best thing to do in San Francisco? Answer with what the text says.";
  sample.max_tokens = 128;
  sample.score = [](std::string_view answer) {
    const std::string text = lower(answer);
    return 0.5 * (contains(text, "sandwich") ? 1 : 0) + 0.5 * (contains(text, "dolores") ? 1 : 0);
  };
  return sample;
}

}  // namespace

const std::vector<std::string>& synthetic_task_names() {
  static const std::vector<std::string> names{"passkey", "lines", "codes", "needle"};
  return names;
}

Task synthetic_task(std::string_view name, const SyntheticOptions& options) {
  Task task{std::string(name), "exact match", {}};
  const std::string place = "task " + task.name;
  const int64_t least = name == "passkey" ? kDescription + kKey + kQuestion : name == "needle" ? 80 : 1;
  if (options.size < least || options.size > 1 << 24) {
    throw Error(ErrorKind::usage, place, "size " + std::to_string(options.size),
                std::to_string(least) + " to 16777216 " + (least > 1 ? "tokens" : "lines"));
  }
  Dice dice(options.seed);
  for (int64_t i = 0; i < options.samples; ++i) {
    if (name == "passkey") {
      task.samples.push_back(passkey(options.size, dice));
    } else if (name == "lines") {
      task.samples.push_back(lines(options.size, dice));
    } else if (name == "codes") {
      task.samples.push_back(codes(options.size, dice));
    } else if (name == "needle") {
      task.metric = "share of the two words";
      task.samples.push_back(needle(options.size, 0.1 * static_cast<double>(1 + i % 10), dice));
    } else {
      throw Error(ErrorKind::usage, place, "no such task", fmt::format("{}", fmt::join(synthetic_task_names(), ", ")));
    }
  }
  return task;
}

}  // namespace kvcc
