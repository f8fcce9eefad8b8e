// What ptxas says of each kernel with -v.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace kvcc::codegen {

struct KernelUsage {
  int registers = 0;     ///< a thread
  int spill_bytes = 0;   ///< stores plus loads, a thread
  int stack_bytes = 0;   ///< a thread, with that of functions it calls; not 0 means local memory
  int shared_bytes = 0;  ///< static, a block
};

/// By symbol. Throws Error(failed) when a kernel is named but its lines are missing, i.e. ptxas changed its wording.
std::map<std::string, KernelUsage> parse_ptxas(std::string_view log);

}  // namespace kvcc::codegen
