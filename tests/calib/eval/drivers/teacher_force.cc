// teacher_force MODEL CODEBOOK IDS PREFIX exact|quantised led|free [f32|i16|f64 [UNITS]]: prefills the first PREFIX of
// the ids (raw int32) into the packed and the simulated cache, then runs the rest one by one through both, whatever
// they predict. f64: both attend in double, each by its own program.
//
// led: both caches get the same rows to keep, so that what differs is what packing, appending and attention make of
// them. The rows are those of eval's own cache in one pass over all ids; with exact prefill, which eval has not, those
// of the simulated run. free: each run keeps its own rows. Quantising is chaotic then: one unit in the last place flips
// a code, whose step flips others in the layers above, and soon two runs differ as if their noise was drawn anew. A
// factor 1 + PERTURB z (in the environment; z normal) on what the simulated cache answers shows it without a packed
// one.
//
// Prints one JSON object of lists, one entry a token: "packed" and "simulated", the ids they would pick; "margin",
// between the simulated cache's two greatest logits; "difference", the largest of a logit; "packed_nll" and
// "simulated_nll" of the id that follows. With quantised prefill, but not f64, also "full…", those of eval's cache, and
// "full_difference" from the simulated one. "rows" and "differing_rows": numbers that the caches give back at the end,
// and how many of them are not the same bits.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "calib/cli/packed_cache.h"
#include "calib/eval/incremental_cache.h"
#include "calib/model/generate.h"
#include "formats/store/codebook.h"
#include "tests/calib/eval/precise_cache.h"

namespace {

using namespace kvcc;

std::vector<int32_t> read_ids(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<int32_t> ids(bytes.size() / 4);
  std::memcpy(ids.data(), bytes.data(), ids.size() * 4);
  return ids;
}

int64_t best(const at::Tensor& logits) { return logits.argmax().item<int64_t>(); }
double margin(const at::Tensor& logits) {
  const at::Tensor two = std::get<0>(logits.topk(2));
  return (two[0] - two[1]).item<double>();
}
double difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }
double nll(const at::Tensor& logits, int32_t id) { return -at::log_softmax(logits, 0)[id].item<double>(); }

/// Keys before RoPE and values of all tokens by layer, [T, H, D].
struct TeacherRows {
  TeacherRows(int layers, int64_t tokens) : key(layers), value(layers), tokens(tokens) {}
  void set(int layer, int64_t first, const at::Tensor& k, const at::Tensor& v) {
    for (const auto& [store, x] : {std::pair{&key.at(layer), &k}, std::pair{&value.at(layer), &v}}) {
      if (!store->defined()) *store = at::empty({tokens, x->size(1), x->size(2)}, at::kFloat);
      store->narrow(0, first, x->size(0)).copy_(*x);
    }
  }
  std::vector<at::Tensor> key, value;
  int64_t tokens;
};

/// Eval's cache, which also writes down what it is given.
class RecordingTap : public SimulatedCache {
 public:
  RecordingTap(const Codebook& codebook, int layers, TeacherRows& rows)
      : SimulatedCache(codebook, layers, at::get_num_threads()), rows_(rows) {}
  void before_rope(int layer, at::Tensor& key, at::Tensor& value) override {
    rows_.set(layer, 0, key[0], value[0]);
    SimulatedCache::before_rope(layer, key, value);
  }

 private:
  TeacherRows& rows_;
};

enum class Lead { none, record, follow };

/// A cache that writes its rows down, or is given those of another run in their place.
class LedCache : public AttentionCache {
 public:
  LedCache(AttentionCache& cache, TeacherRows& rows, Lead lead, double perturb = 0)
      : cache_(cache), rows_(rows), lead_(lead), perturb_(perturb) {}
  at::Tensor attend(int layer, int64_t first, const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& value) override {
    const auto [k, v] = kept(layer, first, key, value);
    const at::Tensor mixed = cache_.attend(layer, first, query, k, v);
    return perturb_ == 0 ? mixed : mixed * (1 + perturb_ * at::randn(mixed.sizes()));
  }
  void append(int layer, int64_t first, const at::Tensor& key, const at::Tensor& value) override {
    const auto [k, v] = kept(layer, first, key, value);
    cache_.append(layer, first, k, v);
  }
  std::pair<at::Tensor, at::Tensor> read(int layer, int64_t count) const override { return cache_.read(layer, count); }

 private:
  std::pair<at::Tensor, at::Tensor> kept(int layer, int64_t first, const at::Tensor& key, const at::Tensor& value) {
    if (lead_ == Lead::record) rows_.set(layer, first, key, value);
    if (lead_ != Lead::follow) return {key, value};
    return {rows_.key[layer].narrow(0, first, key.size(0)), rows_.value[layer].narrow(0, first, key.size(0))};
  }
  AttentionCache& cache_;
  TeacherRows& rows_;
  Lead lead_;
  double perturb_;
};

struct Arguments {
  std::string model, codebook, ids, prefill, lead, arithmetic = "f32", units;
  size_t prefix = 0;
};

nlohmann::ordered_json run(const Arguments& o) {
  const ModelFiles files = open_model(o.model);
  const Codebook codebook = read_codebook(o.codebook);
  const std::vector<int32_t> ids = read_ids(o.ids);
  const PrefillMode mode = o.prefill == "exact" ? PrefillMode::exact : PrefillMode::quantised;
  const bool led = o.lead == "led", precise = o.arithmetic == "f64";
  const bool has_full = mode == PrefillMode::quantised && !precise;  // eval attends in f32
  const int threads = at::get_num_threads();
  const c10::NoGradGuard no_gradient;
  const Decoder decoder(files);
  const int layers = decoder.layers();
  KvccOptions options{};
  options.size = sizeof options;
  options.threads = threads;
  options.arithmetic = precise ? 2 : o.arithmetic == "i16" ? 1 : 0;
  options.units = o.units.empty() ? nullptr : o.units.c_str();
  const cli::PackedArtifact artifact = cli::open_packed_artifact(o.codebook, false);
  cli::PackedCache packed_cache(artifact.get(), decoder.rope(), options);
  std::unique_ptr<AttentionCache> simulated_cache;
  if (precise) {
    simulated_cache =
        std::make_unique<test::PreciseCache>(codebook, decoder, static_cast<int64_t>(ids.size()), threads);
  } else {
    simulated_cache = std::make_unique<IncrementalCache>(codebook, decoder.rope(), layers, threads);
  }

  TeacherRows rows(layers, static_cast<int64_t>(ids.size()));
  at::Tensor full;
  if (has_full) {
    RecordingTap tap(codebook, layers, rows);
    full = decoder.forward(ids_tensor(ids), &tap)[0];
  }
  const char* perturb = std::getenv("PERTURB");
  LedCache packed(packed_cache, rows, led ? Lead::follow : Lead::none);
  LedCache simulated(*simulated_cache, rows,
                     !led       ? Lead::none
                     : has_full ? Lead::follow
                                : Lead::record,
                     perturb == nullptr ? 0 : std::atof(perturb));

  nlohmann::ordered_json out;
  const auto compare = [&](size_t position, const at::Tensor& s, const at::Tensor& p) {
    const int32_t next = ids.at(position + 1);
    const auto add = [&](const std::string& name, const at::Tensor& logits) {
      out[name].push_back(best(logits));
      out[name + "_nll"].push_back(nll(logits, next));
    };
    add("simulated", s);
    add("packed", p);
    out["margin"].push_back(margin(s));
    out["difference"].push_back(difference(p, s));
    if (!has_full) return;
    const at::Tensor f = decoder.logits(full.narrow(0, static_cast<int64_t>(position), 1))[0];
    add("full", f);
    out["full_difference"].push_back(difference(f, s));
  };
  const std::span<const int32_t> prompt(ids.data(), o.prefix);
  const at::Tensor first = prefill(decoder, prompt, 0, simulated, mode);
  compare(o.prefix - 1, first, prefill(decoder, prompt, 0, packed, mode));
  for (size_t i = o.prefix; i + 1 < ids.size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    const at::Tensor logits = decode_step(decoder, ids[i], position, simulated);
    compare(i, logits, decode_step(decoder, ids[i], position, packed));
  }
  int64_t all = 0, differing = 0;
  for (int l = 0; l < layers; ++l) {
    const auto count = static_cast<int64_t>(ids.size()) - 1;
    const auto [pk, pv] = packed.read(l, count);
    const auto [sk, sv] = simulated.read(l, count);
    all += pk.numel() + pv.numel();
    differing += pk.ne(sk).sum().item<int64_t>() + pv.ne(sv).sum().item<int64_t>();
  }
  out["rows"] = all;
  out["differing_rows"] = differing;
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7 || argc > 9) {
    std::fputs("teacher_force MODEL CODEBOOK IDS PREFIX exact|quantised led|free [f32|i16|f64 [UNITS]]\n", stderr);
    return 2;
  }
  try {
    Arguments o{argv[1], argv[2], argv[3], argv[5], argv[6], argc > 7 ? argv[7] : "f32", argc > 8 ? argv[8] : ""};
    o.prefix = std::stoul(argv[4]);
    std::printf("%s\n", run(o).dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "teacher_force: %s\n", error.what());
    return 1;
  }
}
