#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/build/cxx.h"
#include "codegen/build/task.h"
#include "formats/core/hash.h"

namespace kvcc::codegen {
namespace {

std::string program_of(const Cxx& cxx) { return fmt::format("{}", fmt::join(cxx.command, " ")); }

/// What decides an object beside its text. The program's own place does not, its version and further words do.
std::string identity(const Cxx& cxx) {
  const std::vector<std::string> words(cxx.command.begin() + 1, cxx.command.end());
  return fmt::format("{}\n{}\n{}\n", cxx.version, fmt::join(words, " "), cxx.highway);
}

}  // namespace

const std::vector<std::string>& cxx_flags() {
  // No contraction: every fused operation is spelt out (DESIGN.md, "Precision of record"). Only entries are seen from
  // outside, so that a library's inline functions are never another's.
  static const std::vector<std::string> flags = {
      "-std=c++20", "-O2", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-fvisibility-inlines-hidden"};
  return flags;
}

const std::vector<std::string>& link_flags() {
  static const std::vector<std::string> flags = {"-shared", "-Wl,-z,defs"};
  return flags;
}

Built compile_object(const Cxx& cxx, const std::string& name, const std::string& unit,
                     const std::map<std::string, std::string>& headers, const std::string& cache_folder) {
  Sha256 hash;
  hash.update(fmt::format("kvcc object 1\n{}{}\n{}\n{}\n", identity(cxx), fmt::join(cxx_flags(), " "), name, unit));
  for (const auto& [path, text] : headers) hash.update(fmt::format("{} {}\n", path, sha256_hex(text)));
  Task task;
  task.compiler = cxx.version;
  task.program = program_of(cxx);
  task.key = hash.hex();
  task.extension = ".o";
  task.what = name + ".cc";
  task.sources = {headers.begin(), headers.end()};
  task.sources.emplace_back(name + ".cc", unit);
  task.command = cxx.command;
  task.command.insert(task.command.end(), cxx_flags().begin(), cxx_flags().end());
  for (const std::string& word :
       {std::string("-c"), std::string("-I."), std::string("-o"), std::string("out.o"), name + ".cc"}) {
    task.command.push_back(word);
  }
  Kept kept = run_task(task, cache_folder);
  return {std::move(kept.binary), kept.cached};
}

Built link_library(const Cxx& cxx, const std::string& file,
                   const std::vector<std::pair<std::string, std::string>>& objects, const std::string& cache_folder) {
  Sha256 hash;
  hash.update(fmt::format("kvcc library 1\n{}{}\n{}\n", identity(cxx), fmt::join(link_flags(), " "), file));
  Task task;
  task.command = cxx.command;
  task.command.insert(task.command.end(), link_flags().begin(), link_flags().end());
  for (const std::string& word : {"-Wl,-soname," + file, std::string("-o"), std::string("out.so")}) {
    task.command.push_back(word);
  }
  for (const auto& [name, bytes] : objects) {
    hash.update(fmt::format("{} {}\n", name, sha256_hex(bytes)));
    task.command.push_back(name);
  }
  task.command.emplace_back("-lhwy");
  task.compiler = cxx.version;
  task.program = program_of(cxx);
  task.key = hash.hex();
  task.extension = ".so";
  task.what = file;
  task.sources = objects;
  try {
    Kept kept = run_task(task, cache_folder);
    return {std::move(kept.binary), kept.cached};
  } catch (const Error& error) {
    if (error.found().find("lhwy") == std::string::npos) throw;
    throw NoCxx(ErrorKind::failed, program_of(cxx), "does not find libhwy: " + error.found(),
                "the library beside Highway's headers", "install it with: apt-get install libhwy-dev");
  }
}

std::vector<std::string> instruction_sets(std::string_view library, const std::string& file) {
  constexpr std::string_view mark = "kvcc instruction set N_";
  std::vector<std::string> sets;
  for (size_t at = library.find(mark); at != std::string_view::npos; at = library.find(mark, at + 1)) {
    const size_t begin = at + mark.size(), end = library.find('\0', begin);
    const std::string name(library.substr(begin, std::min<size_t>(end, begin + 32) - begin));
    if (std::find(sets.begin(), sets.end(), name) == sets.end()) sets.push_back(name);
  }
  if (sets.empty()) throw Error(ErrorKind::failed, file, "no mark of an instruction set");
  std::sort(sets.begin(), sets.end());
  return sets;
}

}  // namespace kvcc::codegen
