// shard_queue_probe: puts slow jobs and is interrupted while they wait; prints how many were put and how many ran.
#include <chrono>
#include <cstdio>
#include <thread>

#include "calib/collect/shard_queue.h"
#include "formats/core/error.h"

int main() {
  int put = 0, ran = 0;
  try {
    kvcc::ShardQueue queue(3);
    for (; put < 4; ++put) {
      queue.put([&ran] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ++ran;
      });
    }
    throw kvcc::Interrupted(2);
  } catch (const kvcc::Interrupted&) {
    std::printf("%d %d\n", put, ran);
  }
}
