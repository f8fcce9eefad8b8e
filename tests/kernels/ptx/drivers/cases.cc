#include "tests/kernels/ptx/drivers/cases.h"

#include <algorithm>
#include <cstring>

namespace kvcc::test {
namespace {

/// One tensor of a batch: its quantiser, and its cache with the given lengths.
struct Tensor {
  ChannelQuantiser channel;
  TokenQuantiser token;
  bool by_channel = true;
  std::vector<std::vector<float>> rows;  ///< [T, H, D] of each sequence
  MmaBatch batch;

  Tensor(const Options& o, const std::string& prefix, mma::Tensor tensor, bool packed, std::mt19937& random) {
    const int heads = o.number("heads", 2), dim = o.number("dim", 64), bits = o.number(prefix + "bits", 3);
    by_channel = o.text(prefix + "axis", "channel") == "channel";
    const bool sparse = o.text(prefix + "sparse", "none") != "none";
    const std::vector<uint8_t> widths(heads, static_cast<uint8_t>(bits));
    if (by_channel) {
      channel = make_channel_quantiser(heads, dim, widths, sparse, random);
      const std::string threshold = o.text("threshold", "");
      for (int i = 0; !threshold.empty() && i < heads * dim; ++i) {
        channel.scale[i] = 1;
        channel.zero[i] = 0;
        if (sparse) channel.threshold_upper[i] = -(channel.threshold_lower[i] = -std::stof(threshold));
      }
    } else {
      token = make_token_quantiser(heads, dim, widths, sparse ? o.number("tail", 2) : 0, random);
    }
    for (const int32_t length : o.lengths()) rows.push_back(make_rows(length, heads * dim, random));
    reference::CacheOptions options{.sink = o.number("sink", 0), .residual = o.number("residual", 0)};
    const auto all = [&](const auto& q) {
      std::vector<reference::MmaCache> caches;
      for (const auto& x : rows) {
        caches.push_back(packed ? reference::pack_mma(q, tensor, x, options)
                                : reference::make_mma_cache(q, tensor, x.size() / (heads * dim), options));
        const uint32_t capacity = std::max<uint32_t>(caches.back().shape.capacity, sparse ? 512 : 0);
        if (capacity > options.capacity) options.capacity = capacity;
      }
      if (caches.size() > 1 || !packed) {  // once more, with one capacity
        caches.clear();
        for (const auto& x : rows) {
          caches.push_back(packed ? reference::pack_mma(q, tensor, x, options)
                                  : reference::make_mma_cache(q, tensor, x.size() / (heads * dim), options));
        }
      }
      std::mt19937 order(3);  // keys and values share their page table
      return make_batch(caches, order);
    };
    batch = by_channel ? all(channel) : all(token);
  }
  KvccCache cache() {
    KvccCache c = batch.view();
    if (by_channel) set_constants(c, channel);
    return c;
  }
};

void attention(Run& run, std::mt19937& random) {
  const Options& o = run.options;
  Tensor key(o, "", mma::Tensor::key, true, random), value(o, "value_", mma::Tensor::value, true, random);
  const int heads = o.number("heads", 2), dim = o.number("dim", 64), group = o.number("group", 1);
  const int splits = o.number("splits", 1), sequences = static_cast<int>(o.lengths().size());
  const MmaRope rope = make_mma_rope(o.number("rotary", 0), o.text("rope", "none") == "interleaved", 4096);
  const auto query = as_dtype(make_rows(sequences * heads * group, dim, random), o.dtype());
  std::vector<float> out(size_t(sequences) * heads * group * dim, kUnwritten);
  std::vector<float> partial(size_t(sequences) * splits * heads * group * (dim + 2), kUnwritten);
  KvccAttentionParams p{};
  p.key = key.cache();
  p.value = value.cache();
  if (key.batch.page_table != value.batch.page_table) throw std::logic_error("page tables differ");
  p.rope = rope.view();
  p.query = query.data();
  p.partial = splits > 1 ? partial.data() : nullptr;
  p.out = out.data();
  p.multiplier = 0.125f;
  p.group = group;
  p.splits = splits;
  p.window = o.number("window", 0);
  run.trace_pages(key.batch, "key");
  run.trace_pages(value.batch, "value");
  run.launch(p, kvcc_grid_mma_attention(&p));
  if (splits > 1) run.launch(p, kvcc_grid_mma_attention_merge(&p), "_merge");
  run.keep("out", out);
  if (splits > 1) run.keep("partial", partial);
}

void key_scores(Run& run, std::mt19937& random) {
  const Options& o = run.options;
  Tensor key(o, "", mma::Tensor::key, true, random);
  const int heads = o.number("heads", 2), dim = o.number("dim", 64), group = o.number("group", 1);
  const int sequences = static_cast<int>(o.lengths().size());
  const MmaRope rope = make_mma_rope(o.number("rotary", 0), o.text("rope", "none") == "interleaved", 4096);
  const auto query = as_dtype(make_rows(sequences * heads * group, dim, random), o.dtype());
  KvccMmaKeyScoresParams p{};
  p.cache = key.cache();
  p.scores_stride = *std::max_element(key.batch.lengths.begin(), key.batch.lengths.end());
  std::vector<float> scores(size_t(sequences) * heads * group * p.scores_stride, kUnwritten);
  p.rope = rope.view();
  p.query = query.data();
  p.scores = scores.data();
  p.multiplier = 0.125f;
  p.group = group;
  p.splits = o.number("splits", 1);
  p.window = o.number("window", 0);
  run.trace_pages(key.batch, "key");
  run.launch(p, kvcc_grid_mma_key_scores(&p));
  run.keep("scores", scores);
}

void value_mix(Run& run, std::mt19937& random) {
  const Options& o = run.options;
  Tensor value(o, "", mma::Tensor::value, true, random);
  const int heads = o.number("heads", 2), dim = o.number("dim", 64), group = o.number("group", 1);
  const int splits = o.number("splits", 1), sequences = static_cast<int>(o.lengths().size());
  KvccValueMixParams p{};
  p.cache = value.cache();
  p.weights_stride = *std::max_element(value.batch.lengths.begin(), value.batch.lengths.end());
  std::vector<float> rows = make_rows(sequences * heads * group, p.weights_stride, random);
  if (o.text("weights", "made") == "flat") std::fill(rows.begin(), rows.end(), 0.015625f);
  const auto weights = as_dtype(rows, o.dtype());
  std::vector<float> out(size_t(sequences) * heads * group * dim, kUnwritten), partial(out.size() * splits, kUnwritten);
  p.weights = weights.data();
  p.partial = splits > 1 ? partial.data() : nullptr;
  p.out = out.data();
  p.group = group;
  p.splits = splits;
  p.window = o.number("window", 0);
  run.trace_pages(value.batch, "value");
  run.launch(p, kvcc_grid_mma_value_mix(&p));
  if (splits > 1) run.launch(p, kvcc_grid_value_merge(&p, dim), "_merge");
  run.keep("out", out);
  if (splits > 1) run.keep("partial", partial);
}

void pack(Run& run, mma::Tensor tensor, std::mt19937& random) {
  const Options& o = run.options;
  Tensor target(o, "", tensor, false, random);
  const int sequences = static_cast<int>(o.lengths().size());
  const size_t columns = static_cast<size_t>(o.number("heads", 2)) * o.number("dim", 64);
  const int longest = *std::max_element(target.batch.lengths.begin(), target.batch.lengths.end());
  const int a_call = o.number("calls", 0) ? o.number("calls", 0) : longest;
  uint32_t status = 0;
  // All sequences are given the same count: those that are shorter end earlier.
  for (int first = 0; first < longest; first += a_call) {
    std::vector<uint8_t> bytes;
    const int count =
        std::min(a_call, *std::min_element(target.batch.lengths.begin(), target.batch.lengths.end()) - first);
    if (count <= 0) break;
    for (const auto& rows : target.rows) {
      const auto part = as_dtype({rows.begin() + first * columns, rows.begin() + (first + count) * columns}, o.dtype());
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
    const std::vector<int32_t> firsts(sequences, first);
    std::vector<uint32_t> selected(size_t(sequences) * count * 2 * std::max(target.token.tail, 1), 0);
    std::vector<float> inliers(size_t(sequences) * count * 2, kUnwritten);
    KvccPackParams p{};
    p.cache = target.cache();
    p.x = bytes.data();
    p.first = firsts.data();
    p.status = &status;
    p.count = count;
    if (!target.by_channel) {
      p.selected = selected.data();
      p.inliers = inliers.data();
      run.launch(p, kvcc_grid_mma_pack_select(&p), "_select");
      run.keep("inliers", inliers);
      if (target.token.tail > 0) run.keep("selected", selected);
    }
    run.launch(p, kvcc_grid_mma_pack(&p));
  }
  run.keep("pages", target.batch.pages);
  run.keep("exact", target.batch.exact);
  run.keep("needed", target.batch.needed);
  run.keep("status", std::vector<uint32_t>{status});
}

void dequantise(Run& run, mma::Tensor tensor, std::mt19937& random) {
  const Options& o = run.options;
  Tensor from(o, "", tensor, true, random);
  const int heads = o.number("heads", 2), dim = o.number("dim", 64), sequences = static_cast<int>(o.lengths().size());
  KvccDequantiseParams p{};
  p.cache = from.cache();
  p.count = *std::max_element(from.batch.lengths.begin(), from.batch.lengths.end());
  std::vector<float> out(size_t(sequences) * p.count * heads * dim, kUnwritten);
  const std::vector<int32_t> first(sequences, 0);
  p.out = out.data();
  p.first = first.data();
  run.launch(p, kvcc_grid_mma_dequantise(&p));
  run.keep("out", out);
}

void linear_key_scores(Run& run, std::mt19937& random) {
  const Options& o = run.options;
  const int heads = o.number("heads", 2), dim = o.number("dim", 64), group = o.number("group", 1);
  const auto q = make_channel_quantiser(heads, dim, std::vector<uint8_t>(heads, o.number("bits", 3)),
                                        o.text("sparse", "none") != "none", random);
  const int32_t length = o.lengths()[0];
  auto cache = reference::pack(q, make_rows(length, heads * dim, random),
                               {.sink = o.number("sink", 0), .residual = o.number("residual", 0)});
  const auto rope = make_rope(o.number("rotary", 0), o.text("rope", "none") == "interleaved", length);
  const auto query = as_dtype(make_rows(heads * group, dim, random), o.dtype());
  std::vector<float> scores(size_t(heads) * group * length, kUnwritten);
  KvccKeyScoresParams p{};
  p.cache = view(cache, &length);
  set_constants(p.cache, q);
  p.query = query.data();
  p.cosine = rope.cosine.data();
  p.sine = rope.sine.data();
  p.scores = scores.data();
  p.scores_stride = length;
  p.multiplier = 0.125f;
  p.group = group;
  p.max_length = length;
  run.launch(p, kvcc_grid_key_scores(&p, dim));
  run.keep("scores", scores);
}

void linear_pack_value(Run& run, std::mt19937& random) {
  const Options& o = run.options;
  const int heads = o.number("heads", 2), dim = o.number("dim", 64), tokens = o.lengths()[0];
  const auto q = make_token_quantiser(heads, dim, std::vector<uint8_t>(heads, o.number("bits", 3)),
                                      o.text("sparse", "none") != "none" ? 2 : 0, random);
  auto cache = reference::make_cache(q, tokens, {.sink = o.number("sink", 0)});
  const auto x = as_dtype(make_rows(tokens, heads * dim, random), o.dtype());
  const int32_t first = 0;
  uint32_t status = 0;
  KvccPackParams p{};
  p.cache = view(cache, nullptr);
  p.x = x.data();
  p.first = &first;
  p.status = &status;
  p.count = tokens;
  run.launch(p, kvcc_grid_pack_token(&p));
  run.keep("pages", cache.pages);
  run.keep("exact", cache.exact);
  run.keep("status", std::vector<uint32_t>{status});
}

}  // namespace

void run_case(Run& run) {
  std::mt19937 random(20);
  const std::string family = run.options.text("family", ""), layout = run.options.text("layout", "mma-1");
  if (layout == "linear-1" && family == "key_scores") return linear_key_scores(run, random);
  if (layout == "linear-1" && family == "pack_value") return linear_pack_value(run, random);
  if (layout == "vector-1") return run_vector_case(run, family);
  if (layout != "mma-1") throw std::runtime_error("no such case");
  if (family == "attention") return attention(run, random);
  if (family == "key_scores") return key_scores(run, random);
  if (family == "value_mix") return value_mix(run, random);
  if (family == "pack_key") return pack(run, mma::Tensor::key, random);
  if (family == "pack_value") return pack(run, mma::Tensor::value, random);
  if (family == "dequantise_key") return dequantise(run, mma::Tensor::key, random);
  if (family == "dequantise_value") return dequantise(run, mma::Tensor::value, random);
  throw std::runtime_error("no such family: " + family);
}

}  // namespace kvcc::test
