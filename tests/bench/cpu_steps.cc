#include "tests/bench/cpu_steps.h"

#include "formats/core/error.h"

#if defined(__linux__) && defined(__x86_64__)
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" const char __executable_start, etext;  // of the linker

namespace kvcc::bench {

std::map<uint64_t, uint64_t> count_steps(const std::function<void()>& work) {
  const Error refused(ErrorKind::failed, "count_steps", "the child can't be traced", "ptrace");
  const pid_t child = fork();
  if (child < 0) throw refused;
  if (child == 0) {
    work();  // dispatch has chosen and pages are there before the counting begins
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(1);
    raise(SIGSTOP);
    work();
    raise(SIGSTOP);
    _exit(0);
  }
  const auto start = reinterpret_cast<uint64_t>(&__executable_start), end = reinterpret_cast<uint64_t>(&etext);
  std::map<uint64_t, uint64_t> counts;
  int status = 0, stops = 0;
  while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    if (WSTOPSIG(status) == SIGSTOP) ++stops;
    user_regs_struct registers{};
    if (ptrace(PTRACE_GETREGS, child, nullptr, &registers) != 0) break;
    if (registers.rip >= start && registers.rip < end) ++counts[registers.rip - start];
    if (ptrace(stops < 2 ? PTRACE_SINGLESTEP : PTRACE_CONT, child, nullptr, nullptr) != 0) break;
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || stops != 2) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    throw refused;
  }
  return counts;
}

}  // namespace kvcc::bench

#else

namespace kvcc::bench {
std::map<uint64_t, uint64_t> count_steps(const std::function<void()>&) {
  throw Error(ErrorKind::failed, "count_steps", "another system", "Linux on x86-64");
}
}  // namespace kvcc::bench
#endif
