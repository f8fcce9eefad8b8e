// Runs one verb of kvcc as a child process, for programs that chain verbs.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "formats/core/error.h"
#include "formats/core/file.h"

extern char** environ;

namespace kvcc::cli {

struct StageResult {
  int exit_code = 0;
  std::string output;  ///< all of the child's stdout; its stderr goes to ours
};

/// Runs libexec/kvcc/kvcc-VERB with `arguments` and waits. An interrupt is passed on to the child, which saves what is
/// done, and is thrown again once the child has ended. Throws Error(failed) when the program can't be started.
inline StageResult run_stage(const std::string& verb, const std::vector<std::string>& arguments) {
  const std::string program = program_folder() + "/kvcc-" + verb;
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorKind::failed, "pipe", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int failed = posix_spawn(&child, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (failed != 0) {
    close(ends[0]);
    throw Error(ErrorKind::failed, program, std::strerror(failed), "the program of the verb '" + verb + "'",
                "it is not there when kvcc was built without libtorch");
  }

  StageResult result;
  bool told = false;
  char buffer[65536];
  for (;;) {
    pollfd waiting{ends[0], POLLIN, 0};
    const int ready = poll(&waiting, 1, 200);
    if (ready > 0) {
      const ssize_t got = read(ends[0], buffer, sizeof buffer);
      if (got > 0) result.output.append(buffer, static_cast<size_t>(got));
      if (got == 0) break;
    }
    if (told) continue;
    try {
      check_interrupt();
    } catch (const Interrupted&) {
      kill(child, SIGTERM);
      told = true;
    }
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  check_interrupt();
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace kvcc::cli
