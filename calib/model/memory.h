// How much memory there is, and refusing to start what would not fit.
#pragma once

#include <cstdint>
#include <string>

namespace kvcc {

/// Bytes this process may have resident in all, what it has now included: the least of what the system has available
/// (MemAvailable), the limits of its control groups (v2 and v1, of every level up) and RLIMIT_AS. `root` is put before
/// the paths under /proc and /sys, for tests.
uint64_t available_memory(const std::string& root = "");

/// Throws Error(resource) at `place` with both figures when `needed` bytes are above `limit`. `option`: the option that
/// gave the limit, "" for what the machine has.
void require_memory(const std::string& place, uint64_t needed, uint64_t limit, const std::string& option,
                    const std::string& hint);

/// Bytes that `--max-memory TEXT` asks for; 0 for "": what the machine has. Throws Error(usage) for none at all and for
/// what is no number of bytes.
uint64_t memory_option(const std::string& text);

/// From now on large blocks that are freed stay with the process and are used again. A pass over a window allocates and
/// frees the same few sizes thousands of times, and to have the system clear each anew was a fifth of its time.
void reuse_freed_memory();

/// From now on large blocks that are freed go back to the system at once, which then has to clear what comes next:
/// slower by a tenth or more, but nothing is lost to holes between blocks that stay. Else glibc decides by the blocks
/// that it happens to see freed first: 5 or 7 GiB for one and the same run.
void return_freed_memory();

}  // namespace kvcc
