// ptx_run SOURCE.so SYMBOL PTX.so… -- NAME=VALUE…: one made-up case of a family run on the emulator, by the unit's
// source and by each translation of its PTX. Prints "OUTPUT BYTES WRITTEN" a line for each array that the launches
// write, and fails, naming the first byte, where a translation's bytes are not the source's. Names (and defaults):
// family, layout=mma-1, dim=64, bits=3, axis, sparse, value_bits, value_axis, value_sparse, rope=none, rotary=0,
// group=1, dtype=f16, heads=2, lengths=131 (comma), sink=0, residual=0, splits=1, window=0, calls=0 (pack: tokens a
// call), threshold (of outliers; channel axis), tail=2, weights=made (or flat), order, trace=FILE (of the last library,
// translated with
// --trace). Families that read codes also print "TENSOR_records COUNT 0".
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <sstream>

#include "kernels/emulator/emulator.h"
#include "tests/kernels/mma_cases.h"

// As device memory is: pages are 128-byte aligned by contract, and the trace counts sectors.
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = std::aligned_alloc(128, (bytes + 127) / 128 * 128);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

using namespace kvcc;
using namespace kvcc::test;

class Options {
 public:
  explicit Options(char** begin, char** end) {
    for (; begin != end; ++begin) {
      const std::string text = *begin;
      values_[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    }
  }
  std::string text(const std::string& name, const std::string& otherwise) const {
    const auto at = values_.find(name);
    return at == values_.end() ? otherwise : at->second;
  }
  int number(const std::string& name, int otherwise) const { return std::stoi(text(name, std::to_string(otherwise))); }
  std::vector<int32_t> lengths() const {
    std::vector<int32_t> out;
    std::istringstream list(text("lengths", "131"));
    for (std::string one; std::getline(list, one, ',');) out.push_back(std::stoi(one));
    return out;
  }
  device::Dtype dtype() const {
    const std::string name = text("dtype", "f16");
    return name == "f16" ? device::Dtype::f16 : name == "bf16" ? device::Dtype::bf16 : device::Dtype::f32;
  }

 private:
  std::map<std::string, std::string> values_;
};

/// The entries of a unit, from its source or its PTX.
class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }
  template <class T>
  T* find(const std::string& symbol) const {
    return reinterpret_cast<T*>(dlsym(handle_, symbol.c_str()));
  }
  template <class T>
  T& at(const std::string& symbol) const {
    T* const found = find<T>(symbol);
    if (found == nullptr) throw std::runtime_error("no symbol " + symbol);
    return *found;
  }

 private:
  void* handle_;
};

struct Run {
  const Options& options;
  const Library& library;
  const Library& source;  ///< states the threads and bytes of dynamic shared memory
  std::string symbol;
  std::vector<std::pair<std::string, std::vector<uint8_t>>> outputs{};
  std::vector<std::pair<std::string, size_t>> counts{};  ///< of what the case holds

  template <class Params>
  void launch(const Params& params, KvccGrid grid, const std::string& suffix = "") const {
    const std::string name = symbol + suffix;
    const uint32_t threads = source.at<const uint32_t>(name + "_threads");
    if (library.at<const uint32_t>(name + "_threads") != threads) throw std::runtime_error(name + ": threads differ");
    emulator::Options how;
    const std::string order = options.text("order", "sequential");
    how.order = order == "random"     ? emulator::Order::random
                : order == "reversed" ? emulator::Order::reversed
                                      : emulator::Order::sequential;
    emulator::launch(&library.at<void(const void*)>(name), &params, grid, static_cast<int>(threads),
                     source.at<const uint32_t>(name + "_shared_bytes"), how, name);
  }
  template <class T>
  void keep(const std::string& name, const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    outputs.emplace_back(name, std::vector<uint8_t>(bytes, bytes + values.size() * sizeof(T)));
  }
  /// Tells the trace the parts of a tensor's pages, "TENSOR codes" and so on; notes how many records it holds.
  void trace_pages(const MmaBatch& batch, const std::string& tensor) {
    size_t records = 0;
    for (const uint32_t count : batch.needed) records += count;
    counts.emplace_back(tensor + "_records", records);
    const auto region = library.find<void(const char*, const void*, uint64_t)>("kvcc_trace_region");
    if (region == nullptr || options.text("trace", "").empty()) return;
    const mma::PageShape& shape = batch.shape.shape;
    const uint64_t bytes = mma::page_bytes(shape);
    const std::pair<const char*, uint64_t> parts[] = {{" codes", 0},
                                                      {" ranges", mma::ranges_offset(shape)},
                                                      {" ends", mma::ends_offset(shape)},
                                                      {" records", mma::records_offset(shape)},
                                                      {"", bytes}};
    for (size_t at = 0; at < batch.pages.size(); at += bytes) {
      for (int i = 0; i < 4; ++i) {
        const uint64_t begin = parts[i].second, end = parts[i + 1].second;
        if (end > begin) region((tensor + parts[i].first).c_str(), batch.pages.data() + at + begin, end - begin);
      }
    }
  }
};

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

constexpr float kUnwritten = -12345.0f;

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

/// The case, made anew from one seed so that every run starts from the same bytes.
void run_case(Run& run) {
  std::mt19937 random(20);
  const std::string family = run.options.text("family", ""), layout = run.options.text("layout", "mma-1");
  if (layout == "linear-1" && family == "key_scores") return linear_key_scores(run, random);
  if (layout == "linear-1" && family == "pack_value") return linear_pack_value(run, random);
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

/// Bytes of words that hold something: neither what they began with nor 0.
size_t written(const std::vector<uint8_t>& bytes) {
  size_t count = 0;
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    uint32_t word;
    std::memcpy(&word, bytes.data() + i, 4);
    count += word != 0 && word != float_bits(kUnwritten) ? 4 : 0;
  }
  return count;
}

bool holds_nan(const std::vector<uint8_t>& bytes) {
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    float x;
    std::memcpy(&x, bytes.data() + i, 4);
    if (x != x) return true;
  }
  return false;
}

int main_or_throw(int argc, char** argv) {
  char** const rest = std::find(argv + 3, argv + argc, std::string("--"));
  const Options options(rest == argv + argc ? rest : rest + 1, argv + argc);
  const Library source(argv[1]);
  Run wanted{options, source, source, argv[2], {}};
  run_case(wanted);
  for (char** path = argv + 3; path != rest; ++path) {
    const Library library(*path);
    Run found{options, library, source, argv[2], {}};
    run_case(found);
    for (size_t i = 0; i < wanted.outputs.size(); ++i) {
      const auto& [name, bytes] = wanted.outputs[i];
      const auto& other = found.outputs.at(i).second;
      const auto at = std::mismatch(bytes.begin(), bytes.end(), other.begin(), other.end());
      if (at.first == bytes.end() && at.second == other.end()) continue;
      size_t words = 0;
      for (size_t k = 0; k + 4 <= bytes.size(); k += 4) words += std::memcmp(&bytes[k], &other[k], 4) != 0;
      const size_t first = (at.first - bytes.begin()) / 4 * 4;
      float was = 0, is = 0;
      std::memcpy(&was, &bytes[first], 4);
      std::memcpy(&is, &other[first], 4);
      std::fprintf(stderr,
                   "%s: %s differs from the source's at byte %zu of %zu (%zu words; as floats %.9g, source %.9g)\n",
                   *path, name.c_str(), first, bytes.size(), words, is, was);
      return 1;
    }
    const std::string trace = options.text("trace", "");
    if (!trace.empty() && path + 1 == rest) library.at<void(const char*)>("kvcc_trace_write")(trace.c_str());
  }
  for (const auto& [name, bytes] : wanted.outputs) {
    // NaN is no result, and its bits need not agree.
    if ((name == "out" || name == "scores") && holds_nan(bytes)) throw std::runtime_error(name + " holds NaN");
    std::printf("%s %zu %zu\n", name.c_str(), bytes.size(), written(bytes));
  }
  for (const auto& [name, count] : wanted.counts) std::printf("%s %zu 0\n", name.c_str(), count);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("ptx_run SOURCE.so SYMBOL PTX.so… -- NAME=VALUE…\n", stderr);
    return 2;
  }
  try {
    return main_or_throw(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ptx_run: %s\n", error.what());
    return 1;
  }
}
