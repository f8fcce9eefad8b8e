#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>
#include <sstream>

#include "codegen/build/cxx.h"
#include "codegen/build/programs.h"
#include "formats/core/process.h"

namespace kvcc::codegen {
namespace {

constexpr const char* kInstall = "install them with: apt-get install g++ libhwy-dev, or use --emit-only";

/// Version of Highway, from the macros that its header defines.
std::string highway_of(const std::vector<std::string>& command) {
  std::vector<std::string> argv = command;
  for (const char* word : {"-std=c++20", "-E", "-dM", "-x", "c++", "-include", "hwy/highway.h", "/dev/null"}) {
    argv.emplace_back(word);
  }
  const ProcessResult result = run_process(argv);
  const std::string place = fmt::format("{}", fmt::join(command, " "));
  if (result.status != 0) {
    const bool absent = result.output.find("hwy/highway.h") != std::string::npos;
    throw NoCxx(ErrorKind::failed, place, absent ? "does not find hwy/highway.h" : first_line(result.output),
                absent ? "Highway's headers in its include path" : "a compiler of C++20", kInstall);
  }
  std::string version;
  for (const char* part : {"MAJOR", "MINOR", "PATCH"}) {
    std::smatch match;
    if (!std::regex_search(result.output, match, std::regex(fmt::format("#define HWY_{} (\\d+)", part)))) {
      throw NoCxx(ErrorKind::failed, place + ", hwy/highway.h", fmt::format("no HWY_{}", part), "Highway 1.0 or newer",
                  kInstall);
    }
    version += (version.empty() ? "" : ".") + match[1].str();
  }
  return version;
}

}  // namespace

std::vector<std::vector<std::string>> cxx_places() {
  std::vector<std::string> words;
  std::istringstream set(environment("CXX"));
  for (std::string word; set >> word;) words.push_back(word);
  if (!words.empty() && words[0].find('/') != std::string::npos) return {words};
  std::vector<std::vector<std::string>> places;
  const std::vector<std::string> names = words.empty() ? std::vector<std::string>{"c++", "g++", "clang++"} : words;
  for (size_t i = 0; i < (words.empty() ? names.size() : 1); ++i) {
    for (const std::string& folder : path_folders()) {
      places.push_back({folder + "/" + names[i]});
      if (!words.empty()) places.back().insert(places.back().end(), words.begin() + 1, words.end());
    }
  }
  return places;
}

Cxx find_cxx(const std::vector<std::vector<std::string>>& places) {
  const auto found =
      std::find_if(places.begin(), places.end(), [](const auto& one) { return !one.empty() && runs(one[0]); });
  if (found == places.end()) {
    const std::string set = environment("CXX");
    throw NoCxx(ErrorKind::failed, "C++ compiler",
                set.empty() ? "no c++, g++ or clang++ in PATH" : fmt::format("{}, which CXX names, is no program", set),
                "one that compiles C++20", kInstall);
  }
  Cxx cxx{*found, "", ""};
  std::vector<std::string> argv = cxx.command;
  argv.emplace_back("--version");
  cxx.version = first_line(checked_output(argv));
  cxx.highway = highway_of(cxx.command);
  return cxx;
}

}  // namespace kvcc::codegen
