#include "kernels/emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

#if defined(__SANITIZE_THREAD__)
// The machine's own memory is shared by all fibers; instrumented, every collective would be reported as a race.
#error "for ThreadSanitizer compile kernels/emulator with -fno-sanitize=thread -DKVCC_EMULATOR_TSAN"
#endif
#if defined(KVCC_EMULATOR_TSAN)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvcc::emulator::internal {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStackBytes = kThreadSanitizer ? 64 * 1024 : 256 * 1024;  // only what is touched is ever mapped

thread_local Fiber* left = nullptr;  // the fiber that the running one was entered from

}  // namespace

Stacks::Stacks(size_t count) {
  void* const memory = mmap(nullptr, count * (kStackBytes + kPage), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(memory);
  count_ = count;
  for (size_t i = 0; i < count; ++i) mprotect(base_ + i * (kStackBytes + kPage), kPage, PROT_NONE);
}

Stacks::~Stacks() {
  if (base_ != nullptr) munmap(base_, count_ * (kStackBytes + kPage));
}

char* Stacks::bottom(size_t i) const { return base_ + i * (kStackBytes + kPage) + kPage; }
size_t Stacks::bytes() { return kStackBytes; }

#if defined(KVCC_EMULATOR_UCONTEXT)

namespace {
// makecontext passes ints.
void trampoline(unsigned function_high, unsigned function_low, unsigned argument_high, unsigned argument_low) {
  const auto join = [](unsigned high, unsigned low) { return static_cast<uintptr_t>(uint64_t{high} << 32 | low); };
  reinterpret_cast<Fiber::Function>(join(function_high, function_low))(
      reinterpret_cast<void*>(join(argument_high, argument_low)));
}
}  // namespace

#else

// Saves what the calling convention keeps over a call, and the place to go on. The function that a new fiber begins
// with is returned into, with its argument in rbx.
extern "C" void kvcc_emulator_switch(void** save, void* next);
extern "C" void kvcc_emulator_begin();
asm(R"(
.text
.globl kvcc_emulator_switch
.hidden kvcc_emulator_switch
.type kvcc_emulator_switch, @function
kvcc_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kvcc_emulator_switch, .-kvcc_emulator_switch
.globl kvcc_emulator_begin
.hidden kvcc_emulator_begin
.type kvcc_emulator_begin, @function
kvcc_emulator_begin:
  movq %rbx, %rdi
  callq *%rbp
  ud2
.size kvcc_emulator_begin, .-kvcc_emulator_begin
)");

#endif

Fiber Fiber::current() {
  Fiber fiber;
#if defined(KVCC_EMULATOR_TSAN)
  fiber.sanitizer = __tsan_get_current_fiber();
#endif
  return fiber;
}

void Fiber::start(char* bottom, size_t index, Function function, void* argument) {
  bottom_ = bottom;
  bytes_ = kStackBytes;
  fake_stack_ = nullptr;
  function_ = function;
  argument_ = argument;
  const size_t colour = index * 29 % 61 * 64;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(bottom, kStackBytes);  // of frames that were left for good
#endif
#if defined(KVCC_EMULATOR_UCONTEXT)
  getcontext(&context_);
  context_.uc_stack.ss_sp = bottom;
  context_.uc_stack.ss_size = kStackBytes - colour;
  context_.uc_link = nullptr;
  const auto f = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(function));
  const auto a = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(argument));
  makecontext(&context_, reinterpret_cast<void (*)()>(&trampoline), 4, static_cast<unsigned>(f >> 32),
              static_cast<unsigned>(f), static_cast<unsigned>(a >> 32), static_cast<unsigned>(a));
#else
  auto* top = reinterpret_cast<uint64_t*>(bottom + kStackBytes - colour - 64);
  for (int i = 0; i < 2; ++i) *--top = 0;  // ends a walk of the stack, and aligns it
  *--top = reinterpret_cast<uintptr_t>(&kvcc_emulator_begin);
  *--top = reinterpret_cast<uintptr_t>(function);  // rbp
  *--top = reinterpret_cast<uintptr_t>(argument);  // rbx
  for (int i = 0; i < 4; ++i) *--top = 0;
  stack_pointer_ = top;
#endif
}

void Fiber::resumed() {
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack_, &bottom, &bytes);
  if (left != nullptr && left->bottom_ == nullptr) {  // the system's stack: its bounds are learnt when it is left
    left->bottom_ = bottom;
    left->bytes_ = bytes;
  }
#endif
}

void Fiber::entered() { Fiber().resumed(); }

void Fiber::switch_to(Fiber& to, bool last) {
  left = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack_, to.bottom_, to.bytes_);
#endif
#if defined(KVCC_EMULATOR_TSAN)
  __tsan_switch_to_fiber(to.sanitizer, __tsan_switch_to_fiber_no_sync);
#endif
  (void)last;
#if defined(KVCC_EMULATOR_UCONTEXT)
  swapcontext(&context_, &to.context_);
#else
  kvcc_emulator_switch(&stack_pointer_, to.stack_pointer_);
#endif
  resumed();
}

}  // namespace kvcc::emulator::internal
