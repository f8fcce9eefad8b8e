// libFuzzer's entry: runs the target that KVCC_FUZZ_TARGET names.
#include <cstdio>
#include <cstdlib>

#include "formats/core/error.h"
#include "tests/formats/store/hdf5_repair.h"
#include "tests/fuzz/targets.h"

namespace {

/// libhdf5 1.10.8 itself does not free everything when it refuses a damaged file.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

kvcc::fuzz::Target target = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed);

/// Without a target the names of all are printed.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const name = std::getenv("KVCC_FUZZ_TARGET");
  const auto& all = kvcc::fuzz::targets();
  if (const auto found = all.find(name == nullptr ? "" : name); found != all.end()) {
    target = found->second;
    return 0;
  }
  for (const auto& entry : all) std::puts(entry.first.c_str());
  std::fflush(stdout);
  std::_Exit(name == nullptr ? 0 : 2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    target({reinterpret_cast<const char*>(data), size});
  } catch (const kvcc::Error&) {
    // Refused, as it should be.
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, most);
  std::string image(reinterpret_cast<const char*>(data), size);
  if (seed % 4 == 0 || !image.starts_with("\x89HDF")) return size;
  kvcc::made::repair_hdf5(image);
  image.copy(reinterpret_cast<char*>(data), size);
  return size;
}
