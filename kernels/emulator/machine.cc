// Launches, and which thread runs next.
#include "kernels/emulator/machine.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>

#include "kernels/device/intrinsics.cuh"
#include "kernels/emulator/order.h"

namespace kvcc::emulator::internal {
namespace {

constexpr size_t kMostShared = 227 * 1024;  // of any architecture served
constexpr uint64_t kMostSanitizedThreads = 8000;

thread_local Machine* machine = nullptr;

/// Thrown in the threads of a launch that is given up, so that their frames are left in order.
struct Abandoned {};

/// Kept between launches: mapping stacks costs more than a small launch.
thread_local std::unique_ptr<Stacks> kept_stacks;

#if defined(KVCC_EMULATOR_TSAN)
/// TSan's threads, which are slow to make, kept for the next launch. Inside a launch none is used twice: the second
/// CUDA thread would be taken for the first one going on.
thread_local std::vector<void*> sanitizer_threads;
#endif

}  // namespace

Machine::Machine(Entry entry, const void* params, KvccGrid grid, int threads, size_t shared_bytes,
                 const Options& options, const std::string& name)
    : entry_(entry),
      params_(params),
      grid_(grid),
      threads_count_(static_cast<uint32_t>(threads)),
      shared_bytes_(shared_bytes),
      options_(options),
      name_(name),
      block_(std::make_unique<Index>()),
      random_(options.seed * 0x9e3779b97f4a7c15u + 1u) {
  const auto refuse = [&](const std::string& why) { throw Fault("kernel " + name + ": " + why); };
  if (machine != nullptr) refuse("launched from inside a launch");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
    refuse("grid (" + std::to_string(grid.x) + ", " + std::to_string(grid.y) + ", " + std::to_string(grid.z) +
           "): x must be at least 1, y and z 1 to 65535");
  }
  if (threads <= 0 || threads % static_cast<int>(kWarp) != 0 || threads > static_cast<int>(kMaxThreads)) {
    refuse(std::to_string(threads) + " threads a block: must be a multiple of 32, 32 to 1024");
  }
  if (shared_bytes > kMostShared) {
    refuse(std::to_string(shared_bytes) + " bytes of shared memory a block: at most " + std::to_string(kMostShared));
  }
  const uint64_t all = uint64_t{grid.x} * grid.y * grid.z * threads_count_;
  if (kThreadSanitizer && all > kMostSanitizedThreads) {
    refuse(std::to_string(all) + " threads: ThreadSanitizer can tell at most " + std::to_string(kMostSanitizedThreads) +
           " apart; launch a smaller grid");
  }
  threads_.resize(threads_count_);
  main_ = Fiber::current();
  machine = this;
}

Machine::~Machine() {
  const Quiet quiet;
  std::free(shared_);
  machine = nullptr;
}

Machine& Machine::running() {
  if (machine == nullptr || machine->self_ == nullptr) throw Fault("a thread's operation was called outside a launch");
  return *machine;
}

uint64_t Machine::random() {  // xorshift64*
  random_ ^= random_ >> 12;
  random_ ^= random_ << 25;
  random_ ^= random_ >> 27;
  return random_ * 0x2545f4914f6cdd1du >> 32;
}

void Machine::run() {
  launch_end_ = std::make_unique<char[]>(8);
  const uint64_t blocks = uint64_t{grid_.x} * grid_.y * grid_.z;
  std::vector<uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  if (options_.order == Order::reversed) std::reverse(order.begin(), order.end());
  if (options_.order == Order::random) {
    for (uint64_t i = blocks; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  }
  for (const uint64_t b : order) {
    *block_ = {static_cast<uint32_t>(b % grid_.x), static_cast<uint32_t>(b / grid_.x % grid_.y),
               static_cast<uint32_t>(b / grid_.x / grid_.y)};
    run_block();
    if (error_) break;
  }
  order_acquire(launch_end_.get());
  if (error_) std::rethrow_exception(error_);
}

void begin_thread(void*) {
  Fiber::entered();
  Machine& m = *machine;
  order_acquire(m.block_begin_.get());
  try {
    if (m.abandoning_) throw Abandoned{};
    m.entry_(m.params_);
    m.leave_thread();
  } catch (const Abandoned&) {
  } catch (...) {
    if (!m.error_) m.error_ = std::current_exception();
    m.abandoning_ = true;
  }
  Thread& self = *m.self_;
  self.done = true;
  self.at = Operation::none;
  --m.live_;
  order_release(m.launch_end_.get());
  Thread* const then = m.abandoning_ ? nullptr : m.next();
  m.self_ = then;
  self.fiber.switch_to(then != nullptr ? then->fiber : m.main_, true);
  std::abort();  // a fiber that is done is never entered
}

void Machine::start_thread(uint32_t i) {
  Thread& t = threads_[i];
  t.index = i;
  t.done = false;
  t.at = Operation::none;
  t.copies.clear();
  t.groups.clear();
  t.open = 0;
  t.fenced = false;
  t.observed.clear();
  t.fiber.start(stacks_->bottom(i), i, &begin_thread, nullptr);
#if defined(KVCC_EMULATOR_TSAN)
  if (sanitizer_threads_ == sanitizer_threads.size()) {
    const Quiet quiet;
    sanitizer_threads.push_back(__tsan_create_fiber(0));
  }
  t.fiber.sanitizer = sanitizer_threads[sanitizer_threads_++];
  const std::string name = "block (" + std::to_string(block_->x) + ", " + std::to_string(block_->y) + ", " +
                           std::to_string(block_->z) + ") thread " + std::to_string(i);
  __tsan_set_fiber_name(t.fiber.sanitizer, name.c_str());
#endif
}

void Machine::prepare_block() {
  const Quiet quiet;
  // Memory that TSan has seen accesses of is never handed to another block: it would take them for races. So shared
  // memory, stacks and the addresses of barriers are new for every block there.
  if (kThreadSanitizer) {
    stacks_ = nullptr;
    stacks_ = std::make_unique<Stacks>(threads_count_);
  } else if (stacks_ == nullptr) {
    stacks_ = std::move(kept_stacks);
    if (stacks_ == nullptr || stacks_->count() < threads_count_) stacks_ = std::make_unique<Stacks>(threads_count_);
  }
  const auto in_shared = [&](void* p) {
    return reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(shared_) < shared_bytes_;
  };
  std::erase_if(releases_, [&](const auto& entry) { return in_shared(entry.first); });
  if (kThreadSanitizer || shared_ == nullptr) {
    std::free(shared_);
    shared_ = nullptr;
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, std::max<size_t>(shared_bytes_, 1)) != 0) throw std::bad_alloc();
    shared_ = static_cast<char*>(memory);  // of exactly this size, so that ASan sees what lies beyond
  }
  std::memset(shared_, 0xff, shared_bytes_);
  block_begin_ = std::make_unique<char[]>(8);
  block_barrier_ = std::make_unique<char[]>(16);

  live_ = threads_count_;
  arrived_ = 0;
  barrier_count_ = 0;
  warps_ready_ = 0;
  for (uint32_t w = 0; w < threads_count_ / kWarp; ++w) {
    warps_[w].ready = warps_[w].exited = warps_[w].at_barrier = 0;
    warps_[w].meeting_count = 0;
    warps_[w].barriers.clear();
    make_ready(w, 0xffffffffu);
  }
}

void Machine::run_block() {
  prepare_block();
  for (uint32_t i = 0; i < threads_count_; ++i) start_thread(i);
  order_release(block_begin_.get());
  if (Thread* const first = next()) {
    self_ = first;
    main_.switch_to(first->fiber);  // comes back when no thread can run, or one has failed
    self_ = nullptr;
  }
  if (!error_ && live_ > 0) {
    try {
      report_deadlock();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  if (error_) abandon();
  if (!kThreadSanitizer) {
    if (kept_stacks == nullptr || kept_stacks->count() < stacks_->count()) kept_stacks = std::move(stacks_);
  }
}

void Machine::abandon() {
  abandoning_ = true;
  for (uint32_t i = 0; i < threads_count_; ++i) {
    if (threads_[i].done) continue;
    self_ = &threads_[i];
    main_.switch_to(threads_[i].fiber);
  }
  self_ = nullptr;
}

void Machine::make_ready(uint32_t warp, uint32_t lanes) {
  warps_[warp].ready |= lanes;
  warps_ready_ |= 1u << warp;
}

/// The thread to run now, or null when none can.
Thread* Machine::next() {
  if (warps_ready_ == 0) return nullptr;
  uint32_t w, lane;
  if (options_.order == Order::sequential) {
    w = static_cast<uint32_t>(std::countr_zero(warps_ready_));
    lane = static_cast<uint32_t>(std::countr_zero(warps_[w].ready));
  } else if (options_.order == Order::reversed) {
    w = 31u - static_cast<uint32_t>(std::countl_zero(warps_ready_));
    lane = 31u - static_cast<uint32_t>(std::countl_zero(warps_[w].ready));
  } else {
    // Stays with one warp for a while, so that warps come to differ in how far they are.
    const uint64_t r = random();
    if ((warps_ready_ >> favourite_ & 1u) == 0 || r % 64 == 0) {
      const auto turn = static_cast<int>(r >> 8 & 31u);
      favourite_ = (static_cast<uint32_t>(std::countr_zero(std::rotr(warps_ready_, turn))) + turn) % 32u;
    }
    w = favourite_;
    const auto turn = static_cast<int>(r >> 16 & 31u);
    lane = (static_cast<uint32_t>(std::countr_zero(std::rotr(warps_[w].ready, turn))) + turn) % 32u;
  }
  warps_[w].ready &= ~(1u << lane);
  if (warps_[w].ready == 0) warps_ready_ &= ~(1u << w);
  return &threads_[w * kWarp + lane];
}

/// Lets others run until this thread, which waits or has been made ready again, is chosen.
void Machine::suspend() {
  Thread& self = *self_;
  Thread* const then = next();
  if (then != &self) {
    self_ = then;
    self.fiber.switch_to(then != nullptr ? then->fiber : main_);
    if (abandoning_) throw Abandoned{};
  }
}

void Machine::maybe_yield() {
  if (options_.order != Order::random || random() % 4 != 0) return;
  make_ready(self_->index / kWarp, 1u << self_->index % kWarp);
  suspend();
}

}  // namespace kvcc::emulator::internal

namespace kvcc::emulator {

void launch(Entry entry, const void* params, KvccGrid grid, int threads, size_t shared_bytes, const Options& options,
            const std::string& name) {
  internal::Machine(entry, params, grid, threads, shared_bytes, options, name).run();
}

}  // namespace kvcc::emulator
