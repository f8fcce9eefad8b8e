// Where threads meet: barriers and collective operations, and what is said when they can't.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/device/intrinsics.cuh"
#include "kernels/emulator/machine.h"
#include "kernels/emulator/order.h"

namespace kvcc::emulator::internal {
namespace {

bool same(const Place& a, const Place& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string text(const Place& place) { return std::string(place.file) + ":" + std::to_string(place.line); }

std::string text(Operation operation) {
  switch (operation) {
    case Operation::sync_block:
      return "sync_block";
    case Operation::sync_warp:
      return "sync_warp";
    case Operation::shuffle:
      return "shuffle";
    case Operation::ballot:
      return "ballot";
    case Operation::match_any:
      return "match_any";
    case Operation::mma:
      return "mma";
    case Operation::transpose:
      return "transpose_8x8";
    case Operation::none:
      break;
  }
  return "nothing";
}

std::string hex(uint32_t mask) {
  std::string digits = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[mask >> shift & 15u];
  return digits;
}

}  // namespace

void Machine::sync_block(Place place) {
  Thread& self = *self_;
  const uint32_t w = self.index / kWarp, bit = 1u << self.index % kWarp;
  if (live_ < threads_count_) {
    for (const Thread& t : threads_) {
      if (t.done) {
        fault("thread " + std::to_string(self.index) + " is in sync_block at " + text(place) + ", which thread " +
              std::to_string(t.index) + " left the kernel without reaching");
      }
    }
  }
  if (arrived_ == 0) {
    barrier_place_ = place;
    barrier_first_ = self.index;
  } else if (!same(barrier_place_, place)) {
    fault("threads of a block meet in different barriers: thread " + std::to_string(barrier_first_) +
          " in sync_block at " + text(barrier_place_) + ", thread " + std::to_string(self.index) +
          " in sync_block at " + text(place));
  }
  for (uint32_t i = 0; i < warps_[w].meeting_count; ++i) {
    const Meeting& m = warps_[w].meetings[i];
    if (m.mask & bit) {
      fault("thread " + std::to_string(self.index) + " is in sync_block at " + text(place) + ", but lanes " +
            hex(m.arrived) + " of its warp wait for it in " + text(m.operation) + " at " + text(m.place));
    }
  }
  char* const address = block_barrier_.get() + 8 * (barrier_count_ % 2);
  order_release(address);
  self.at = Operation::sync_block;
  self.place = place;
  warps_[w].at_barrier |= bit;
  if (++arrived_ == threads_count_) {
    arrived_ = 0;
    ++barrier_count_;
    for (Thread& t : threads_) t.at = Operation::none;
    for (uint32_t i = 0; i < threads_count_ / kWarp; ++i) {
      warps_[i].at_barrier = 0;
      make_ready(i, 0xffffffffu);
    }
  }
  suspend();
  order_acquire(address);
}

void Machine::meet(Operation operation, uint32_t mask, Place place) {
  Thread& self = *self_;
  const uint32_t w = self.index / kWarp, lane = self.index % kWarp, bit = 1u << lane;
  Warp& warp = warps_[w];
  const auto here = [&] {
    return "thread " + std::to_string(self.index) + " is in " + text(operation) + " at " + text(place);
  };
  if ((mask & bit) == 0) fault(here() + ", whose mask " + hex(mask) + " does not name its own lane");
  if (mask & warp.exited) {
    fault(here() + ", whose mask " + hex(mask) + " names lanes " + hex(mask & warp.exited) +
          " that have left the kernel");
  }
  if (mask & warp.at_barrier) {
    const uint32_t other = w * kWarp + static_cast<uint32_t>(std::countr_zero(mask & warp.at_barrier));
    fault("threads of a warp have diverged: " + here() + ", thread " + std::to_string(other) + " in sync_block at " +
          text(threads_[other].place));
  }
  uint32_t found = warp.meeting_count;
  for (uint32_t i = 0; i < warp.meeting_count; ++i) {
    const Meeting& m = warp.meetings[i];
    if (m.operation == operation && m.mask == mask && same(m.place, place)) {
      found = i;
    } else if ((m.arrived & mask) != 0 && (m.mask & bit) != 0) {  // each waits for the other
      const uint32_t other = w * kWarp + static_cast<uint32_t>(std::countr_zero(m.arrived & mask));
      fault("threads of a warp meet in different operations: " + here() + " (mask " + hex(mask) + "), thread " +
            std::to_string(other) + " in " + text(m.operation) + " at " + text(m.place) + " (mask " + hex(m.mask) +
            ")");
    }
  }
  if (found == warp.meeting_count) warp.meetings[warp.meeting_count++] = {operation, mask, 0, place};

  char* address = nullptr;
  if (kThreadSanitizer && operation == Operation::sync_warp) {
    auto b = std::find_if(warp.barriers.begin(), warp.barriers.end(), [&](const auto& x) { return x->mask == mask; });
    if (b == warp.barriers.end()) {
      const Quiet quiet;
      warp.barriers.push_back(std::make_unique<WarpBarrier>());
      b = warp.barriers.end() - 1;
      (*b)->mask = mask;
    }
    address = (*b)->address[(*b)->count % 2];
    order_release(address);
    if ((warp.meetings[found].arrived | bit) == mask) ++(*b)->count;
  }
  self.at = operation;
  self.place = place;
  Meeting& meeting = warp.meetings[found];
  meeting.arrived |= bit;
  if (meeting.arrived == mask) {
    exchange(operation, mask, &threads_[w * kWarp]);
    for (uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
      threads_[w * kWarp + static_cast<uint32_t>(std::countr_zero(lanes))].at = Operation::none;
    }
    warp.meetings[found] = warp.meetings[--warp.meeting_count];
    make_ready(w, mask);
  }
  suspend();
  if (address != nullptr) order_acquire(address);
}

/// The thread has returned from the kernel: nobody may still count on it.
void Machine::leave_thread() {
  Thread& self = *self_;
  const uint32_t w = self.index / kWarp, bit = 1u << self.index % kWarp;
  if (!self.copies.empty()) {
    fault("thread " + std::to_string(self.index) + " left the kernel with " + std::to_string(self.copies.size()) +
          " asynchronous copies under way, the first from " + text(self.copies.front().place));
  }
  for (uint32_t i = 0; i < warps_[w].meeting_count; ++i) {
    const Meeting& m = warps_[w].meetings[i];
    if (m.mask & bit) {
      fault("thread " + std::to_string(self.index) + " left the kernel, but lanes " + hex(m.arrived) +
            " of its warp wait for it in " + text(m.operation) + " at " + text(m.place));
    }
  }
  if (arrived_ > 0) {
    fault("thread " + std::to_string(self.index) + " left the kernel without reaching the sync_block at " +
          text(barrier_place_) + " in which " + std::to_string(arrived_) + " threads wait, thread " +
          std::to_string(barrier_first_) + " first");
  }
  warps_[w].exited |= bit;
}

void Machine::fault(const std::string& what) const {
  throw Fault("kernel " + name_ + ", block (" + std::to_string(block_->x) + ", " + std::to_string(block_->y) + ", " +
              std::to_string(block_->z) + "): " + what);
}

void Machine::report_deadlock() {
  std::string parties;
  for (uint32_t i = 0; i < threads_count_;) {
    const Thread& t = threads_[i];
    uint32_t j = i + 1;
    while (j < threads_count_ && threads_[j].done == t.done && threads_[j].at == t.at &&
           (t.done || same(threads_[j].place, t.place))) {
      ++j;
    }
    if (!t.done) {
      parties += (parties.empty() ? "" : "; ") +
                 (j == i + 1 ? "thread " + std::to_string(i)
                             : "threads " + std::to_string(i) + " to " + std::to_string(j - 1)) +
                 " in " + text(t.at) + " at " + text(t.place);
    }
    i = j;
  }
  fault("deadlock, no thread can go on: " + parties);
}

}  // namespace kvcc::emulator::internal
