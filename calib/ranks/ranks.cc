#include "calib/ranks/ranks.h"

#include <dlfcn.h>

#include <cstdlib>

#include "calib/ranks/c10d/group.h"
#include "formats/core/file.h"

namespace kvcc {
namespace {

double seconds(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (*end != '\0' || !(value >= 1 && value <= 1e6)) {
    throw Error(ErrorKind::usage, name, std::string("'") + text + "'", "seconds, 1 to 1000000");
  }
  return value;
}

}  // namespace

RankSettings rank_settings(const std::string& run) {
  RankSettings settings;
  settings.run = run;
  settings.join_seconds = seconds("KVCC_RANKS_JOIN", settings.join_seconds);
  settings.silence_seconds = seconds("KVCC_RANKS_TIMEOUT", settings.silence_seconds);
  settings.check_interrupt = check_interrupt;
  return settings;
}

std::unique_ptr<Ranks> join_ranks(const Launch& launch, const RankSettings& settings) {
  const std::string path = program_folder() + "/../../lib/kvcc/libkvcc_ranks.so";
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays: its threads and exceptions are in use
  if (library == nullptr) {
    throw Error(ErrorKind::failed, "rank " + std::to_string(launch.rank), ::dlerror(), "",
                "several ranks need a kvcc built with libtorch (-DKVCC_TORCH=ON)");
  }
  const auto join = reinterpret_cast<JoinC10d*>(::dlsym(library, kJoinC10d));
  if (join == nullptr) throw Error(ErrorKind::failed, path, "not of this version of kvcc");
  return std::unique_ptr<Ranks>(join(launch, settings));
}

}  // namespace kvcc
