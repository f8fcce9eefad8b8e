#include "calib/eval/mode.h"

#include <limits>

#include "formats/core/error.h"

namespace kvcc {

const char* mode_name(EvalMode mode) {
  switch (mode) {
    case EvalMode::full:
      return "full";
    case EvalMode::pseudo_decode:
      return "pseudo-decode";
    case EvalMode::prefill_exact:
      return "prefill-exact";
  }
  throw Error(ErrorKind::failed, "mode", "a value without a name");
}

EvalMode parse_mode(std::string_view name) {
  for (const EvalMode mode : {EvalMode::full, EvalMode::pseudo_decode, EvalMode::prefill_exact}) {
    if (name == mode_name(mode)) return mode;
  }
  throw Error(ErrorKind::usage, "mode " + std::string(name), "no such mode", "full, pseudo-decode or prefill-exact");
}

int64_t ModeOptions::cached(int64_t t, int64_t tokens) const {
  switch (mode) {
    case EvalMode::full:
      return tokens;
    case EvalMode::pseudo_decode:
      return t / block * block;
    case EvalMode::prefill_exact:
      return t < prompt ? 0 : t + 1;
  }
  throw Error(ErrorKind::failed, "mode", "a value without a meaning");
}

int64_t ModeOptions::live(int64_t t) const {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  switch (mode) {
    case EvalMode::full:
      return kNone;
    case EvalMode::pseudo_decode:
      return t / block * block;
    case EvalMode::prefill_exact:
      return t < prompt ? 0 : kNone;
  }
  throw Error(ErrorKind::failed, "mode", "a value without a meaning");
}

}  // namespace kvcc
