#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <utility>

#include "formats/cli/program.h"

namespace kvcc::cli {
namespace {

using Clock = std::chrono::steady_clock;

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

int terminal_columns() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

struct Progress::State {
  std::string label, more;
  uint64_t total = 0, done = 0;
  bool quiet = false, terminal = false, shown = false;
  Clock::time_point start = Clock::now(), last_shown = start;
  std::mutex mutex;

  std::string status() const {
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::string text = total > 0 ? fmt::format("{}/{} {:3.0f}%", done, total,
                                               100.0 * static_cast<double>(done) / static_cast<double>(total))
                                 : fmt::format("{}", done);
    text += fmt::format("  {} elapsed", duration_text(seconds));
    if (done > 0 && done < total) {
      text += fmt::format(", {} left",
                          duration_text(seconds * static_cast<double>(total - done) / static_cast<double>(done)));
    }
    if (!more.empty()) text += ", " + more;
    return text;
  }

  void show() {
    last_shown = Clock::now();
    shown = true;
    std::string text = status();
    if (!terminal) {
      fmt::print(stderr, "{}: {}\n", label, text);
      return;
    }
    // Narrow terminals lose the bar first, then what is said last: a line that wraps would stay.
    const int columns = terminal_columns();
    while (static_cast<int>(label.size() + text.size()) + 1 >= columns && text.find(", ") != std::string::npos) {
      text.erase(text.rfind(", "));
    }
    const int room = columns - static_cast<int>(label.size() + text.size()) - 6;
    std::string bar;
    if (room >= 8 && total > 0) {
      const int width = std::min(room, 40);
      const int filled = static_cast<int>(static_cast<double>(width) * static_cast<double>(std::min(done, total)) /
                                          static_cast<double>(total));
      bar = fmt::format(" [{}{}]", std::string(static_cast<size_t>(filled), '='),
                        std::string(static_cast<size_t>(width - filled), ' '));
    }
    fmt::print(stderr, "\r\033[K{}{} {}", label, bar, text);
    std::fflush(stderr);
  }

  /// The caller holds the mutex.
  void refresh() {
    if (quiet) return;
    const double waited = std::chrono::duration<double>(Clock::now() - last_shown).count();
    if (waited >= (terminal ? 0.1 : 10.0) || (terminal && !shown)) show();
  }
};

Progress::Progress(std::string label, uint64_t total, bool quiet) : state_(new State) {
  state_->label = std::move(label);
  state_->total = total;
  state_->quiet = quiet;
  state_->terminal = isatty(STDERR_FILENO) == 1;
}

Progress::~Progress() {
  if (!state_->quiet && state_->shown) {
    state_->show();
    if (state_->terminal) fmt::print(stderr, "\n");
  }
  delete state_;
}

void Progress::advance(uint64_t by) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->done += by;
  state_->refresh();
}

void Progress::tell(std::string more) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->more = std::move(more);
}

void Progress::set(uint64_t done) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->done = done;
  state_->refresh();
}

}  // namespace kvcc::cli
