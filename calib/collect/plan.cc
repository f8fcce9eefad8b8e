#include "calib/collect/plan.h"

#include <algorithm>
#include <vector>

#include "calib/collect/collect.h"
#include "calib/collect/sample_pass.h"
#include "calib/model/decoder.h"
#include "calib/model/memory.h"
#include "calib/model/quantised_model.h"
#include "calib/model/self_sample.h"
#include "formats/weights/architecture.h"

namespace kvcc {
namespace {

constexpr uint64_t kProgram = 165ull << 20;  // libraries, oneDNN's code and scratch, HDF5; measured on tiny models

/// What of the weights is in memory.
struct WeightBytes {
  uint64_t held = 0;    ///< all the time
  uint64_t matrix = 0;  ///< converted for one product, the largest of the layers'
  uint64_t head = 0;    ///< while the loss is found
  uint64_t mapped = 0;  ///< pages of the files that one layer, or the head, touches
};

WeightBytes weight_bytes(const ModelFiles& files, const PassKind& kind) {
  WeightBytes bytes;
  const DecoderConfig& c = files.config;
  std::vector<uint64_t> mapped(static_cast<size_t>(c.layers) + 1, 0);
  for (const ExpectedTensor& tensor : expected_tensors(find_architecture(c.architecture, files.path), c)) {
    const TensorInfo* info = files.tensors->find(tensor.hf);
    if (info == nullptr) continue;
    const auto elements = static_cast<uint64_t>(info->elements());
    const bool matrix = info->shape.size() == 2 && !tensor.is_bias;
    const bool embedding = tensor.part == Part::embedding;
    const uint64_t raw = files.tensors->raw(tensor.hf).size();
    // Bytes of the tensor as `type`; none where the files have it so, and it is used from there.
    const auto converted = [&](bool bf16) {
      const bool same = raw != 0 && info->type == (bf16 ? WeightType::bf16 : WeightType::f32);
      return same ? 0 : elements * (bf16 ? 2 : 4);
    };
    const uint64_t used = converted(kind.bf16 && matrix && !embedding && tensor.part != Part::router);
    const bool head = tensor.part == Part::head || (embedding && c.tied_embeddings);
    const uint64_t of_head = head ? converted(kind.bf16) : 0;
    const bool streamed = matrix && kind.streamed;
    if (!streamed) bytes.held += used;
    // Under bf16 a tied embedding is there for its rows and as the head.
    if (!streamed && head && embedding && kind.bf16) bytes.held += of_head;
    if (streamed && head) bytes.head = of_head;
    if (streamed && !head) bytes.matrix = std::max(bytes.matrix, used);
    if (streamed || used == 0) mapped[static_cast<size_t>(tensor.layer + 1)] += raw != 0 ? raw : elements;
  }
  bytes.mapped = *std::max_element(mapped.begin(), mapped.end());
  return bytes;
}

}  // namespace

uint64_t pass_bytes(const ModelFiles& files, int64_t seqlen, uint64_t shard, const PassKind& kind) {
  const DecoderConfig& c = files.config;
  const auto tokens = static_cast<uint64_t>(seqlen);
  const auto floats = [&](uint64_t count) { return sizeof(float) * tokens * count; };
  const auto hidden = static_cast<uint64_t>(c.hidden), layers = static_cast<uint64_t>(c.layers);
  const WeightBytes weights = weight_bytes(files, kind);
  const uint64_t layer = saved_bytes_per_token(c, seqlen) * tokens;
  const uint64_t inputs = floats(hidden) * layers;
  // Rounded copies that come and go between what is kept leave holes that it does not fit into.
  const uint64_t holes = kind.bf16 ? layer * layers / 4 : 0;
  const uint64_t kept = !kind.fisher ? 0 : kind.recompute ? inputs : layer * layers + holes;
  // A layer under way: what it saves where that is not kept anyway, and gradients or parts of it that come and go.
  const uint64_t passing = floats(4 * hidden + 3 * static_cast<uint64_t>(c.feed_forward));
  const uint64_t running = weights.matrix + passing + (kind.fisher && !kind.recompute ? 0 : layer);
  const uint64_t logits = 3ull * sizeof(float) * logits_chunk_rows(c) * c.vocab;
  const uint64_t loss = kind.fisher ? weights.head + logits + floats(3 * hidden) : 0;
  return kProgram + weights.held + weights.mapped + kept + std::max(running, loss) + 2 * kShardsInFlight * shard;
}

CollectPlan plan_collect(const ModelFiles& files, const ActivationsSettings& settings, const CollectOptions& options) {
  CollectPlan plan;
  plan.tokens = settings.tokens();
  plan.disk_bytes = activations_bytes(settings);
  plan.memory_limit = options.max_memory != 0 ? options.max_memory : available_memory();
  ActivationsSettings longest = settings;  // a sample of seqlen tokens
  longest.samples = 1;
  longest.lengths.clear();
  const uint64_t shard = activations_bytes(longest) / settings.layer_index.size();
  const uint64_t decoded = options.weights != nullptr ? projection_bytes(files) : 0;

  std::vector<PassKind> kinds;
  for (const bool recompute : {false, true}) {
    if (recompute && (options.recompute == Recompute::off || !settings.fisher)) continue;
    if (!recompute && options.recompute == Recompute::on) continue;
    for (const bool streamed : {false, true}) kinds.push_back({settings.fisher, recompute, streamed, options.bf16});
  }
  for (const PassKind& kind : kinds) {
    plan.recompute = kind.recompute;
    plan.streamed = kind.streamed;
    plan.peak_bytes = decoded + pass_bytes(files, settings.seqlen, shard, kind);
    if (plan.peak_bytes <= plan.memory_limit) break;
  }
  const std::string option = options.max_memory != 0 ? "--max-memory" : "";
  require_memory(files.path, plan.peak_bytes, plan.memory_limit, option,
                 plan.recompute || !settings.fisher ? "a smaller --seqlen makes it smaller"
                                                    : "--recompute on or a smaller --seqlen makes it smaller");
  if (options.self_samples > 0) {  // sampling comes first, and all samples are sampled together
    const uint64_t sampling = self_sample_bytes(files, options.self_samples, settings.seqlen);
    require_memory(files.path + ": sampling", sampling, plan.memory_limit, option,
                   "fewer --samples or a smaller --seqlen make it smaller");
    plan.peak_bytes = std::max(plan.peak_bytes, sampling);
  }
  return plan;
}

}  // namespace kvcc
