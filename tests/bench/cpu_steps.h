// Counts the instructions that a function executes, one by one, where no performance counters are to be had (virtual
// machines) and no emulator knows the instruction set. Linux on x86-64.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

namespace kvcc::bench {

/// Executions by address of the instruction, relative to the program's first byte as objdump shows it; those of shared
/// libraries are left out. Runs `work` in a forked child, without other threads. Throws Error(failed) when the system
/// does not let processes be traced or the child fails.
std::map<uint64_t, uint64_t> count_steps(const std::function<void()>& work);

}  // namespace kvcc::bench
