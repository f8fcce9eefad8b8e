// ptx_probe UNIT.so SYMBOL THREADS OUT_WORDS [TRACE.json] < input words (hex, whitespace): launches one block of an
// entry whose parameter is {in, out}, prints the words of `out`, which begin as 0, in hex.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/emulator/emulator.h"

namespace {

struct Params {
  const uint32_t* in;
  uint32_t* out;
};

template <class T>
T* find(void* library, const std::string& symbol) {
  void* const found = dlsym(library, symbol.c_str());
  if (found == nullptr) throw std::runtime_error("no symbol " + symbol);
  return reinterpret_cast<T*>(found);
}

void run(int argc, char** argv) {
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  // Aligned as device memory is.
  alignas(256) static uint32_t in[1 << 16], out[1 << 16];
  size_t count = 0;
  for (unsigned word; count < std::size(in) && std::scanf("%x", &word) == 1;) in[count++] = word;
  const size_t words = std::strtoul(argv[4], nullptr, 10);
  if (words > std::size(out)) throw std::runtime_error("too many words");
  const Params params{in, out};
  kvcc::emulator::launch(find<void(const void*)>(library, argv[2]), &params, {1, 1, 1}, std::atoi(argv[3]),
                         *find<const uint32_t>(library, std::string(argv[2]) + "_shared_bytes"), {}, argv[2]);
  for (size_t i = 0; i < words; ++i) std::printf("%08x\n", out[i]);
  if (argc > 5) find<void(const char*)>(library, "kvcc_trace_write")(argv[5]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fputs("ptx_probe UNIT.so SYMBOL THREADS OUT_WORDS [TRACE.json]\n", stderr);
    return 2;
  }
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ptx_probe: %s\n", error.what());
    return 1;
  }
}
