// Small kernels with one synchronisation bug each, for ThreadSanitizer to find: `races NAME` runs one of them under
// three schedules. 'none' has no bug. Results are right under most schedules: that is why the sanitizer is the gate.
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/device/intrinsics.cuh"
#include "kernels/emulator/emulator.h"

namespace kvcc {
namespace {

using namespace device;

constexpr uint32_t kBlocks = 4, kThreads = 128;

struct Params {
  std::string bug;
  std::vector<uint32_t> source, out, ticket;
};

/// A table, warp exchanges, asynchronous copies into a buffer used twice, and a last block that adds up what the
/// others wrote.
void kernel(const void* params) {
  auto& p = *static_cast<Params*>(const_cast<void*>(params));
  const auto bug = [&](const char* name) { return p.bug == name; };
  const uint32_t i = thread_index(), block = block_index().x;
  auto* const table = static_cast<uint32_t*>(emulator::shared_memory());
  uint32_t* const warp = table + kThreads;
  uint32_t* const buffer = warp + kThreads;

  table[i] = i * 3;
  if (!bug("barrier-after-table")) sync_block();
  uint32_t x = table[i ^ 64];

  warp[i] = x;
  if (!bug("warp-barrier-before-read")) sync_warp();
  x += warp[i ^ 1];
  if (!bug("warp-barrier-before-write")) sync_warp();
  warp[i ^ 2] = x;
  sync_warp();
  x += shuffle_xor(x, 16);  // orders nothing
  if (bug("shuffle-for-a-barrier")) {
    warp[i] = x;
    x += shuffle_xor(x, 1) + warp[i ^ 1];
  }

  for (uint32_t round = 0; round < 2; ++round) {
    copy_async_16(buffer + 4 * i, p.source.data() + 4 * (i + round));
    copy_async_commit();
    if (!bug("wait-after-barrier")) copy_async_wait<0>();
    sync_block();
    x += buffer[4 * (i ^ 5)];
    if (bug("wait-after-barrier")) copy_async_wait<0>();
    if (!bug("barrier-before-reuse")) sync_block();
  }

  p.out[block * kThreads + i] = x;
  if (bug("blocks-overlap")) p.out[i] = x;
  if (bug("counter-not-atomic")) ++p.ticket[1];
  if (!bug("fence-before-ticket")) fence();
  sync_block();
  if (i == 0 && atomic_add(&p.ticket[0], 1) == kBlocks - 1) {
    if (!bug("fence-after-ticket")) fence();
    uint32_t sum = 0;
    for (uint32_t j = 0; j < kBlocks * kThreads; ++j) sum += p.out[j];
    p.ticket[2] = sum;
  }
}

}  // namespace
}  // namespace kvcc

int main(int count, char** arguments) {
  using kvcc::emulator::Order;
  const std::string bug = count == 2 ? arguments[1] : "none";
  std::vector<uint32_t> sums;
  for (const kvcc::emulator::Options& options :
       {kvcc::emulator::Options{Order::sequential, 1, false}, kvcc::emulator::Options{Order::reversed, 1, true},
        kvcc::emulator::Options{Order::random, 1, false}}) {
    kvcc::Params params{bug, std::vector<uint32_t>(4 * kvcc::kThreads + 8), {}, std::vector<uint32_t>(3)};
    for (size_t i = 0; i < params.source.size(); ++i) params.source[i] = static_cast<uint32_t>(i * i);
    params.out.assign(kvcc::kBlocks * kvcc::kThreads, 0);
    kvcc::emulator::launch(kvcc::kernel, &params, {kvcc::kBlocks, 1, 1}, kvcc::kThreads, 6 * kvcc::kThreads * 4,
                           options, bug);
    sums.push_back(params.ticket[2]);
  }
  std::printf("%s: %u %u %u\n", bug.c_str(), sums[0], sums[1], sums[2]);
  return sums[0] == sums[1] && sums[0] == sums[2] ? 0 : 3;
}
