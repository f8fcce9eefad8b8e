// key_scores, value_mix and attention against sums in double, within the bounds that the device files state.
#include <algorithm>
#include <cmath>

#include "formats/layout/mma_launch.h"
#include "tests/gpu/device_tensor.h"
#include "tests/gpu/parity_run.h"

namespace kvcc::gpu {
namespace {

constexpr double kRounding = 0x1p-8;  ///< of the bounds that the files of mma-1 state

KvccRope device_rope(const Array<float>* base, const Array<uint16_t>* relative) {
  return {base[0].data(), base[1].data(), relative[0].data(), relative[1].data()};
}

/// Rows [H * group, T] of sequence s of [S, H * group, stride].
template <class T>
std::vector<T> rows_of(const std::vector<T>& all, int64_t s, int64_t rows, int64_t stride, int64_t length) {
  std::vector<T> out;
  for (int64_t row = 0; row < rows; ++row) {
    const auto from = all.begin() + (s * rows + row) * stride;
    out.insert(out.end(), from, from + length);
  }
  return out;
}

std::vector<float> query_of(const Run& run, int64_t s) {
  const int64_t each = static_cast<int64_t>(run.c.heads) * run.c.group * run.set.key.head_dim;
  return {run.query.begin() + s * each, run.query.begin() + (s + 1) * each};
}

/// What each score of sequence s may be off, [H * group, T]. mma-1 (mma_keys.cuh): 2^-8 of multiplier * sum over rotary
/// pairs of |q pair| |K pair|. linear-1: f32 sums.
std::vector<double> score_bounds(const Run& run, int64_t s, const reference::Sums& sums) {
  const Spec& spec = run.set.key;
  const int D = spec.head_dim, length = run.c.lengths[s], half = spec.rotary / 2;
  std::vector<double> bounds(sums.value.size());
  if (run.set.layout == Layout::linear) {
    for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = std::ldexp(D + 4.0, -23) * sums.magnitude[i];
    return bounds;
  }
  const std::vector<float> query = query_of(run, s);
  for (int row = 0; row < run.c.heads * run.c.group; ++row) {
    const float* const q = query.data() + static_cast<int64_t>(row) * D;
    for (int t = 0; t < length; ++t) {
      const float* const k =
          run.key.sequences[s].spread.data() + (static_cast<int64_t>(t) * run.c.heads + row / run.c.group) * D;
      double sum = 0;
      for (int i = 0; i < half; ++i) {
        const int a = spec.rope == device::Rope::interleaved ? 2 * i : i;
        const int b = spec.rope == device::Rope::interleaved ? 2 * i + 1 : i + half;
        sum += std::hypot(q[a], q[b]) * std::hypot(k[a], k[b]);
      }
      for (int c = spec.rotary; c < D; ++c) sum += std::fabs(q[c]) * k[c];
      bounds[static_cast<int64_t>(row) * length + t] = kRounding * run.multiplier() * run.c.factor * sum;
    }
  }
  return bounds;
}

/// What each sum of sequence s may be off, [H * group, D]. mma-1 (mma_value_mix.cuh): 2^-8 of the greatest weight times
/// the sum of the values' spreads. linear-1: f32 sums.
std::vector<double> mix_bounds(const Run& run, int64_t s, const std::vector<float>& weights,
                               const reference::Sums& sums, int splits) {
  const int D = run.set.value.head_dim, length = run.c.lengths[s];
  std::vector<double> bounds(sums.value.size());
  if (run.set.layout == Layout::linear) {
    for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = std::ldexp(length + splits + 2.0, -23) * sums.magnitude[i];
    return bounds;
  }
  for (int row = 0; row < run.c.heads * run.c.group; ++row) {
    const float* const w = weights.data() + static_cast<int64_t>(row) * length;
    double most = 0;
    for (int t = 0; t < length; ++t) most = std::max<double>(most, std::fabs(w[t]));
    for (int t = 0; t < length; ++t) {
      if (w[t] == 0) continue;
      for (int d = 0; d < D; ++d) {
        bounds[static_cast<int64_t>(row) * D + d] +=
            kRounding * most *
            run.value.sequences[s].spread[(static_cast<int64_t>(t) * run.c.heads + row / run.c.group) * D + d];
      }
    }
  }
  return bounds;
}

/// What each result of sequence s may be off, [H * group, D] (attention.cuh): the scores' errors as they carry to the
/// result, and 2^-8 of the greatest value that the query sees.
std::vector<double> attention_bounds(const Run& run, int64_t s, const reference::AttentionSums& sums) {
  const int D = run.set.value.head_dim, length = run.c.lengths[s];
  const int first = run.c.window > 0 ? std::max(0, length - run.c.window) : 0;
  const Sequence& values = run.value.sequences[s];
  const auto scores = reference::key_scores(run.key.sequences[s].unpacked, query_of(run, s), run.c.heads,
                                            run.set.key.head_dim, run.c.group, run.rotary.rotation, run.multiplier());
  const std::vector<double> off = score_bounds(run, s, scores);
  std::vector<double> bounds(sums.value.size());
  for (int64_t row = 0; row < static_cast<int64_t>(run.c.heads) * run.c.group; ++row) {
    for (int d = 0; d < D; ++d) {
      double sensitivity = 0, most = 0;
      for (int t = first; t < length; ++t) {
        const int64_t at = (static_cast<int64_t>(t) * run.c.heads + row / run.c.group) * D + d;
        const double weight = std::exp(scores.value[row * length + t] - sums.peak[row]) / sums.sum[row];
        sensitivity += weight * off[row * length + t] * std::fabs(values.unpacked[at] - sums.value[row * D + d]);
        most = std::max<double>(most, values.spread[at]);
      }
      bounds[row * D + d] = sensitivity + kRounding * most;
    }
  }
  return bounds;
}

}  // namespace

std::string check_key_scores(Launcher& launcher, Run& run) {
  const DeviceTensor device(launcher, run.key, true, run.random);
  const int64_t rows = static_cast<int64_t>(run.c.heads) * run.c.group, stride = run.longest + 5;
  const Array<uint8_t> query(launcher, as_bytes(run.query, run.set.key.dtype));
  const Array<float> cosine(launcher, run.rotary.cosine), sine(launcher, run.rotary.sine);
  const Array<float> base[] = {{launcher, run.rotary.base_cosine}, {launcher, run.rotary.base_sine}};
  const Array<uint16_t> relative[] = {{launcher, run.rotary.relative_cosine}, {launcher, run.rotary.relative_sine}};
  const bool is_mma = run.set.layout == Layout::mma;
  for (const int splits : is_mma ? run.c.splits : std::vector<int>{1}) {
    const Array<float> scores(launcher, run.sequences() * rows * stride);
    for (const Part& part : run.set.parts) {
      if (is_mma) {
        KvccMmaKeyScoresParams p{};
        p.cache = device.view();
        p.rope = device_rope(base, relative);
        p.query = query.data();
        p.scores = scores.data();
        p.scores_stride = stride;
        p.multiplier = run.multiplier();
        p.group = run.c.group;
        p.splits = splits;
        p.window = run.c.window;
        launcher.launch(part.key.key_scores, kvcc_grid_mma_key_scores(&p), &p, "key_scores");
      } else {
        KvccKeyScoresParams p{};
        p.cache = device.view();
        p.query = query.data();
        p.cosine = cosine.data();
        p.sine = sine.data();
        p.scores = scores.data();
        p.scores_stride = stride;
        p.multiplier = run.multiplier();
        p.group = run.c.group;
        p.max_length = run.longest;
        launcher.launch(part.key.key_scores, kvcc_grid_key_scores(&p, run.set.key.head_dim), &p, "key_scores");
      }
    }
    const std::vector<float> found = scores.download();
    for (int64_t s = 0; s < run.sequences(); ++s) {
      const int length = run.c.lengths[s];
      const auto sums = reference::key_scores(run.key.sequences[s].unpacked, query_of(run, s), run.c.heads,
                                              run.set.key.head_dim, run.c.group, run.rotary.rotation, run.multiplier());
      const std::vector<double> bounds = score_bounds(run, s, sums);
      const int first = is_mma && run.c.window > 0 ? std::max(0, length - run.c.window) : 0;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t p = 0; p < stride; ++p) {
          const float score = found[(s * rows + row) * stride + p];
          if (p < first || p >= length) {
            if (float_bits(score) == 0xffffffffu) continue;
            return "sequence " + std::to_string(s) + ", row " + std::to_string(row) + ", position " +
                   std::to_string(p) + " was written, though it is not visible";
          }
          const size_t i = row * length + p;
          const std::string off = beyond("splits " + std::to_string(splits) + ", sequence " + std::to_string(s) +
                                             ", query head " + std::to_string(row) + ", position " + std::to_string(p),
                                         {score}, {sums.value[i]}, [&](size_t) { return bounds[i] + 1e-30; });
          if (!off.empty()) return off;
        }
      }
    }
  }
  return "";
}

std::string check_value_mix(Launcher& launcher, Run& run) {
  const DeviceTensor device(launcher, run.value, true, run.random);
  const int D = run.set.value.head_dim;
  const bool is_mma = run.set.layout == Layout::mma;
  const int64_t rows = static_cast<int64_t>(run.c.heads) * run.c.group, stride = run.longest + 6;
  std::vector<float> weights = made_rows(run.sequences() * rows, stride, run.random);
  for (float& w : weights) w = std::fabs(w) / 64.0f;
  const Array<uint8_t> device_weights(launcher, as_bytes(weights, run.set.value.dtype));
  for (const int splits : run.c.splits) {
    const Array<float> out(launcher, run.sequences() * rows * D);
    const Array<float> partial(launcher, splits > 1 ? run.sequences() * splits * rows * D : 0);
    KvccValueMixParams p{};
    p.cache = device.view();
    p.weights = device_weights.data();
    p.partial = partial.data();
    p.out = out.data();
    p.weights_stride = stride;
    p.group = run.c.group;
    p.splits = splits;
    p.window = is_mma ? run.c.window : 0;
    for (const Part& part : run.set.parts) {
      launcher.launch(part.value.value_mix, is_mma ? kvcc_grid_mma_value_mix(&p) : kvcc_grid_value_mix(&p), &p,
                      "value_mix");
      if (splits > 1) launcher.launch(part.value.value_merge, kvcc_grid_value_merge(&p, D), &p, "value_mix, merge");
    }
    const std::vector<float> found = out.download();
    for (int64_t s = 0; s < run.sequences(); ++s) {
      const int length = run.c.lengths[s];
      std::vector<float> used = rows_of(weights, s, rows, stride, length);
      const int first = p.window > 0 ? std::max(0, length - p.window) : 0;
      for (int64_t i = 0; i < rows * length; ++i) {
        if (i % length < first) used[i] = 0;
      }
      const auto sums = reference::value_mix(run.value.sequences[s].unpacked, used, run.c.heads, D, run.c.group);
      const std::vector<float> mine(found.begin() + s * rows * D, found.begin() + (s + 1) * rows * D);
      const std::vector<double> bounds = mix_bounds(run, s, used, sums, splits);
      const std::string off = beyond("splits " + std::to_string(splits) + ", sequence " + std::to_string(s), mine,
                                     sums.value, [&](size_t i) { return bounds[i] + 1e-30; });
      if (!off.empty()) return off;
    }
  }
  return "";
}

std::string check_attention(Launcher& launcher, Run& run) {
  std::mt19937 order(run.c.seed), same(run.c.seed);  // one page table serves both tensors
  const DeviceTensor keys(launcher, run.key, true, order), values(launcher, run.value, true, same);
  const int D = run.set.value.head_dim;
  const int64_t rows = static_cast<int64_t>(run.c.heads) * run.c.group;
  const Array<uint8_t> query(launcher, as_bytes(run.query, run.set.key.dtype));
  const Array<float> base[] = {{launcher, run.rotary.base_cosine}, {launcher, run.rotary.base_sine}};
  const Array<uint16_t> relative[] = {{launcher, run.rotary.relative_cosine}, {launcher, run.rotary.relative_sine}};
  for (const int splits : run.c.splits) {
    std::vector<float> earlier;
    for (const bool again : {false, true}) {
      const Array<float> out(launcher, run.sequences() * rows * D);
      const Array<float> partial(launcher, splits > 1 ? run.sequences() * splits * rows * (D + 2) : 0);
      KvccAttentionParams p{};
      p.key = keys.view();
      p.value = values.view();
      p.value.page_table = p.key.page_table;
      p.rope = device_rope(base, relative);
      p.query = query.data();
      p.partial = partial.data();
      p.out = out.data();
      p.multiplier = run.multiplier();
      p.group = run.c.group;
      p.splits = splits;
      p.window = run.c.window;
      for (const Part& part : run.set.parts) {
        launcher.launch(part.attention, kvcc_grid_mma_attention(&p), &p, "attention");
        if (splits > 1) {
          launcher.launch(part.attention_merge, kvcc_grid_mma_attention_merge(&p), &p, "attention, merge");
        }
      }
      const std::vector<float> found = out.download();
      if (again) {
        const std::string off = first_difference("a second launch", found, earlier);
        if (!off.empty()) return off;
        continue;
      }
      earlier = found;
      for (int64_t s = 0; s < run.sequences(); ++s) {
        reference::AttentionShape shape;
        shape.heads = run.c.heads;
        shape.key_dim = run.set.key.head_dim;
        shape.value_dim = D;
        shape.group = run.c.group;
        shape.window = run.c.window;
        shape.multiplier = run.multiplier();
        const auto sums = reference::attention(run.key.sequences[s].unpacked, run.value.sequences[s].unpacked,
                                               query_of(run, s), shape, run.rotary.rotation);
        const std::vector<float> mine(found.begin() + s * rows * D, found.begin() + (s + 1) * rows * D);
        const std::vector<double> bounds = attention_bounds(run, s, sums);
        const std::string off = beyond("splits " + std::to_string(splits) + ", sequence " + std::to_string(s), mine,
                                       sums.value, [&](size_t i) { return bounds[i] + 1e-30; });
        if (!off.empty()) return off;
      }
    }
  }
  return "";
}

}  // namespace kvcc::gpu
