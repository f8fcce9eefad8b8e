#include "formats/core/process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "formats/core/error.h"
#include "formats/core/file.h"

namespace kvcc {
namespace {

TEST(Process, OutputStatusAndFolder) {
  const ProcessResult result = run_process({"sh", "-c", "pwd; echo e >&2; exit 3"}, {.folder = "/"});
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.output, "/\ne\n");
  EXPECT_EQ(run_process({"sh", "-c", "head -c 1000000 /dev/zero"}).output.size(), 1000000u);
  EXPECT_EQ(run_process({"printf", "%s", "a b; $HOME *"}).output, "a b; $HOME *");
  EXPECT_EQ(run_process({"cat"}).output, "") << "no standard input";
}

TEST(Process, KilledAndMissingOnesAreTold) {
  const ProcessResult killed = run_process({"sh", "-c", "kill -9 $$"});
  EXPECT_EQ(killed.status, 137);
  EXPECT_EQ(killed.signal, 9);
  const ProcessResult none = run_process({"/no/such/program"});
  EXPECT_TRUE(none.missing);
  EXPECT_EQ(none.status, 127);
  EXPECT_EQ(none.output, "No such file or directory");
}

TEST(Process, StreamsGoWhereTheyShould) {
  const std::string file = (std::filesystem::temp_directory_path() / ("kvcc é " + std::to_string(getpid()))).string();
  const auto both = {std::string("sh"), std::string("-c"), std::string("echo out; echo err >&2")};
  EXPECT_EQ(run_process(both, {.output_file = file}).output, "err\n");
  EXPECT_EQ(read_text_file(file), "out\n");
  std::filesystem::remove(file);
  EXPECT_EQ(run_process(both, {.standard_output = Stream::discard}).output, "err\n");
  EXPECT_EQ(run_process(both, {.standard_error = Stream::discard}).output, "out\n");
  EXPECT_EQ(run_process(both, {.standard_error = Stream::discard, .keep = 2}).output, "t\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_process(both, {.standard_error = Stream::inherit}).output, "out\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "err\n");
}

/// In a process of its own group: starts a program that counts interrupts, and is interrupted as a terminal does it,
/// all processes of the group at once.
TEST(Process, AChildOfItsOwnGroupIsInterruptedOnce) {
  EXPECT_EXIT(
      {
        setpgid(0, 0);
        install_interrupt_handlers();
        std::thread([] {
          usleep(500000);
          ::kill(0, SIGINT);
        }).detach();
        const ProcessResult result = run_process(
            {"bash", "-c", "n=0; trap 'n=$((n + 1))' INT TERM; for i in {1..15}; do sleep 0.1; done; echo $n; exit 7"},
            {.own_group = true});
        try {
          check_interrupt();
        } catch (const Interrupted&) {
          std::_Exit(result.status == 7 && result.output == "1\n" ? 42 : 1);
        }
        std::_Exit(2);
      },
      testing::ExitedWithCode(42), "");
}

TEST(Process, AChildThatTheInterruptKilledIsAnInterrupt) {
  EXPECT_EXIT(
      {
        setpgid(0, 0);
        install_interrupt_handlers();
        std::thread([] {
          usleep(300000);
          ::kill(0, SIGTERM);
        }).detach();
        try {
          run_process({"sleep", "20"});
        } catch (const Interrupted& interrupted) {
          std::_Exit(interrupted.exit_code());
        }
      },
      testing::ExitedWithCode(143), "");
}

}  // namespace
}  // namespace kvcc
