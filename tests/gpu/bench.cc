#include "tests/gpu/bench.h"

#include <algorithm>
#include <chrono>

#include "tests/gpu/bench_place.h"

namespace kvcc::gpu {
namespace {

double measure_copy(Launcher& launcher) {
  const size_t bytes = launcher.device().emulated ? 1 << 16 : size_t{512} << 20;
  const Array<uint8_t> from(launcher, bytes), to(launcher, bytes);
  const auto copy = [&](int) { launcher.copy(to.data(), from.data(), bytes); };
  launcher.time(1, 2, copy, [] {});
  std::vector<double> times = launcher.time(9, 4, copy, [] {});
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  const double each = times[times.size() / 2] / 4;
  return each > 0 ? 2.0 * static_cast<double>(bytes) / each * 1e-6 : 0;
}

/// Fills in the ratios: to fp16's row of the same place and family, and to the KVQuant-like kernels as deployed.
void compare(std::vector<Row>& rows) {
  const auto find = [&](const Row& like, const std::string& family, const std::string& kernel) {
    for (const Row& row : rows) {
      if (row.model == like.model && row.tokens == like.tokens && row.family == family && row.kernel == kernel) {
        return row.milliseconds;
      }
    }
    return 0.0;
  };
  for (Row& row : rows) {
    if (row.milliseconds == 0) continue;
    if (row.kernel != "fp16") row.to_fp16 = find(row, row.family, "fp16") / row.milliseconds;
    const std::string deployed = "KVQuant-like " + std::to_string(row.bits) + " bits, as deployed";
    const double key = find(row, "key_scores", deployed), value = find(row, "value_mix", deployed);
    if (key == 0 || value == 0) continue;
    if (row.family == "key_scores") row.to_kvquant = key / row.milliseconds;
    if (row.family == "value_mix") row.to_kvquant = value / row.milliseconds;
    if (row.family == "attention") row.to_kvquant = (key + value) / row.milliseconds;  // without its softmax
  }
}

}  // namespace

Bench run_bench(Launcher& launcher, const BenchOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  Bench bench;
  bench.copy_gigabytes = measure_copy(launcher);
  const bool real = !launcher.device().emulated;
  const Model models[] = {{"Llama-2-7B", real ? 32 : 2, 1}, {"Llama-3-8B", real ? 8 : 1, 4}};
  Spec rope;
  rope.rope = device::Rope::half;
  rope.rotary = kHeadDim;
  for (const int tokens : options.tokens) {
    const Rotary rotary = make_rotary(rope, tokens + 64, 1.0);
    for (const Model& model : models) {
      const std::string place = std::string(model.name) + ", " + std::to_string(tokens) + " tokens";
      // fp16 keys and values, f32 rows of dequantise, and packed pools beside.
      const double wanted = 2.0 * tokens * model.heads * kHeadDim * 5 + 24.0 * launcher.device().l2_bytes + 2.5e8;
      if (wanted > static_cast<double>(launcher.device().memory_bytes)) {
        bench.not_timed.push_back(place + ": needs about " + std::to_string(static_cast<int>(wanted / 1e9) + 1) +
                                  " GB of device memory");
        continue;
      }
      if (seconds() > options.seconds) {
        bench.not_timed.push_back(place + ": out of time");
        continue;
      }
      Place at(launcher, bench, model, tokens, rotary);
      at.time_fp16();
      for (const int bits : {3, 4}) at.time_kvquant(bits);
      for (const Set& set : sets()) {
        if (set.name.find("_d128") == std::string::npos) continue;
        if (seconds() > options.seconds) {
          bench.not_timed.push_back(place + ", " + set.name + ": out of time");
          continue;
        }
        at.time_set(set);
      }
    }
  }
  compare(bench.rows);
  return bench;
}

}  // namespace kvcc::gpu
