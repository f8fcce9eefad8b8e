// memory_probe ROOT: bytes of available_memory() with /proc and /sys below ROOT ("" for the real ones).
#include <cstdio>

#include "calib/model/memory.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::printf("%llu\n", static_cast<unsigned long long>(kvcc::available_memory(argv[1])));
}
