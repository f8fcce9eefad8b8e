#include "formats/cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>

#include "formats/cli/verbs.h"
#include "formats/core/error.h"

namespace kvcc::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Outcome {
  int code = -1;
  std::string out, err;
};

Outcome run_program(std::vector<std::string> arguments, unsigned common,
                    const std::function<int(const Common&)>& body) {
  arguments.insert(arguments.begin(), "kvcc-test");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  std::string file;
  outcome.code = run(
      static_cast<int>(arguments.size()), argv.data(), "test", "A test", common,
      [&](CLI::App& app) { app.add_option("--file", file, "A file"); }, body);
  spdlog::default_logger()->flush();
  std::fflush(stdout);
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

constexpr unsigned kAll = kJson | kResume | kForce | kThreads | kDevice | kDryRun | kCacheDir;

TEST(Program, ExitCodesFollowTheException) {
  const auto code = [](const std::function<void()>& failing) {
    return run_program({}, kAll,
                       [&](const Common&) {
                         failing();
                         return 0;
                       })
        .code;
  };
  EXPECT_EQ(code([] {}), 0);
  for (const auto kind : {ErrorKind::failed, ErrorKind::usage, ErrorKind::bad_input, ErrorKind::resource,
                          ErrorKind::limit, ErrorKind::differ}) {
    EXPECT_EQ(code([kind] { throw Error(kind, "x", "y"); }), static_cast<int>(kind));
  }
  EXPECT_EQ(code([] { throw std::bad_alloc(); }), 4);
  EXPECT_EQ(code([] { throw std::runtime_error("x"); }), 1);
  EXPECT_EQ(code([] { throw std::system_error(std::make_error_code(std::errc::no_space_on_device)); }), 4);
  EXPECT_EQ(code([] { throw Interrupted(2); }), 130);
  EXPECT_EQ(code([] { throw Interrupted(15); }), 143);
}

TEST(Program, CliParserCodesBecomeTwo) {
  const auto body = [](const Common&) { return 0; };
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--nonsense"},
                                                    {"extra"},
                                                    {"--threads", "many"},
                                                    {"--threads", "-3"},
                                                    {"--device", "tpu"},
                                                    {"--file"}}) {
    const Outcome outcome = run_program(arguments, kAll, body);
    EXPECT_EQ(outcome.code, 2) << arguments[0];
    EXPECT_THAT(outcome.err, HasSubstr("kvcc test: error: ")) << arguments[0];
  }
  EXPECT_THAT(run_program({"--fiel", "x"}, kAll, body).err, HasSubstr("did you mean '--file'?"));
  EXPECT_EQ(run_program({"--help"}, kAll, body).code, 0);
  EXPECT_THAT(run_program({"--help"}, kAll, body).out, AllOf(HasSubstr("--threads"), HasSubstr("--cache-dir")));
  EXPECT_EQ(run_program({"--json"}, 0, body).code, 2) << "a verb has only the common options that it takes";
}

TEST(Program, CommonOptionsAreResolved) {
  setenv("XDG_CACHE_HOME", "/x", 1);
  run_program({}, kAll, [](const Common& common) {
    EXPECT_GE(common.threads, 1);
    EXPECT_EQ(common.cache_dir, "/x/kvcc");
    EXPECT_EQ(common.device, "cpu");
    return 0;
  });
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/h", 1);
  run_program({"--threads", "3", "-vv", "--resume"}, kAll, [](const Common& common) {
    EXPECT_EQ(common.threads, 3);
    EXPECT_EQ(common.verbosity, 2);
    EXPECT_TRUE(common.resume);
    EXPECT_EQ(common.cache_dir, "/h/.cache/kvcc");
    return 0;
  });
  run_program({"--cache-dir", "кэш"}, kAll, [](const Common& common) {
    EXPECT_EQ(common.cache_dir, "кэш");
    return 0;
  });
  unsetenv("XDG_CACHE_HOME");
}

TEST(Program, InterruptPrintsTheCommandThatResumes) {
  const auto interrupted = [](const Common&) -> int { throw Interrupted(2); };
  EXPECT_THAT(run_program({"--file", "it's a é.txt", "--force"}, kAll, interrupted).err,
              HasSubstr(R"(kvcc test --file 'it'\''s a é.txt' --resume)"));
  EXPECT_THAT(run_program({"--resume"}, kAll, interrupted).err, HasSubstr("to go on: kvcc test --resume)"));
}

TEST(Program, F53JsonErrorsAreOneDocumentOnStdout) {
  const Outcome outcome = run_program({"--json"}, kAll, [](const Common&) -> int {
    throw Error(ErrorKind::bad_input, "file \xff", "broken", "sound", "mend it");
  });
  const auto document = nlohmann::ordered_json::parse(outcome.out);
  EXPECT_EQ(document.begin().key(), "schema_version");
  EXPECT_EQ(document["error"]["code"], 3);
  EXPECT_THAT(document["error"]["message"].get<std::string>(), AllOf(StartsWith("file "), HasSubstr("wanted sound")));
  EXPECT_EQ(document["error"]["hint"], "mend it");
  EXPECT_THAT(outcome.err, HasSubstr("(mend it)"));
}

TEST(Table, ColumnsAreCountedInLetters) {
  EXPECT_EQ(table({{"имя", "n"}, {"a", "12"}, {"длинное", "1"}}),
            "имя       n\n"
            "-------  --\n"
            "a        12\n"
            "длинное   1\n");
  EXPECT_EQ(table({}), "");
  EXPECT_EQ(table({{"a", "b"}}), "a  b\n");
}

TEST(Progress, PlainLinesOffATerminalAndNothingWhenQuiet) {
  ::testing::internal::CaptureStderr();
  {
    Progress quiet("quiet", 10, true);
    Progress noisy("noisy", 4000, false);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) noisy.advance();
      });
    }
    for (std::thread& thread : threads) thread.join();
    quiet.set(10);
  }
  // Done in less than ten seconds: not one line.
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Verbs, AreUniqueAndExplained) {
  std::vector<std::string> names = verb_names();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  for (const Verb& verb : verbs()) EXPECT_GT(std::string(verb.meaning).size(), 10u);
  EXPECT_THROW(completion_script("fish"), Error);
}

}  // namespace
}  // namespace kvcc::cli
