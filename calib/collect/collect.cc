#include "calib/collect/collect.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "calib/collect/crew.h"
#include "calib/collect/plan.h"
#include "calib/collect/sample_pass.h"
#include "calib/collect/shard_queue.h"
#include "calib/model/decoder.h"
#include "calib/model/errors.h"
#include "calib/model/quantised_model.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

static_assert(std::endian::native == std::endian::little, "shards and ids are little-endian");

std::vector<float> values(const at::Tensor& x) {
  if (!x.defined()) return {};
  const at::Tensor flat = x.to(at::kCPU).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

/// What is there of each sample, and what is to be done.
CollectState state_of(const SampleCrew& crew, const ActivationsSettings& settings, uint64_t units, size_t left_out) {
  CollectState state;
  const auto layers = static_cast<int64_t>(settings.layer_index.size());
  for (const auto& [sample, missing] : crew.open()) {
    state.open.push_back(sample);
    state.open_tokens += settings.length(sample);
    state.shards_kept += layers - static_cast<int64_t>(missing.size());
  }
  state.samples_kept = settings.samples - static_cast<int64_t>(state.open.size() + left_out);
  state.total = units * state.open.size();
  return state;
}

CollectReport collect_samples(const ModelFiles& files, const ActivationsSettings& settings,
                              const std::vector<std::vector<int32_t>>& ids, const CollectOptions& options,
                              const CollectCallbacks& callbacks) {
  const CollectPlan plan = plan_collect(files, settings, options);
  at::set_num_threads(options.threads);
  std::optional<ActivationsWriter> writer;
  if (options.ranks == nullptr || options.ranks->first()) {
    writer.emplace(options.output, settings, options.resume, options.force);
    if (callbacks.started) callbacks.started();
    for (const std::string& shard : writer->dropped()) {
      if (callbacks.warn) callbacks.warn("shard " + shard + " is damaged and is made again");
    }
  }
  std::vector<int> row_of(static_cast<size_t>(files.config.layers), -1);  // in the shards, by the model's layer
  for (size_t row = 0; row < settings.layer_index.size(); ++row) {
    row_of.at(settings.layer_index[row]) = static_cast<int>(row);
  }
  const uint64_t units = static_cast<uint64_t>(files.config.layers) * (settings.fisher ? 3 : 1);
  SampleCrew crew(options.ranks, writer ? &*writer : nullptr, settings, options.output, units, callbacks.warn);
  CollectState state = state_of(crew, settings, units, writer ? writer->left_out().size() : 0);
  if (callbacks.begun) callbacks.begun(state);
  uint64_t done = 0;
  const auto tell = [&] {
    crew.check();
    state.done = done + crew.others_units();
    state.written = crew.written();
    if (callbacks.progress) callbacks.progress(state);
  };

  std::optional<Decoder> decoder;  // loading takes seconds, and nothing may be missing
  while (const std::optional<int> taken = crew.next()) {
    const int s = *taken;
    if (!decoder) {
      decoder.emplace(files, DecoderOptions{plan.streamed, options.bf16, 0, options.device});
      if (options.weights != nullptr) use_weights(*decoder, files, *options.weights);
    }
    const std::vector<int>& missing = crew.open().at(s);
    ShardQueue queue(kShardsInFlight);  // puts to the crew from its thread, until drain()
    SamplePass pass;
    pass.fisher = settings.fisher;
    pass.recompute = plan.recompute;
    pass.sample = "sample " + std::to_string(s);
    pass.progress = [&](int advance) {
      done += advance;
      tell();
    };
    pass.done = [&](int layer, const LayerActs& acts) {
      const int l = row_of.at(layer);
      if (!std::binary_search(missing.begin(), missing.end(), l)) return;
      files.tensors->check_unchanged(false);  // weights that were changed under the run give no shard
      queue.put([&crew, s, l,
                 shard = Shard{values(acts.key), values(acts.value), values(acts.key_grad), values(acts.value_grad)}] {
        crew.put(s, l, shard);
      });
    };
    const uint64_t before = done;
    try {
      const double loss = run_sample(*decoder, ids[s], pass);
      queue.drain();
      crew.done(s, loss, static_cast<int64_t>(ids[s].size()) - 1);
    } catch (const NonFinite& error) {
      queue.drain();
      if (!options.skip_nonfinite) throw;
      crew.leave_out(s, error.what());
      if (callbacks.warn) callbacks.warn(std::string("left out: ") + error.what());
      done = before + units;
    }
  }
  decoder.reset();
  crew.finish(tell);
  CollectReport report;
  if (!writer) return report;
  writer->finish();
  report.samples = settings.samples - static_cast<int64_t>(writer->left_out().size());
  for (const auto& [s, reason] : writer->left_out()) {
    report.skipped.push_back(fmt::format("sample {}: {}", s, reason));
  }
  report.nll = crew.nll();
  return report;
}

}  // namespace

CollectReport collect(const ModelFiles& files, const ActivationsSettings& settings,
                      const std::vector<std::vector<int32_t>>& ids, const CollectOptions& options,
                      const CollectCallbacks& callbacks) {
  return with_torch_errors([&] { return collect_samples(files, settings, ids, options, callbacks); });
}

void write_npy_ids(const std::string& path, const std::vector<std::vector<int32_t>>& ids) {
  // Version 1.0 of the format: magic, version, header length; the header ends in a newline at a multiple of 64 bytes.
  std::string header = fmt::format("{{'descr': '<i4', 'fortran_order': False, 'shape': ({}, {}), }}", ids.size(),
                                   ids.empty() ? 0 : ids[0].size());
  header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  file += header;
  for (const std::vector<int32_t>& row : ids) {
    file.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(int32_t));
  }
  write_text_file(path, file);
}

std::string ids_sha256(const std::vector<int32_t>& ids) {
  return Sha256().update(ids.data(), ids.size() * sizeof(int32_t)).hex();
}

}  // namespace kvcc
