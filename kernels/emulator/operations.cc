// The functions that intrinsics.cuh declares, but for arithmetic: indices, warp operations, atomics, fences and
// asynchronous copies.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/device/intrinsics.cuh"
#include "kernels/emulator/machine.h"
#include "kernels/emulator/order.h"
#include "kernels/emulator/tensor_core.h"

namespace kvcc::emulator {
namespace internal {

void exchange(Operation operation, uint32_t mask, Thread* lanes) {
  const auto each = [&](auto&& f) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      f(lanes[std::countr_zero(rest)].operand, 1u << std::countr_zero(rest));
    }
  };
  switch (operation) {
    case Operation::shuffle:
      each([&](Operand& o, uint32_t) { o.result = lanes[o.source].operand.value; });
      break;
    case Operation::ballot: {
      uint32_t set = 0;
      each([&](const Operand& o, uint32_t bit) { set |= o.value != 0 ? bit : 0u; });
      each([&](Operand& o, uint32_t) { o.result = set; });
      break;
    }
    case Operation::match_any:
      each([&](Operand& mine, uint32_t) {
        mine.result = 0;
        each([&](const Operand& o, uint32_t bit) { mine.result |= o.value == mine.value ? bit : 0u; });
      });
      break;
    case Operation::mma:
      multiply_fragments(lanes);
      break;
    case Operation::transpose:
      transpose_fragments(lanes);
      break;
    case Operation::none:
    case Operation::sync_block:
    case Operation::sync_warp:
      break;
  }
}

void Machine::issue_copy(void* to, const void* from, Place place) {
  Thread& self = *self_;
  const auto complain = [&](const std::string& why) {
    fault("thread " + std::to_string(self.index) + ", copy_async_16 at " + place.file + ":" +
          std::to_string(place.line) + ": " + why);
  };
  const auto at = reinterpret_cast<uintptr_t>(to), begin = reinterpret_cast<uintptr_t>(shared_);
  if (at < begin || at - begin + 16 > shared_bytes_) complain("the target is not in the block's shared memory");
  if (at % 16 != 0) complain("the target is not aligned to 16 bytes");
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) complain("the source is not aligned to 16 bytes");
  // From here to the wait nobody may touch the target: both ends of the copy are writes.
  note_read(from, 16);
  note_write(to, 16);
  if (options_.async_early) {
    std::memcpy(to, from, 16);
  } else {
    std::memset(to, 0xff, 16);
  }
  const Quiet quiet;
  self.copies.push_back({to, from, place});
  ++self.open;
}

void Machine::complete_copies(size_t pending_groups) {
  Thread& self = *self_;
  if (self.groups.size() <= pending_groups) return;
  const size_t finished = self.groups.size() - pending_groups;
  size_t copies = 0;
  for (size_t i = 0; i < finished; ++i) copies += self.groups[i];
  for (size_t i = 0; i < copies; ++i) {
    const Copy& copy = self.copies[i];
    note_read(copy.from, 16);
    note_write(copy.to, 16);
    if (!options_.async_early) std::memcpy(copy.to, copy.from, 16);
  }
  const Quiet quiet;
  self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(copies));
  self.groups.erase(self.groups.begin(), self.groups.begin() + static_cast<std::ptrdiff_t>(finished));
}

// CUDA's rule in TSan's terms: writes before a fence are seen by who observes, and then fences after, an atomic that
// follows the fence. (What is released is taken at the atomic, a little after the fence.)
void Machine::observe_atomic(void* address) {
  if (!kThreadSanitizer) return;
  Thread& self = *self_;
  const Quiet quiet;
  auto& release = releases_[address];
  if (release == nullptr) release = std::make_unique<char>();
  if (self.fenced) order_release(release.get());
  if (std::find(self.observed.begin(), self.observed.end(), address) == self.observed.end()) {
    self.observed.push_back(address);
  }
}

void Machine::fence() {
  if (!kThreadSanitizer) return;
  self_->fenced = true;
  for (void* address : self_->observed) order_acquire(releases_[address].get());
}

}  // namespace internal

using internal::Machine;
using internal::Operation;

uint32_t thread_index() { return Machine::running().self().index; }
Index block_index() { return Machine::running().block(); }
void* shared_memory() { return Machine::running().shared(); }

void sync_block(const char* file, int line) { Machine::running().sync_block({file, line}); }
void sync_warp(uint32_t mask, const char* file, int line) {
  Machine::running().meet(Operation::sync_warp, mask, {file, line});
}

uint32_t shuffle(uint32_t mask, uint32_t value, uint32_t source_lane, const char* file, int line) {
  Machine& m = Machine::running();
  internal::Thread& self = m.self();
  const uint32_t source = source_lane % internal::kWarp;  // as shfl.idx takes it
  if ((mask >> source & 1u) == 0) {
    m.fault("thread " + std::to_string(self.index) + ", shuffle at " + file + ":" + std::to_string(line) +
            ": takes from lane " + std::to_string(source) + ", which its mask does not name");
  }
  self.operand.value = value;
  self.operand.source = source;
  m.meet(Operation::shuffle, mask, {file, line});
  return self.operand.result;
}
uint32_t ballot(uint32_t mask, bool predicate, const char* file, int line) {
  Machine& m = Machine::running();
  internal::Thread& self = m.self();
  self.operand.value = predicate;
  m.meet(Operation::ballot, mask, {file, line});
  return self.operand.result;
}
uint32_t match_any(uint32_t mask, uint32_t value, const char* file, int line) {
  Machine& m = Machine::running();
  internal::Thread& self = m.self();
  self.operand.value = value;
  m.meet(Operation::match_any, mask, {file, line});
  return self.operand.result;
}
void mma_16816(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, const char* file, int line) {
  Machine& m = Machine::running();
  internal::Operand& operand = m.self().operand;
  operand.c = c;
  operand.a = a;
  operand.b0 = b0;
  operand.b1 = b1;
  m.meet(Operation::mma, 0xffffffffu, {file, line});
}
uint32_t transpose_8x8(uint32_t rows, const char* file, int line) {
  Machine& m = Machine::running();
  internal::Thread& self = m.self();
  self.operand.value = rows;
  m.meet(Operation::transpose, 0xffffffffu, {file, line});
  return self.operand.result;
}

void fence() {
  Machine& m = Machine::running();
  m.fence();
  m.maybe_yield();
}

namespace {
template <class Change>
uint32_t change_atomically(uint32_t* address, const Change& change) {
  Machine& m = Machine::running();
  m.maybe_yield();
  internal::note_atomic(address);
  const uint32_t before = *address;
  *address = change(before);
  m.observe_atomic(address);
  return before;
}
}  // namespace

uint32_t atomic_add(uint32_t* address, uint32_t value) {
  return change_atomically(address, [&](uint32_t x) { return x + value; });
}
uint32_t atomic_or(uint32_t* address, uint32_t value) {
  return change_atomically(address, [&](uint32_t x) { return x | value; });
}
uint32_t atomic_max(uint32_t* address, uint32_t value) {
  return change_atomically(address, [&](uint32_t x) { return std::max(x, value); });
}

void copy_async_16(void* shared, const void* global, const char* file, int line) {
  Machine::running().issue_copy(shared, global, {file, line});
}
void copy_async_commit() {
  internal::Thread& self = Machine::running().self();
  const internal::Quiet quiet;
  self.groups.push_back(self.open);
  self.open = 0;
}
void copy_async_wait(int pending) { Machine::running().complete_copies(static_cast<size_t>(std::max(pending, 0))); }

}  // namespace kvcc::emulator
