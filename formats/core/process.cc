#include "formats/core/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "formats/core/error.h"

extern char** environ;

namespace kvcc {
namespace {

/// What posix_spawn is told; freed at the end.
struct Actions {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  Actions() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
  }
  ~Actions() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  Actions(const Actions&) = delete;

  void redirect(Stream stream, int descriptor, int pipe_end) {
    if (stream == Stream::capture) posix_spawn_file_actions_adddup2(&files, pipe_end, descriptor);
    if (stream == Stream::discard) posix_spawn_file_actions_addopen(&files, descriptor, "/dev/null", O_WRONLY, 0);
  }
};

void read_all(int descriptor, size_t keep, std::string& output) {
  char buffer[65536];
  for (;;) {
    const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    output.append(buffer, static_cast<size_t>(count));
    if (output.size() / 2 > keep) output.erase(0, output.size() - keep);
  }
  if (output.size() > keep) output.erase(0, output.size() - keep);
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& argv, const ProcessOptions& options) {
  const auto refuse = [&](int error) { throw Error(ErrorKind::failed, argv.at(0), std::strerror(error)); };
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) refuse(errno);
  pid_t pid = 0;
  int error = 0;
  {
    Actions actions;
    posix_spawn_file_actions_addopen(&actions.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (options.output_file.empty()) {
      actions.redirect(options.standard_output, STDOUT_FILENO, ends[1]);
    } else {
      posix_spawn_file_actions_addopen(&actions.files, STDOUT_FILENO, options.output_file.c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0666);
    }
    actions.redirect(options.standard_error, STDERR_FILENO, ends[1]);
    if (!options.folder.empty()) posix_spawn_file_actions_addchdir_np(&actions.files, options.folder.c_str());
    if (options.own_group) {
      posix_spawnattr_setflags(&actions.attributes, POSIX_SPAWN_SETPGROUP);
      posix_spawnattr_setpgroup(&actions.attributes, 0);
    }
    error = ::posix_spawnp(&pid, arguments[0], &actions.files, &actions.attributes, arguments.data(), environ);
  }
  ::close(ends[1]);
  ProcessResult result;
  if (error != 0) {
    ::close(ends[0]);
    if (error != ENOENT && error != EACCES) refuse(error);
    result.status = 127;
    result.missing = true;
    result.output = std::strerror(error);
    return result;
  }
  if (options.own_group) forward_interrupts(pid);
  read_all(ends[0], options.keep, result.output);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (options.own_group) forward_interrupts(0);
  result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + result.signal;
  if (result.signal != 0) check_interrupt();
  return result;
}

}  // namespace kvcc
