// scheme_chain MODEL IDS SCHEME|CODEBOOK.kvcb…: the exactness chain on a real window. One forward pass over the ids
// (raw int32) keeps every layer's keys, before and after RoPE, and values; then for each scheme and layer what eval
// simulates, the reference codec, and packed bytes unpacked are compared bit for bit over all tokens that are coded.
//
// Prints one JSON object: "forward_seconds" and, for each scheme, "elements" that were coded, how many of them "differ"
// in any of the three, "bytes" packed, and the "seconds" that simulating them took.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "calib/eval/simulated_cache.h"
#include "calib/model/decoder.h"
#include "formats/store/codebook.h"

namespace {

using namespace kvcc;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// [T, H, D] of every layer.
struct KeepingTap : KvTap {
  explicit KeepingTap(int layers) : key_before(layers), key_after(layers), value(layers) {}
  void before_rope(int layer, at::Tensor& key, at::Tensor& v) override {
    key_before.at(layer) = key[0].clone();
    value.at(layer) = v[0].clone();
  }
  void after_rope(int layer, at::Tensor& key) override { key_after.at(layer) = key[0].contiguous().clone(); }
  std::vector<at::Tensor> key_before, key_after, value;
};

struct Sums {
  int64_t elements = 0, differ = 0, bytes = 0;
  double seconds = 0;
};

void compare(const TensorCodec& codec, const Scheme& scheme, const at::Tensor& rows, int threads, Sums& sums) {
  const int64_t tokens = rows.size(0), n = rows.size(1) * rows.size(2);
  const int64_t sink = std::min<int64_t>(scheme.sink, tokens);
  const int64_t end = coded_end(tokens, sink, scheme.residual, codec.block_tokens());
  const std::span<const float> x{rows.const_data_ptr<float>() + sink * n, static_cast<size_t>((end - sink) * n)};
  std::vector<float> simulated(x.size()), decoded(x.size()), unpacked(x.size());
  const double start = now();
  codec.round_trip(x, simulated, threads, "window", sink);
  sums.seconds += now() - start;
  if (x.empty()) return;
  CodedTokens coded;
  codec.encode(x, coded, "window", sink);
  codec.decode(coded, decoded);
  const std::vector<uint8_t> bytes = pack(coded);
  codec.decode(unpack(codec, end - sink, bytes, "window"), unpacked);
  const auto bits = [](float v) {
    uint32_t b;
    std::memcpy(&b, &v, sizeof b);
    return b;
  };
  for (size_t i = 0; i < x.size(); ++i) {
    sums.differ += bits(simulated[i]) != bits(decoded[i]) || bits(decoded[i]) != bits(unpacked[i]);
  }
  sums.elements += static_cast<int64_t>(x.size());
  sums.bytes += static_cast<int64_t>(bytes.size());
}

nlohmann::ordered_json run(const std::string& model, const std::string& ids_path, std::span<char*> schemes) {
  const ModelFiles files = open_model(model);
  std::ifstream in(ids_path, std::ios::binary);
  const std::vector<char> raw{std::istreambuf_iterator<char>(in), {}};
  std::vector<int32_t> ids(raw.size() / sizeof(int32_t));
  std::memcpy(ids.data(), raw.data(), ids.size() * sizeof(int32_t));
  const c10::NoGradGuard no_gradient;
  const Decoder decoder(files);
  const int threads = at::get_num_threads(), layers = decoder.layers();
  const DecoderConfig& c = decoder.config();
  const CacheShape shape{layers, static_cast<int>(c.query_heads), static_cast<int>(c.kv_heads),
                         static_cast<int>(c.head_dim), static_cast<int>(c.head_dim)};
  decoder.forward(ids_tensor(ids));  // weights are read from disk the first time
  double start = now();
  decoder.forward(ids_tensor(ids));
  nlohmann::ordered_json out;
  out["forward_seconds"] = now() - start;
  KeepingTap tap(layers);
  decoder.forward(ids_tensor(ids), &tap);
  for (const std::string text : schemes) {
    std::optional<Codebook> codebook;
    if (text.ends_with(".kvcb")) codebook = read_codebook(text);
    const Scheme scheme = codebook ? codebook->scheme : parse_scheme(text);
    std::optional<SpectralRotations> rotations;  // of this text, as what they are does not matter here
    if (scheme.needs_rotations()) rotations = fit_rotations(decoder, scheme, {ids}, threads, {});
    Sums sums;
    for (int l = 0; l < layers; ++l) {
      for (const CacheTensor tensor : {CacheTensor::key, CacheTensor::value}) {
        const auto codec = codebook ? codec_of(*codebook, l, tensor)
                                    : codec_of(scheme, shape, tensor, l, rotations ? &*rotations : nullptr);
        const at::Tensor& rows = tensor == CacheTensor::value        ? tap.value[l]
                                 : scheme.key.site == Site::pre_rope ? tap.key_before[l]
                                                                     : tap.key_after[l];
        compare(*codec, scheme, rows, threads, sums);
      }
    }
    out[codebook ? short_name(scheme) : text] = {
        {"elements", sums.elements}, {"differ", sums.differ}, {"bytes", sums.bytes}, {"seconds", sums.seconds}};
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("scheme_chain MODEL IDS SCHEME|CODEBOOK.kvcb…\n", stderr);
    return 2;
  }
  try {
    std::printf("%s\n", run(argv[1], argv[2], {argv + 3, static_cast<size_t>(argc - 3)}).dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scheme_chain: %s\n", error.what());
    return 1;
  }
}
