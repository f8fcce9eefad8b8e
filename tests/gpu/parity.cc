#include "tests/gpu/parity.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "formats/layout/mma_launch.h"
#include "tests/gpu/device_tensor.h"

namespace kvcc::gpu {
namespace {

constexpr double kRounding = 0x1p-8;  ///< of the bounds that the files of mma-1 state

/// A case in progress.
struct Run {
  Case c;
  const Set& set;
  std::mt19937 random;
  HostTensor key, value;
  Rotary rotary;
  std::vector<float> query;  ///< [S, H * group, D]
  int longest = 0;

  Run(const Case& c_, const Set& set_) : c(c_), set(set_), random(c_.seed) {
    key = make_tensor(c, set.key, set.layout, random);
    value = make_tensor(c, set.value, set.layout, random);
    longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    rotary = make_rotary(set.key, longest + 64, c.factor);
    query = made_rows(sequences() * c.heads * c.group, set.key.head_dim, random);
  }
  int64_t sequences() const { return static_cast<int64_t>(c.lengths.size()); }
  const HostTensor& host(mma::Tensor t) const { return t == mma::Tensor::key ? key : value; }
  const TensorKernels& kernels(const Part& part, mma::Tensor t) const {
    return t == mma::Tensor::key ? part.key : part.value;
  }
  float multiplier() const { return 1.0f / std::sqrt(static_cast<float>(set.key.head_dim)); }
};

// ---- pack ----

/// Packs `count` tokens of the sequences of `cache` (those from `s` on) that begin at first[i].
void pack_call(Launcher& launcher, const Run& run, const HostTensor& host, KvccCache cache, int s,
               const std::vector<int32_t>& first, int count, uint32_t* status) {
  if (count <= 0) return;
  const int64_t columns = static_cast<int64_t>(run.c.heads) * host.spec.head_dim;
  std::vector<float> rows;
  for (size_t i = 0; i < first.size(); ++i) {
    const auto from = host.sequences[s + i].x.begin() + first[i] * columns;
    rows.insert(rows.end(), from, from + count * columns);
  }
  const Array<uint8_t> x(launcher, as_bytes(rows, host.spec.pack_dtype));
  const Array<int32_t> starts(launcher, first);
  const Array<uint32_t> selected(launcher, first.size() * count * 2 * cache.tail);
  const Array<float> inliers(launcher, first.size() * count * 2);
  KvccPackParams p{};
  p.cache = cache;
  p.x = x.data();
  p.first = starts.data();
  p.status = status;
  p.count = count;
  p.selected = selected.data();
  p.inliers = inliers.data();
  for (const Part& part : run.set.parts) {
    const TensorKernels& kernels = run.kernels(part, host.spec.tensor);
    if (kernels.select) launcher.launch(kernels.select, kvcc_grid_mma_pack_select(&p), &p, "pack, select");
    const KvccGrid grid = run.set.layout == Layout::mma             ? kvcc_grid_mma_pack(&p)
                          : host.spec.axis == device::Axis::channel ? kvcc_grid_pack_channel(&p)
                                                                    : kvcc_grid_pack_token(&p);
    launcher.launch(kernels.pack, grid, &p, "pack");
  }
  launcher.wait("pack");
}

std::string check_pack(Launcher& launcher, Run& run, mma::Tensor t) {
  const HostTensor& host = run.host(t);
  const DeviceTensor device(launcher, host, false, run.random);
  const Array<uint32_t> status(launcher, 1);
  status.fill(0);
  // All tokens but those of the residual window: what a sequence has beyond the shortest one, then what all have in
  // common in one ragged call, and the last token of each alone.
  std::vector<int32_t> tokens, first;
  for (const Sequence& s : host.sequences) {
    tokens.push_back(std::max(s.length - run.c.residual, std::min(s.length, run.c.sink)));
  }
  const int32_t common = *std::min_element(tokens.begin(), tokens.end());
  for (size_t s = 0; s < tokens.size(); ++s) {
    first.push_back(tokens[s] - common);
    pack_call(launcher, run, host, device.view(static_cast<int>(s)), static_cast<int>(s), {0}, first.back(),
              status.data());
  }
  pack_call(launcher, run, host, device.view(), 0, first, common - 1, status.data());
  for (int32_t& token : first) token += std::max(common - 1, 0);
  if (common > 0) pack_call(launcher, run, host, device.view(), 0, first, 1, status.data());
  if (const uint32_t bits = status.download()[0]; bits != 0) return "status " + std::to_string(bits) + "; wanted 0";
  return device.compare_packed();
}

// ---- dequantise ----

std::string check_dequantise(Launcher& launcher, Run& run, mma::Tensor t) {
  const HostTensor& host = run.host(t);
  const DeviceTensor device(launcher, host, true, run.random);
  const int64_t columns = static_cast<int64_t>(run.c.heads) * host.spec.head_dim;
  for (const bool whole : {true, false}) {
    const int32_t count = whole ? run.longest : 70;
    std::vector<int32_t> first;
    for (const Sequence& s : host.sequences) first.push_back(whole ? 0 : s.length / 3);
    const Array<int32_t> starts(launcher, first);
    const Array<float> out(launcher, run.sequences() * count * columns);
    KvccDequantiseParams p{};
    p.cache = device.view();
    p.out = out.data();
    p.first = starts.data();
    p.count = count;
    for (const Part& part : run.set.parts) {
      const KvccGrid grid =
          run.set.layout == Layout::mma ? kvcc_grid_mma_dequantise(&p) : kvcc_grid_dequantise(&p, host.spec.head_dim);
      launcher.launch(run.kernels(part, t).dequantise, grid, &p, "dequantise");
    }
    std::vector<float> wanted(out.size(), bits_float(0xffffffffu));
    for (size_t s = 0; s < first.size(); ++s) {
      const Sequence& sequence = host.sequences[s];
      const int64_t rows = std::min<int64_t>(count, sequence.length - first[s]);
      std::copy_n(sequence.unpacked.begin() + first[s] * columns, rows * columns,
                  wanted.begin() + static_cast<int64_t>(s) * count * columns);
    }
    const std::string off = first_difference("[S, count, H, D]", out.download(), wanted);
    if (!off.empty()) return off;
  }
  return "";
}

// ---- copy_pages ----

std::string check_copy(Launcher& launcher, Run& run, mma::Tensor t) {
  const HostTensor& host = run.host(t);
  const DeviceTensor device(launcher, host, true, run.random);
  std::vector<int32_t> pairs;
  std::vector<uint8_t> wanted;
  for (size_t s = 0; s < host.sequences.size(); ++s) {
    wanted.insert(wanted.end(), host.sequences[s].wide.begin(), host.sequences[s].wide.end());
  }
  const int32_t total = static_cast<int32_t>(wanted.size() / host.wide_page_bytes);
  for (const int32_t page : device.table()) {
    if (page < 0) continue;
    pairs.push_back(page);
    pairs.push_back(total - 1 - static_cast<int32_t>(pairs.size() / 2));  // the other way round
  }
  const Array<int32_t> device_pairs(launcher, pairs);
  const Array<uint8_t> target(launcher, wanted.size());
  target.fill(0);
  KvccCopyPagesParams p{};
  p.source = device.view().pages;
  p.target = target.data();
  p.pairs = device_pairs.data();
  p.source_page_bytes = host.facts.page_bytes;
  p.target_page_bytes = host.wide_page_bytes;
  p.fixed_bytes = host.fixed_bytes;
  p.lists = host.lists;
  // linear-1 tails are one list of a fixed size
  const bool tails = host.layout == Layout::linear && host.spec.sparse == linear::Sparse::tail;
  p.source_capacity = tails ? 64 * 2 * host.facts.tail : host.facts.sparse_capacity;
  p.target_capacity = tails ? p.source_capacity : host.wide_capacity;
  p.count = total;
  launcher.launch(copy_pages_kernel(), kvcc_grid_copy_pages(&p), &p, "copy_pages");
  std::vector<uint8_t> found = target.download(), ordered(found.size());
  for (int32_t i = 0; i < total; ++i) {
    std::copy_n(found.begin() + (total - 1 - i) * host.wide_page_bytes, host.wide_page_bytes,
                ordered.begin() + i * host.wide_page_bytes);
  }
  return first_difference("bytes of the pages", ordered, wanted);
}

// ---- readers ----

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

/// Cases of a set: heads, group, sink, residual, window, lengths, splits, tail, layer, factor.
std::vector<Case> cases_of(const Set& set) {
  const int tile = set.key.group_tile;
  const bool is_mma = set.layout == Layout::mma;
  std::vector<Case> cases;
  const auto add = [&](Case c) {
    c.set = set.name;
    c.seed = static_cast<uint32_t>(1 + cases.size());
    if (!is_mma) c.window = 0;
    cases.push_back(c);
  };
  add({.heads = 2, .group = 1, .lengths = {130}, .splits = {1, 2}});
  add({.heads = 3,
       .group = tile > 8 ? 16
                : is_mma ? 8
                         : tile,  // linear-1: at most the tile
       .sink = 1,
       .lengths = {200, 65, 0, 64, 1},
       .splits = {1, 3},
       .tail = 3,
       .layer = 1,
       .factor = 1.25});
  add({.heads = 2,
       .group = tile > 8 ? 11 : 3,
       .sink = 4,
       .residual = 37,
       .window = 90,
       .lengths = {300, 141, 98, 131},
       .splits = {1, 2, 5},
       .layer = 2});
  add({.heads = 1, .group = 4, .sink = 70, .residual = 64, .lengths = {333}, .splits = {4}, .layer = 3});
  return cases;
}

}  // namespace

std::string beyond(const std::string& what, const std::vector<float>& found, const std::vector<double>& wanted,
                   const std::function<double(size_t)>& bound) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::fabs(found[i] - wanted[i]) <= bound(i)) continue;  // false for NaN
    return what + ", element " + std::to_string(i) + ": " + std::to_string(found[i]) + "; wanted " +
           std::to_string(wanted[i]) + " within " + std::to_string(bound(i));
  }
  return "";
}

std::vector<Checks> parity_checks() {
  std::vector<Checks> all;
  for (const Set& set : sets()) {
    for (const Case& c : cases_of(set)) {
      auto run = std::make_shared<std::optional<Run>>();
      Checks checks{describe(c), {}, [run] { run->reset(); }};
      const auto add = [&](const std::string& name, const auto& check) {
        checks.checks.push_back({name, [run, c, &set, check](Launcher& launcher) {
                                   if (!*run) run->emplace(c, set);
                                   return check(launcher, **run);
                                 }});
      };
      for (const mma::Tensor t : {mma::Tensor::key, mma::Tensor::value}) {
        const std::string tensor = t == mma::Tensor::key ? " keys" : " values";
        add("pack" + tensor, [t](Launcher& l, Run& r) { return check_pack(l, r, t); });
        add("dequantise" + tensor, [t](Launcher& l, Run& r) { return check_dequantise(l, r, t); });
        add("copy_pages of" + tensor, [t](Launcher& l, Run& r) { return check_copy(l, r, t); });
      }
      if (set.parts[0].key.key_scores) add("key_scores", check_key_scores);
      if (set.parts[0].value.value_mix) add("value_mix", check_value_mix);
      if (set.parts[0].attention) add("attention", check_attention);
      all.push_back(std::move(checks));
    }
  }
  return all;
}

}  // namespace kvcc::gpu
