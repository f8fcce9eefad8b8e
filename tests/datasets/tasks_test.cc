#include "datasets/tasks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "datasets/human_eval.h"
#include "datasets/scoring.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

namespace fs = std::filesystem;

std::string group(const std::string& text, const std::string& pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str() : "";
}

TEST(SyntheticTasks, PasskeyFollowsTheProtocol) {
  const Task task = synthetic_task("passkey", {2048, 5, 3});
  ASSERT_EQ(task.samples.size(), 5u);
  for (const TaskSample& sample : task.samples) {
    const std::string key = group(sample.prompt, "The pass key is (\\d+)\\. Remember it\\.");
    const int value = std::stoi(key);
    EXPECT_TRUE(value >= 1 && value <= 50000);
    EXPECT_EQ(sample.score(" " + key + ". Remember"), 1);
    EXPECT_EQ(sample.score(std::to_string(value + 1) + " or " + key), 0);  // the first number counts
    EXPECT_EQ(sample.score("I don't know"), 0);
    EXPECT_EQ(sample.max_tokens, 10);
    EXPECT_FALSE(sample.chat);
    size_t garbage = 0;
    for (size_t at = 0; (at = sample.prompt.find("There and back again.", at)) != std::string::npos; ++at) ++garbage;
    EXPECT_EQ(garbage, (2048u - 32 - 26 - 11) / 25);
    EXPECT_TRUE(sample.prompt.ends_with("What is the pass key? The pass key is"));
  }
  EXPECT_NE(task.samples[0].prompt, task.samples[1].prompt);
}

TEST(SyntheticTasks, SeedsDecide) {
  for (const std::string& name : synthetic_task_names()) {
    const auto prompt = [&](uint64_t seed) { return synthetic_task(name, {300, 1, seed}).samples[0].prompt; };
    EXPECT_EQ(prompt(1), prompt(1)) << name;
    EXPECT_NE(prompt(1), prompt(2)) << name;
  }
}

TEST(SyntheticTasks, LinesAskForOneOfThem) {
  for (const int64_t count : {1, 20, 600}) {
    const TaskSample sample = synthetic_task("lines", {count, 1, 0}).samples[0];
    const std::string name = group(sample.prompt, "in line (\\S+)\\?");
    const std::string value = group(sample.prompt, "line " + name + ": REGISTER_CONTENT is <(\\d+)>");
    ASSERT_FALSE(value.empty()) << count;
    EXPECT_EQ(sample.score("Line 12 says <" + value + ">."), 1);  // the last number counts
    EXPECT_EQ(sample.score(value + " 0"), 0);
    std::set<std::string> names;
    const std::regex line("line (\\S+): REGISTER");
    for (std::sregex_iterator m(sample.prompt.begin(), sample.prompt.end(), line), end; m != end; ++m)
      names.insert((*m)[1]);
    EXPECT_EQ(static_cast<int64_t>(names.size()), count);
  }
}

TEST(SyntheticTasks, CodesAskForOneOfThem) {
  const TaskSample sample = synthetic_task("codes", {50, 1, 0}).samples[0];
  const std::string line = group(sample.prompt, "on line (\\d+)\\?");
  const std::string code = group(sample.prompt, "line " + line + ": ([A-Z0-9]{10})\n");
  ASSERT_EQ(code.size(), 10u);
  EXPECT_EQ(sample.score("It is " + code + "."), 1);
  EXPECT_EQ(sample.score(code + " or AAAAAAAAAA"), 0);
  EXPECT_EQ(sample.score(code + "X"), 0);
}

TEST(SyntheticTasks, NeedlesLieAtTheirDepths) {
  const Task task = synthetic_task("needle", {2000, 10, 0});
  double before = 0;
  for (const TaskSample& sample : task.samples) {
    const size_t at = sample.prompt.find("Dolores Park");
    ASSERT_NE(at, std::string::npos);
    EXPECT_GT(static_cast<double>(at), before);
    before = static_cast<double>(at);
    EXPECT_EQ(sample.score("Eat a SANDWICH in Dolores Park"), 1);
    EXPECT_EQ(sample.score("a sandwich"), 0.5);
    EXPECT_EQ(sample.score("nothing"), 0);
  }
}

TEST(SyntheticTasks, WrongOnesAreNamed) {
  EXPECT_THROW(synthetic_task("haystack", {}), Error);
  EXPECT_THROW(synthetic_task("passkey", {50, 1, 0}), Error);
  EXPECT_THROW(synthetic_task("lines", {0, 1, 0}), Error);
}

class FileTasks : public ::testing::Test {
 protected:
  std::string write(const std::string& lines) {
    path_ = fs::temp_directory_path() / ("kvcc-tasks-" + std::to_string(getpid()) + ".jsonl");
    std::ofstream(path_) << lines;
    return path_;
  }
  Task read(const std::string& name, const std::string& lines, const FileTaskOptions& options = {}) {
    return file_task(name, write(lines), options);
  }
  void TearDown() override { fs::remove(path_); }
  fs::path path_;
};

TEST_F(FileTasks, LongBench) {
  const auto record = [](const std::string& set, const std::string& answers, const std::string& classes = "null") {
    return R"({"dataset":")" + set + R"(","input":"Who?","context":"CONTEXT","answers":)" + answers +
           R"(,"all_classes":)" + classes + "}\n";
  };
  Task task = read("longbench", record("hotpotqa", R"(["Ada Lovelace","Ada"])"));
  EXPECT_EQ(task.name, "longbench:hotpotqa");
  EXPECT_EQ(task.metric, "F1");
  const TaskSample& qa = task.samples[0];
  EXPECT_LT(qa.prompt.find("CONTEXT"), qa.prompt.find("Who?"));
  EXPECT_EQ(qa.max_tokens, 32);
  EXPECT_DOUBLE_EQ(qa.score("ada"), 1);  // the best of the right ones
  EXPECT_DOUBLE_EQ(qa.score("Lovelace"), 2 * 1 * 0.5 / 1.5);

  task = read("longbench", record("triviaqa", R"(["Ada"])"));
  EXPECT_DOUBLE_EQ(task.samples[0].score("\nAda\nPassage: other words"), 1);  // its first line
  task = read("longbench", record("trec", R"(["Number"])", R"(["Number","Number of years","Person"])"));
  EXPECT_DOUBLE_EQ(task.samples[0].score("Number"), 1);
  EXPECT_DOUBLE_EQ(task.samples[0].score("Number Person"), 0.5);
  EXPECT_DOUBLE_EQ(task.samples[0].score("Person"), 0);
  task = read("longbench", record("passage_count", R"(["7"])"));
  EXPECT_DOUBLE_EQ(task.samples[0].score("7 or 8"), 0.5);
  task = read("longbench", record("passage_retrieval_en", R"(["Paragraph 15"])"));
  EXPECT_DOUBLE_EQ(task.samples[0].score("Paragraph 15"), 1);
  EXPECT_DOUBLE_EQ(task.samples[0].score("Paragraph 1"), 0);
  task = read("longbench", record("lcc", R"(["return x"])"));
  EXPECT_DOUBLE_EQ(task.samples[0].score("```python\n# a comment\nreturn x\nmore"), 1);
  EXPECT_FALSE(task.samples[0].chat);
  task = read("longbench", record("gov_report", R"(["one two three four"])"));
  EXPECT_DOUBLE_EQ(task.samples[0].score("one three"), 2 * 1 * 0.5 / 1.5);
  EXPECT_THROW(read("longbench", record("dureader", R"(["x"])")), Error);
  EXPECT_THROW(read("longbench", record("lcc", R"(["x"])") + record("trec", R"(["x"])", R"(["x"])")), Error);
}

TEST_F(FileTasks, Ruler) {
  const Task task = read("ruler", R"({"input":"Text","outputs":["Blue","12345"],"answer_prefix":" The answer is"})"
                                  "\n"
                                  R"({"task":"qa_1","input":"Q","outputs":["Blue","Azure"]})"
                                  "\n");
  EXPECT_EQ(task.samples[0].prompt, "Text The answer is");
  EXPECT_DOUBLE_EQ(task.samples[0].score("blue and 12345"), 1);
  EXPECT_DOUBLE_EQ(task.samples[0].score("blue"), 0.5);
  EXPECT_DOUBLE_EQ(task.samples[1].score("AZURE"), 1);
  const auto tokens = [&](const std::string& number) {
    return read("ruler", R"({"input":"a","outputs":["b"],"max_tokens":)" + number + "}").samples[0].max_tokens;
  };
  EXPECT_EQ(tokens("7"), 7);
  for (const char* number : {"0", "-1", "2.5", "1e300", "2000000", "\"7\""})
    EXPECT_THROW(tokens(number), Error) << number;
}

TEST_F(FileTasks, Gsm8k) {
  const Task task = read("gsm8k", R"({"question":"How many?","answer":"He has 5.\n#### 1,250"})"
                                  "\n");
  EXPECT_EQ(task.samples[0].score("First 7. The answer is $1250."), 1);
  EXPECT_EQ(task.samples[0].score("1250, no, 7"), 0);
  EXPECT_EQ(task.samples[0].score("none"), 0);
  EXPECT_THROW(read("gsm8k", R"({"question":"How many?","answer":"5"})"
                             "\n"),
               Error);
}

TEST_F(FileTasks, Math500) {
  const Task task = read("math500", R"({"problem":"p","solution":"s","answer":"\\frac{1}{2}"})"
                                    "\n");
  EXPECT_EQ(task.samples[0].score("So \\boxed{0.5}"), 1);
  EXPECT_EQ(task.samples[0].score("So 0.5"), 0);
}

TEST_F(FileTasks, HumanEval) {
  const std::string record =
      R"({"task_id":"T/0","prompt":"def add(a, b):\n    \"\"\"Sum.\"\"\"\n","entry_point":"add","test":"def check(f):\n    assert f(2, 3) == 5\n"})"
      "\n";
  const Task idle = read("humaneval", record);
  EXPECT_TRUE(std::isnan(idle.samples[0].score("    return a + b\n")));  // nothing is executed unless asked
  const Task task = read("humaneval", record, {0, true});
  EXPECT_EQ(task.metric, "pass@1");
  EXPECT_EQ(task.samples[0].score("    return a + b\n\nprint(add(1, 2)"), 1);
  EXPECT_EQ(task.samples[0].score("    return a - b\n"), 0);
  EXPECT_EQ(task.samples[0].score("    return a +\n"), 0);
  EXPECT_EQ(function_body("    return 1\n\ndef other():"), "    return 1\n");
}

TEST_F(FileTasks, IfEval) {
  const Task task = read(
      "ifeval",
      R"({"key":1,"prompt":"Write.","instruction_id_list":["punctuation:no_comma","keywords:existence"],"kwargs":[{},{"keywords":["sea"]}]})"
      "\n"
      R"({"key":2,"prompt":"Write.","instruction_id_list":["language:response_language"],"kwargs":[{"language":"de"}]})"
      "\n");
  EXPECT_EQ(task.samples[0].score("The sea."), 1);
  EXPECT_EQ(task.samples[0].score("The sea, calm."), 0);
  EXPECT_TRUE(std::isnan(task.samples[1].score("Das Meer.")));

  ASSERT_EQ(task.further_metrics.size(), 3u);  // prompts loosely, instructions strictly and loosely
  const auto points = [&](const char* answer) {
    std::vector<double> flat;
    for (const Points& p : task.samples[0].further(answer)) flat.insert(flat.end(), {p.got, p.possible});
    return flat;
  };
  EXPECT_EQ(points("The sea."), (std::vector<double>{1, 1, 2, 2, 2, 2}));
  EXPECT_EQ(points("The sea, calm."), (std::vector<double>{0, 1, 1, 2, 1, 2}));
  EXPECT_EQ(points("Sure, here it is:\nThe sea."), (std::vector<double>{1, 1, 1, 2, 2, 2}));
  EXPECT_TRUE(task.samples[1].further("Das Meer.").empty());
}

TEST_F(FileTasks, FilesAreChecked) {
  EXPECT_EQ(read("gsm8k",
                 R"({"question":"a","answer":"#### 1"})"
                 "\n\n"
                 R"({"question":"b","answer":"#### 2"})",
                 {1, false})
                .samples.size(),
            1u);
  for (const char* lines : {"", "hello\n", R"({"question":"a"})", "[1]\n"}) {
    EXPECT_THROW(read("gsm8k", lines), Error) << lines;
  }
  try {
    read("gsm8k", R"({"question":"a","answer":"#### 1"})"
                  "\n{\n");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("line 2"), std::string::npos);
  }
  EXPECT_THROW(file_task("gsm8k", "/no/such/file", {}), Error);
  EXPECT_THROW(file_task("mmlu", write("{}\n"), {}), Error);
}

TEST_F(FileTasks, HostileFilesAreRefusedInBoundedMemory) {
  const auto refusal = [](const std::string& path) -> std::string {
    try {
      file_task("gsm8k", path, {});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      return error.what();
    }
    return "taken";
  };
  EXPECT_NE(refusal("/dev/zero").find("not a regular file"), std::string::npos);
  const std::string good = R"({"question":"1?","answer":"#### 1"})";
  EXPECT_NE(refusal(write(good + "\n" + std::string(100000, '[') + "\n")).find("line 2: nests"), std::string::npos);
  EXPECT_NE(refusal(write(R"({"question":"1?","question":"2?","answer":"#### 1"})")).find("appears twice"),
            std::string::npos);
  const std::string endless = write(good + "\n");
  fs::resize_file(endless, uint64_t{1} << 40);  // of which the disk holds nothing
  EXPECT_NE(refusal(endless).find("line 2: no end within 64 MiB"), std::string::npos);
  EXPECT_EQ(read("gsm8k", good).samples.size(), 1u) << "the last line may have no end";
  EXPECT_EQ(read("gsm8k", "\r\n" + good + "\r\n\n" + good).samples.size(), 2u);
}

}  // namespace
}  // namespace kvcc
