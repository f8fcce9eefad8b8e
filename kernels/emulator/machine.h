// The emulated multiprocessor: the threads of one block, their warps and barriers, and who runs next. One launch is one
// Machine; the functions of intrinsics.cuh find it by Machine::running(). Host only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/emulator/emulator.h"
#include "kernels/emulator/fiber.h"

namespace kvcc::emulator {
struct Index;
}

namespace kvcc::emulator::internal {

constexpr uint32_t kWarp = 32, kMaxThreads = 1024;

struct Place {
  const char* file = "";
  int line = 0;
};

/// What a thread may wait in.
enum class Operation : uint8_t { none, sync_block, sync_warp, shuffle, ballot, match_any, mma, transpose };

/// What one lane brings to a collective operation, and what it gets.
struct Operand {
  uint32_t value = 0, source = 0, result = 0;
  float* c = nullptr;
  const uint32_t* a = nullptr;
  uint32_t b0 = 0, b1 = 0;
};

/// An asynchronous copy under way.
struct Copy {
  void* to;
  const void* from;
  Place place;
};

struct Thread {
  Fiber fiber;
  uint32_t index = 0;
  bool done = false;
  Operation at = Operation::none;  ///< none: it can run
  Place place;
  Operand operand;
  std::vector<Copy> copies;     ///< oldest first
  std::vector<size_t> groups;   ///< copies of each committed group under way, oldest first
  size_t open = 0;              ///< copies that belong to no group yet
  bool fenced = false;          ///< TSan: what is released by this thread's atomics
  std::vector<void*> observed;  ///< TSan: atomics whose releases a fence acquires
};

/// Lanes on their way into one collective operation.
struct Meeting {
  Operation operation = Operation::none;
  uint32_t mask = 0, arrived = 0;
  Place place;
};

/// Addresses that stand for a barrier of `mask` in TSan, used in turn: a thread may arrive at the next barrier before
/// another has left this one, and must not be taken as ordered before it.
struct WarpBarrier {
  uint32_t mask = 0, count = 0;
  alignas(8) char address[2][8] = {};
};

struct Warp {
  uint32_t ready = 0, exited = 0, at_barrier = 0;
  std::array<Meeting, kWarp> meetings{};
  uint32_t meeting_count = 0;
  std::vector<std::unique_ptr<WarpBarrier>> barriers;
};

class Machine {
 public:
  Machine(Entry entry, const void* params, KvccGrid grid, int threads, size_t shared_bytes, const Options& options,
          const std::string& name);
  ~Machine();

  /// Every block; throws what a thread threw, or Fault.
  void run();

  /// The machine that runs the calling thread. Throws Fault outside a launch.
  static Machine& running();

  const Index& block() const { return *block_; }
  void* shared() const { return shared_; }
  Thread& self() { return *self_; }
  const Options& options() const { return options_; }

  void sync_block(Place place);
  /// Waits until all lanes of `mask` are in `operation`, which is then carried out for them.
  void meet(Operation operation, uint32_t mask, Place place);
  /// A point at which random schedules may prefer another thread.
  void maybe_yield();

  void issue_copy(void* to, const void* from, Place place);
  void complete_copies(size_t pending_groups);

  void observe_atomic(void* address);
  void fence();

  [[noreturn]] void fault(const std::string& text) const;

 private:
  friend void begin_thread(void* machine);

  void prepare_block();
  void run_block();
  void start_thread(uint32_t i);
  void leave_thread();
  void make_ready(uint32_t warp, uint32_t lanes);
  Thread* next();
  void suspend();
  void abandon();
  [[noreturn]] void report_deadlock();
  uint64_t random();

  const Entry entry_;
  const void* const params_;
  const KvccGrid grid_;
  const uint32_t threads_count_;
  const size_t shared_bytes_;
  const Options options_;
  const std::string name_;

  std::unique_ptr<Index> block_;
  char* shared_ = nullptr;
  std::vector<Thread> threads_;
  std::array<Warp, kMaxThreads / kWarp> warps_;
  uint32_t warps_ready_ = 0;
  uint32_t favourite_ = 0;  ///< warp that a random order stays with for a while
  uint32_t live_ = 0, arrived_ = 0;
  Place barrier_place_;
  uint32_t barrier_first_ = 0;  ///< thread that arrived at it first
  uint64_t barrier_count_ = 0;
  uint64_t random_;
  bool abandoning_ = false;
  std::exception_ptr error_;
  Fiber main_;
  Thread* self_ = nullptr;
  std::unique_ptr<Stacks> stacks_;
  // ThreadSanitizer: addresses that stand for orderings
  size_t sanitizer_threads_ = 0;  ///< of this launch so far
  std::unique_ptr<char[]> block_begin_, block_barrier_, launch_end_;
  std::unordered_map<void*, std::unique_ptr<char>> releases_;
};

/// Carries out a collective operation for the lanes of `mask` (collectives.cc).
void exchange(Operation operation, uint32_t mask, Thread* lanes);

}  // namespace kvcc::emulator::internal
