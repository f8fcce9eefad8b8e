#include "calib/model/self_sample.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <random>

#include "calib/model/decoder.h"
#include "calib/model/errors.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

/// Index drawn from a distribution with one uniform number of [0, 1).
int32_t draw(const float* probabilities, int64_t vocab, double uniform) {
  double total = 0;
  for (int64_t i = 0; i < vocab; ++i) total += probabilities[i];
  if (!std::isfinite(total)) throw Error(ErrorKind::failed, "sampling", "logits that are not finite");
  double left = uniform * total;
  int64_t last = 0;  // rounding may leave a rest: then the last possible id
  for (int64_t i = 0; i < vocab; ++i) {
    if (probabilities[i] == 0) continue;
    last = i;
    left -= probabilities[i];
    if (left < 0) break;
  }
  return static_cast<int32_t>(last);
}

}  // namespace

namespace {

std::vector<std::vector<int32_t>> sample(const Decoder& decoder, int64_t samples, int64_t seqlen, uint64_t seed,
                                         const std::function<void(int64_t)>& progress) {
  const c10::NoGradGuard no_gradient;
  const DecoderConfig& config = decoder.config();
  const int64_t start = config.bos_id >= 0 ? config.bos_id : std::max<int64_t>(config.eos_id, 0);
  std::vector<std::vector<int32_t>> ids(samples, {static_cast<int32_t>(start)});
  std::vector<std::mt19937_64> generators;
  for (int64_t s = 0; s < samples; ++s) {
    std::seed_seq mixed{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), static_cast<uint32_t>(s)};
    generators.emplace_back(mixed);
  }
  KvCache cache(decoder.layers(), seqlen);
  for (int64_t t = 0; t + 1 < seqlen; ++t) {
    check_interrupt();
    at::Tensor last = at::empty({samples, 1}, at::kLong);
    for (int64_t s = 0; s < samples; ++s) last.mutable_data_ptr<int64_t>()[s] = ids[s].back();
    const Rope::Angles angles = decoder.rope().angles(t, 1);
    at::Tensor x = decoder.embed(last);
    for (int l = 0; l < decoder.layers(); ++l) x = decoder.layer(l, x, angles, nullptr, &cache);
    decoder.advance(cache, 1);
    const at::Tensor probabilities = at::softmax(decoder.logits(decoder.final_norm(x).squeeze(1)), -1).contiguous();
    for (int64_t s = 0; s < samples; ++s) {
      const double uniform = static_cast<double>(generators[s]() >> 11) * 0x1p-53;
      ids[s].push_back(draw(probabilities.const_data_ptr<float>() + s * config.vocab, config.vocab, uniform));
    }
    if (progress) progress(t + 2);
  }
  return ids;
}

}  // namespace

uint64_t self_sample_bytes(const ModelFiles& files, int64_t samples, int64_t seqlen) {
  const DecoderConfig& c = files.config;
  // Under GQA attention copies one layer's keys and values for every query head.
  const uint64_t copies =
      c.query_heads == c.kv_heads ? 0 : 2ull * sizeof(float) * samples * c.query_heads * seqlen * c.head_dim;
  const uint64_t token = sizeof(float) * samples * (3 * c.vocab + 4 * c.hidden + 3 * c.feed_forward);
  return loaded_bytes(files) + KvCache::bytes(c, samples, seqlen) + copies + token;
}

std::vector<std::vector<int32_t>> sample_from_model(const ModelFiles& files, int64_t samples, int64_t seqlen,
                                                    uint64_t seed, int threads,
                                                    const std::function<void(int64_t)>& progress) {
  at::set_num_threads(threads);
  return with_torch_errors([&] { return sample(Decoder(files), samples, seqlen, seed, progress); });
}

}  // namespace kvcc
