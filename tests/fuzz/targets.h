// What is fuzzed: each target takes any bytes to one parser and what reads its result. libFuzzer runs them
// (fuzzer_main.cc, `make fuzz`), and every test run gives them the kept corpus (corpus_test.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace kvcc::fuzz {

/// Reads `input`. Refusing it with Error is right, as is accepting it; everything else, other exceptions too, is a
/// find.
using Target = void (*)(std::string_view input);

/// By name, which is that of the folder in tests/corpus.
std::map<std::string, Target>& targets();

struct Registration {
  Registration(const char* name, Target target) { targets()[name] = target; }
};

/// A file, or files of a folder, that hold the input. On a file system in memory where there is one; the same for all
/// inputs of a process.
std::string put_file(const std::string& name, std::string_view bytes);
std::string scratch_folder();

}  // namespace kvcc::fuzz

#define KVCC_FUZZ(name)                                                          \
  static void fuzz_##name(std::string_view input);                               \
  static const kvcc::fuzz::Registration registration_##name(#name, fuzz_##name); \
  static void fuzz_##name(std::string_view input)
