// The one exception type of the libraries. Libraries throw; only programs print and choose the exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace kvcc {

/// Why something failed. The value is the exit code of the program (DESIGN.md, "Failure").
enum class ErrorKind : int {
  failed = 1,     ///< failed while running, and none of the below
  usage = 2,      ///< the command line is wrong
  bad_input = 3,  ///< an input file is missing or bad
  resource = 4,   ///< memory or disk ran out
  limit = 5,      ///< a limit stated by the user was not met
  differ = 6,     ///< compared things differ
};

/// An error with its place (file, tensor, layer, head), what was found there, what was wanted, and what cures it.
/// what() is "PLACE: FOUND; wanted WANTED (HINT)" with empty parts left out.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string place, std::string found, std::string wanted = "", std::string hint = "");

  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }
  const std::string& place() const { return place_; }
  const std::string& found() const { return found_; }
  const std::string& wanted() const { return wanted_; }
  const std::string& hint() const { return hint_; }

 private:
  ErrorKind kind_;
  std::string place_, found_, wanted_, hint_;
};

/// Shorthand for the commonest kind.
inline Error bad_input(std::string place, std::string found, std::string wanted = "", std::string hint = "") {
  return Error(ErrorKind::bad_input, std::move(place), std::move(found), std::move(wanted), std::move(hint));
}

/// A signal asked the program to stop. Thrown by check_interrupt() between units of work, so that what is done is kept.
class Interrupted : public std::runtime_error {
 public:
  explicit Interrupted(int signal) : std::runtime_error("interrupted"), signal_(signal) {}
  int exit_code() const { return 128 + signal_; }  ///< 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP

 private:
  int signal_;
};

/// Makes SIGINT, SIGTERM and (unless ignored, as under nohup) SIGHUP set a flag; a second one ends the process at once.
void install_interrupt_handlers();
/// From now on these signals are passed on to the process group `group` too; 0: no longer. A signal that came before is
/// passed on now.
void forward_interrupts(int group);
/// Throws Interrupted when the flag is set. Call it between shards, layers and windows.
void check_interrupt();

}  // namespace kvcc
