#include "formats/core/error.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>

namespace kvcc {
namespace {

std::string message(const std::string& place, const std::string& found, const std::string& wanted,
                    const std::string& hint) {
  std::string text = place;
  const auto append = [&text](const char* separator, const char* before, const std::string& part, const char* after) {
    if (part.empty()) return;
    if (!text.empty()) text.append(separator);
    text.append(before).append(part).append(after);
  };
  append(": ", "", found, "");
  append("; ", "wanted ", wanted, "");
  append(" ", "(", hint, ")");
  std::replace(text.begin(), text.end(), '\0', ' ');  // one in a file's name or text would cut what() short
  return text;
}

volatile std::sig_atomic_t pending_signal = 0;
std::atomic<int> forward_to{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

extern "C" void on_stop_signal(int signal) {
  if (const int group = forward_to; group > 0) ::kill(-group, signal);
  if (pending_signal != 0) _exit(128 + signal);
  pending_signal = signal;
}

}  // namespace

Error::Error(ErrorKind kind, std::string place, std::string found, std::string wanted, std::string hint)
    : std::runtime_error(message(place, found, wanted, hint)),
      kind_(kind),
      place_(std::move(place)),
      found_(std::move(found)),
      wanted_(std::move(wanted)),
      hint_(std::move(hint)) {}

void install_interrupt_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  // A file-size limit must reach us as EFBIG from write(), to be reported like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
}

void forward_interrupts(int group) {
  // Blocked meanwhile, so that a signal is passed on once: here or by the handler.
  sigset_t stops, old;
  sigfillset(&stops);
  sigprocmask(SIG_BLOCK, &stops, &old);
  forward_to = group;
  if (group > 0 && pending_signal != 0) ::kill(-group, pending_signal);
  sigprocmask(SIG_SETMASK, &old, nullptr);
}

void check_interrupt() {
  if (pending_signal != 0) throw Interrupted(static_cast<int>(pending_signal));
}

}  // namespace kvcc
