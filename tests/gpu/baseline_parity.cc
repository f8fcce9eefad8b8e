// The kernels that packed caches are timed against, on small made data against sums in double: a baseline that is wrong
// would be no baseline.
#include <cmath>
#include <optional>
#include <random>

#include "tests/gpu/baseline/baseline.h"
#include "tests/gpu/baseline/fp16.cuh"
#include "tests/gpu/baseline/kvquant.cuh"
#include "tests/gpu/case.h"
#include "tests/gpu/parity.h"

namespace kvcc::gpu {
namespace {

std::vector<uint16_t> halves(const std::vector<float>& x) {
  std::vector<uint16_t> out;
  for (const float v : x) out.push_back(float_to_half(v));
  return out;
}

/// Sequences of fp16 keys and values in the order of fp16.cuh.
struct Fp16Data {
  int D, heads, group;
  std::vector<int32_t> lengths, table;
  int max_pages = 0;
  std::vector<std::vector<float>> key, value, query, weights;  ///< a sequence each
  int64_t stride = 0;
  std::vector<uint16_t> key_pages, value_pages;
};

Fp16Data make_fp16(int D, int heads, int group, const std::vector<int32_t>& lengths) {
  Fp16Data data{D, heads, group, lengths, {}, 0, {}, {}, {}, {}, 0, {}, {}};
  std::mt19937 random(static_cast<uint32_t>(D + heads));
  for (const int length : lengths) {
    data.max_pages = std::max(data.max_pages, (length + 63) / 64);
    data.stride = std::max<int64_t>(data.stride, (length + 3) / 2 * 2);
  }
  const int pool = data.max_pages * static_cast<int>(lengths.size());
  const size_t tile = static_cast<size_t>(64) * D;
  data.key_pages.assign(pool * heads * tile, 0);
  data.value_pages = data.key_pages;
  for (int i = 0; i < pool; ++i) data.table.push_back((i * 7 + 3) % pool == i ? i : pool - 1 - i);
  for (size_t s = 0; s < lengths.size(); ++s) {
    data.key.push_back(made_rows(lengths[s], heads * D, random));
    data.value.push_back(made_rows(lengths[s], heads * D, random));
    data.query.push_back(made_rows(heads * group, D, random));
    data.weights.push_back(made_rows(heads * group, data.stride, random));
    for (int t = 0; t < lengths[s]; ++t) {
      const size_t page = data.table[s * data.max_pages + t / 64];
      for (int i = 0; i < heads * D; ++i) {
        const size_t first = (page * heads + i / D) * tile;
        data.key_pages[first + fp16_key_place(D, t % 64, i % D)] = float_to_half(data.key[s][t * heads * D + i]);
        data.value_pages[first + fp16_value_place(D, t % 64, i % D)] = float_to_half(data.value[s][t * heads * D + i]);
      }
    }
  }
  return data;
}

std::string check_fp16(Launcher& launcher, const Fp16Data& data, const std::string& family) {
  const Fp16Kernels kernels = fp16_kernels(data.D);
  const int64_t rows = static_cast<int64_t>(data.heads) * data.group, sequences = data.lengths.size();
  const auto flat = [](const std::vector<std::vector<float>>& all) {
    std::vector<float> out;
    for (const auto& part : all) out.insert(out.end(), part.begin(), part.end());
    return halves(out);
  };
  const Array<uint16_t> keys(launcher, data.key_pages), values(launcher, data.value_pages);
  const Array<uint16_t> query(launcher, flat(data.query)), weights(launcher, flat(data.weights));
  const Array<int32_t> table(launcher, data.table), lengths(launcher, data.lengths);
  for (const int splits : {1, 3}) {
    const Array<float> scores(launcher, sequences * rows * data.stride), out(launcher, sequences * rows * data.D);
    const Array<float> partial(launcher, sequences * splits * rows * (data.D + 2));
    Fp16Params p{};
    p.key_pages = reinterpret_cast<const uint8_t*>(keys.data());
    p.value_pages = reinterpret_cast<const uint8_t*>(values.data());
    p.page_table = table.data();
    p.lengths = lengths.data();
    p.query = query.data();
    p.weights = weights.data();
    p.scores = scores.data();
    p.partial = partial.data();
    p.out = out.data();
    p.stride = data.stride;
    p.multiplier = 1.0f / std::sqrt(static_cast<float>(data.D));
    p.group = data.group;
    p.splits = splits;
    p.sequences = static_cast<int32_t>(sequences);
    p.heads = data.heads;
    p.max_pages = data.max_pages;
    if (family == "key_scores") launcher.launch(kernels.key_scores, fp16_grid(&p), &p, "fp16 key_scores");
    if (family == "value_mix") {
      launcher.launch(kernels.value_mix, fp16_grid(&p), &p, "fp16 value_mix");
      if (splits > 1) launcher.launch(kernels.mix_merge, fp16_merge_grid(&p), &p, "fp16 value_mix, merge");
    }
    if (family == "attention") {
      launcher.launch(kernels.attention, fp16_grid(&p), &p, "fp16 attention");
      if (splits > 1) launcher.launch(kernels.attention_merge, fp16_merge_grid(&p), &p, "fp16 attention, merge");
    }
    const std::vector<float> scores_found = scores.download(), out_found = out.download();
    for (int64_t s = 0; s < sequences; ++s) {
      const std::string what = "splits " + std::to_string(splits) + ", sequence " + std::to_string(s);
      const std::vector<float> mine(out_found.begin() + s * rows * data.D, out_found.begin() + (s + 1) * rows * data.D);
      const int length = data.lengths[s];
      std::string off;
      if (family == "key_scores") {
        const auto sums = reference::key_scores(data.key[s], data.query[s], data.heads, data.D, data.group,
                                                reference::Rotation{}, p.multiplier);
        std::vector<float> found;
        for (int64_t row = 0; row < rows; ++row) {
          const auto from = scores_found.begin() + (s * rows + row) * data.stride;
          found.insert(found.end(), from, from + length);
        }
        off = beyond(what, found, sums.value, [&](size_t i) { return std::ldexp(sums.magnitude[i], -18) + 1e-30; });
      } else if (family == "value_mix") {
        std::vector<float> used;
        for (int64_t row = 0; row < rows; ++row) {
          const auto from = data.weights[s].begin() + row * data.stride;
          used.insert(used.end(), from, from + length);
        }
        const auto sums = reference::value_mix(data.value[s], used, data.heads, data.D, data.group);
        off = beyond(what, mine, sums.value, [&](size_t i) { return std::ldexp(sums.magnitude[i], -18) + 1e-30; });
      } else {
        reference::AttentionShape shape;
        shape.heads = data.heads;
        shape.key_dim = shape.value_dim = data.D;
        shape.group = data.group;
        shape.multiplier = p.multiplier;
        const auto sums = reference::attention(data.key[s], data.value[s], data.query[s], shape, reference::Rotation{});
        off = beyond(what, mine, sums.value, [&](size_t i) { return std::ldexp(sums.magnitude[i], -10) + 1e-6; });
      }
      if (!off.empty()) return off;
    }
  }
  return "";
}

/// Dense codes and a few outliers of T tokens in KVQuant's arrangement.
std::string check_kvquant(Launcher& launcher, int bits, int D, int heads, int group, int tokens,
                          const std::string& family) {
  const KvquantKernels kernels = kvquant_kernels(bits, D);
  std::mt19937 random(static_cast<uint32_t>(bits * 1000 + D));
  std::uniform_real_distribution<float> uniform(-1, 1);
  const bool keys = family != "value_mix", fast = family == "key_scores as benchmarked";
  const int count = 1 << bits, rows = heads * group;
  std::vector<uint32_t> codes(static_cast<size_t>(heads) * (D / 32) * bits * tokens);
  for (uint32_t& word : codes) word = random();
  std::vector<float> levels(keys && !fast ? static_cast<size_t>(heads) * D * count : count), range;
  for (float& level : levels) level = uniform(random);
  for (int t = 0; t < tokens; ++t) {
    range.push_back(0.5f + std::fabs(uniform(random)));
    range.push_back(uniform(random));
  }
  std::vector<int32_t> row_ends(1, 0), columns, first_rows;
  std::vector<float> outliers;
  for (int t = 0; t < tokens; ++t) {
    for (int column = 0; column < heads * D; ++column) {
      if (random() % 61 != 0) continue;
      if (columns.size() % kOutliersAThread == 0) first_rows.push_back(t);
      columns.push_back(column);
      outliers.push_back(4 * uniform(random));
    }
    row_ends.push_back(static_cast<int32_t>(columns.size()));
  }
  const std::vector<float> query = made_rows(rows, D, random), weights = made_rows(rows, tokens, random);

  // What codes and outliers say, [T, H, D].
  std::vector<float> decoded(static_cast<size_t>(tokens) * heads * D);
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < heads * D; ++i) {
      uint32_t words[8];
      for (int w = 0; w < bits; ++w) words[w] = codes[(static_cast<size_t>(i / 32) * bits + w) * tokens + t];
      const uint32_t code = linear::get_code(words, i % 32, bits);
      float x = levels[keys && !fast ? i * count + code : code];
      if (!keys) x = fused_multiply_add(x, range[2 * t], range[2 * t + 1]);
      decoded[static_cast<size_t>(t) * heads * D + i] = x;
    }
    for (int i = row_ends[t]; i < row_ends[t + 1]; ++i) {
      decoded[static_cast<size_t>(t) * heads * D + columns[i]] += outliers[i];
    }
  }
  reference::Rotation rotation;
  for (int i = 0; i < D / 2; ++i) rotation.frequencies.push_back(std::pow(10000.0, -2.0 * i / D));
  const auto sums = keys ? reference::key_scores(decoded, query, heads, D, group, rotation, 1.0f)
                         : reference::value_mix(decoded, weights, heads, D, group);

  const Array<uint32_t> d_codes(launcher, codes);
  const Array<float> d_levels(launcher, levels), d_range(launcher, range), d_outliers(launcher, outliers);
  const Array<int32_t> d_ends(launcher, row_ends), d_columns(launcher, columns), d_rows(launcher, first_rows);
  const Array<float> d_query(launcher, query), d_weights(launcher, weights), out(launcher, sums.value.size());
  out.fill(0);
  const KvquantParams p{d_codes.data(),
                        d_levels.data(),
                        d_range.data(),
                        d_ends.data(),
                        d_columns.data(),
                        d_outliers.data(),
                        d_rows.data(),
                        d_query.data(),
                        d_weights.data(),
                        out.data(),
                        10000.0f,
                        tokens,
                        heads,
                        group,
                        static_cast<int32_t>(columns.size())};
  const Kernel dense = fast ? kernels.fast_key_scores : keys ? kernels.key_scores : kernels.value_mix;
  launcher.launch(dense, kvquant_grid(&p), &p, "KVQuant-like, dense");
  const Kernel sparse = keys ? kernels.key_outliers : kernels.value_outliers;
  launcher.launch(sparse, kvquant_outlier_grid(&p), &p, "KVQuant-like, outliers");
  const int bound = fast ? -8 : -12;
  return beyond("sums", out.download(), sums.value,
                [&](size_t i) { return std::ldexp(sums.magnitude[i], bound) + 1e-30; });
}

}  // namespace

std::vector<Checks> baseline_checks() {
  std::vector<Checks> all;
  for (const int D : {64, 128}) {
    auto data = std::make_shared<std::optional<Fp16Data>>();
    Checks checks{"baseline fp16, head_dim " + std::to_string(D), {}, [data] { data->reset(); }};
    for (const char* family : {"key_scores", "value_mix", "attention"}) {
      checks.checks.push_back({family, [data, D, family](Launcher& launcher) {
                                 if (!*data) *data = make_fp16(D, 2, D == 64 ? 4 : 1, {130, 0, 577, 64});
                                 return check_fp16(launcher, **data, family);
                               }});
    }
    all.push_back(std::move(checks));
    for (const int bits : {3, 4}) {
      Checks kvquant{
          "baseline KVQuant-like, " + std::to_string(bits) + " bits, head_dim " + std::to_string(D), {}, [] {}};
      for (const char* family : {"key_scores as deployed", "key_scores as benchmarked", "value_mix"}) {
        kvquant.checks.push_back({family, [bits, D, family](Launcher& launcher) {
                                    return check_kvquant(launcher, bits, D, 2, D == 64 ? 3 : 1, 300, family);
                                  }});
      }
      all.push_back(std::move(kvquant));
    }
  }
  return all;
}

}  // namespace kvcc::gpu
