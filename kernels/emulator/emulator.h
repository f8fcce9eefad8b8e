// Runs device text on a CPU: one fiber per CUDA thread, blocks one after another. A test tool, not a way to serve: it
// looks for the errors that a GPU shows rarely. Host only; the calling thread does everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "formats/layout/launch.h"

namespace kvcc::emulator {

/// What one thread of the launch does, with the launch's parameters.
using Entry = void (*)(const void* params);

enum class Order { sequential, reversed, random };

struct Options {
  Order order = Order::sequential;  ///< of blocks, and of the fibers that can run
  uint32_t seed = 1;                ///< of random orders
  bool async_early = false;         ///< cp.async copies when issued (finds a missing barrier before a buffer is used
                                    ///< again), else as late as allowed (finds a missing wait)
};

/// A launch that no GPU may be given: deadlock, a barrier that not all threads reach, threads that meet in different
/// collective operations or outside their mask, an asynchronous copy left pending, misaligned shared addresses of one.
/// what() says kernel, block, threads, and file:line of each party.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs entry(params) for every thread of the grid. `threads` a block, a multiple of 32 and at most 1024;
/// `shared_bytes` of shared memory a block, every byte 0xff (NaN) when a block begins. Under ThreadSanitizer each CUDA
/// thread is one of its threads, and barriers are all that orders them (at most about 8,000 threads a launch). Throws
/// Fault.
void launch(Entry entry, const void* params, KvccGrid grid, int threads, size_t shared_bytes,
            const Options& options = {}, const std::string& name = "kernel");

}  // namespace kvcc::emulator
