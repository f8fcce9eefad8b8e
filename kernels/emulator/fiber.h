// Stacks that can be left in the middle of a function and entered again, on one thread of the system. Knows the
// sanitizers: ASan is told which stack is in use, TSan takes each fiber for a thread of its own. Host only.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) && !defined(KVCC_EMULATOR_UCONTEXT)
#define KVCC_EMULATOR_UCONTEXT  // slower, for machines whose switch is not spelt out in fiber.cc
#endif
#if defined(KVCC_EMULATOR_UCONTEXT)
#include <ucontext.h>
#endif

namespace kvcc::emulator::internal {

#if defined(KVCC_EMULATOR_TSAN)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

/// Memory for `count` stacks, each with a guard page below it. Throws std::bad_alloc.
class Stacks {
 public:
  Stacks() = default;
  explicit Stacks(size_t count);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  size_t count() const { return count_; }
  char* bottom(size_t i) const;
  static size_t bytes();

 private:
  char* base_ = nullptr;
  size_t count_ = 0;
};

/// The system's own stack, or one of Stacks.
class Fiber {
 public:
  using Function = void (*)(void* argument);

  /// The fiber that is running now.
  static Fiber current();

  Fiber() = default;
  /// One that calls function(argument) when it is first entered. The function must not return, but switch away for
  /// good. `index` spreads the stacks' tops over the lines of the cache.
  void start(char* bottom, size_t index, Function function, void* argument);
  /// To be called first in the function.
  static void entered();
  /// Leaves this fiber, which is running, for another. last: this one is never entered again.
  void switch_to(Fiber& to, bool last = false);

  void* sanitizer = nullptr;  ///< TSan's thread: set by whoever owns the fiber

 private:
  void resumed();

#if defined(KVCC_EMULATOR_UCONTEXT)
  ucontext_t context_{};
#else
  void* stack_pointer_ = nullptr;
#endif
  const void* bottom_ = nullptr;
  size_t bytes_ = 0;
  void* fake_stack_ = nullptr;
  Function function_ = nullptr;
  void* argument_ = nullptr;
};

}  // namespace kvcc::emulator::internal
