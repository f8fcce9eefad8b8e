// ptx_run SOURCE.so SYMBOL PTX.so… -- NAME=VALUE…: one made-up case of a family run on the emulator, by the unit's
// source and by each translation of its PTX. Prints "OUTPUT BYTES WRITTEN" a line for each array that the launches
// write, and fails, naming the first byte, where a translation's bytes are not the source's. Names (and defaults):
// family, layout=mma-1, dim=64, bits=3, axis, sparse, value_bits, value_axis, value_sparse, rope=none, rotary=0,
// group=1, dtype=f16, heads=2, lengths=131 (comma), sink=0, residual=0, splits=1, window=0, calls=0 (pack: tokens a
// call), threshold (of outliers; channel axis), tail=2, weights=made (or flat), order, trace=FILE (of the last library,
// translated with --trace). Families that read codes also print "TENSOR_records COUNT 0".
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/kernels/ptx/drivers/cases.h"

// As device memory is: pages are 128-byte aligned by contract, and the trace counts sectors.
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = std::aligned_alloc(128, (bytes + 127) / 128 * 128);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

using namespace kvcc;
using namespace kvcc::test;

/// Bytes of words that hold something: neither what they began with nor 0.
size_t written(const std::vector<uint8_t>& bytes) {
  size_t count = 0;
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    uint32_t word;
    std::memcpy(&word, bytes.data() + i, 4);
    count += word != 0 && word != float_bits(kUnwritten) ? 4 : 0;
  }
  return count;
}

bool holds_nan(const std::vector<uint8_t>& bytes) {
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    float x;
    std::memcpy(&x, bytes.data() + i, 4);
    if (x != x) return true;
  }
  return false;
}

int main_or_throw(int argc, char** argv) {
  char** const rest = std::find(argv + 3, argv + argc, std::string("--"));
  const Options options(rest == argv + argc ? rest : rest + 1, argv + argc);
  const Library source(argv[1]);
  Run wanted{options, source, source, argv[2], {}};
  run_case(wanted);
  for (char** path = argv + 3; path != rest; ++path) {
    const Library library(*path);
    Run found{options, library, source, argv[2], {}};
    run_case(found);
    for (size_t i = 0; i < wanted.outputs.size(); ++i) {
      const auto& [name, bytes] = wanted.outputs[i];
      const auto& other = found.outputs.at(i).second;
      const auto at = std::mismatch(bytes.begin(), bytes.end(), other.begin(), other.end());
      if (at.first == bytes.end() && at.second == other.end()) continue;
      size_t words = 0;
      for (size_t k = 0; k + 4 <= bytes.size(); k += 4) words += std::memcmp(&bytes[k], &other[k], 4) != 0;
      const size_t first = (at.first - bytes.begin()) / 4 * 4;
      float was = 0, is = 0;
      std::memcpy(&was, &bytes[first], 4);
      std::memcpy(&is, &other[first], 4);
      std::fprintf(stderr,
                   "%s: %s differs from the source's at byte %zu of %zu (%zu words; as floats %.9g, source %.9g)\n",
                   *path, name.c_str(), first, bytes.size(), words, is, was);
      return 1;
    }
    const std::string trace = options.text("trace", "");
    if (!trace.empty() && path + 1 == rest) library.at<void(const char*)>("kvcc_trace_write")(trace.c_str());
  }
  for (const auto& [name, bytes] : wanted.outputs) {
    // NaN is no result, and its bits need not agree.
    if ((name == "out" || name == "scores") && holds_nan(bytes)) throw std::runtime_error(name + " holds NaN");
    std::printf("%s %zu %zu\n", name.c_str(), bytes.size(), written(bytes));
  }
  for (const auto& [name, count] : wanted.counts) std::printf("%s %zu 0\n", name.c_str(), count);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("ptx_run SOURCE.so SYMBOL PTX.so… -- NAME=VALUE…\n", stderr);
    return 2;
  }
  try {
    return main_or_throw(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ptx_run: %s\n", error.what());
    return 1;
  }
}
