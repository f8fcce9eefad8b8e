// What ThreadSanitizer is told: which memory accesses the machine makes for a thread, and what is ordered. Nothing
// without it. Host only.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(KVCC_EMULATOR_TSAN)
#include <sanitizer/tsan_interface.h>
// Not in every compiler's headers.
extern "C" int __tsan_atomic32_fetch_add(volatile int* address, int value, int order);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
extern "C" void __tsan_read_range(void* address, unsigned long bytes);
extern "C" void __tsan_write_range(void* address, unsigned long bytes);
#endif

namespace kvcc::emulator::internal {

/// While it lives, TSan takes the calling thread's allocations and releases of memory for no accesses. The machine's
/// own memory passes from thread to thread.
class Quiet {
 public:
#if defined(KVCC_EMULATOR_TSAN)
  Quiet() { AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
  ~Quiet() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__); }
#else
  Quiet() {}
#endif
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

inline void order_release(void* address) {
#if defined(KVCC_EMULATOR_TSAN)
  __tsan_release(address);
#else
  (void)address;
#endif
}
inline void order_acquire(void* address) {
#if defined(KVCC_EMULATOR_TSAN)
  __tsan_acquire(address);
#else
  (void)address;
#endif
}
inline void note_read(const void* from, size_t bytes) {
#if defined(KVCC_EMULATOR_TSAN)
  __tsan_read_range(const_cast<void*>(from), bytes);
#else
  (void)from, (void)bytes;
#endif
}
inline void note_write(void* to, size_t bytes) {
#if defined(KVCC_EMULATOR_TSAN)
  __tsan_write_range(to, bytes);
#else
  (void)to, (void)bytes;
#endif
}
/// An atomic access that orders nothing.
inline void note_atomic(uint32_t* address) {
#if defined(KVCC_EMULATOR_TSAN)
  __tsan_atomic32_fetch_add(reinterpret_cast<volatile int*>(address), 0, __ATOMIC_RELAXED);
#else
  (void)address;
#endif
}

}  // namespace kvcc::emulator::internal
