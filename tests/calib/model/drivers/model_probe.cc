// Runs one part of the decoder for the Python tests; numbers in and out as raw little-endian files.
//   model_probe logits MODEL IDS OUT        ids int32 [T] -> f32 [T, vocab]
//   model_probe greedy MODEL IDS N          prints N ids that follow IDS, one pass per token through the cache
//   model_probe rope THETA ROTARY DIM SCALING JSON T OUT   f32: inverse frequencies, then rotated ones [T, DIM]
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "calib/model/decoder.h"

namespace {

std::vector<int32_t> read_ids(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<int32_t> ids(bytes.size() / 4);
  std::memcpy(ids.data(), bytes.data(), ids.size() * 4);
  return ids;
}

void append(std::ofstream& out, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  out.write(static_cast<const char*>(flat.const_data_ptr()), static_cast<std::streamsize>(flat.nbytes()));
}

void logits(const kvcc::ModelFiles& files, const std::vector<int32_t>& ids, const std::string& path) {
  const kvcc::Decoder decoder(files);
  std::ofstream out(path, std::ios::binary);
  append(out, decoder.logits(decoder.forward(kvcc::ids_tensor(ids))[0]));
}

void greedy(const kvcc::ModelFiles& files, std::vector<int32_t> ids, int64_t count) {
  const c10::NoGradGuard no_gradient;
  const kvcc::Decoder decoder(files);
  kvcc::KvCache cache(decoder.layers(), static_cast<int64_t>(ids.size()) + count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t tokens = static_cast<int64_t>(ids.size());
    const auto angles = decoder.rope().angles(cache.length(), tokens);
    at::Tensor x = decoder.embed(kvcc::ids_tensor(ids));
    for (int l = 0; l < decoder.layers(); ++l) x = decoder.layer(l, x, angles, nullptr, &cache);
    decoder.advance(cache, tokens);
    const at::Tensor last = decoder.logits(decoder.final_norm(x.narrow(1, tokens - 1, 1))[0]);
    ids = {static_cast<int32_t>(last[0].argmax().item<int64_t>())};
    std::printf("%d\n", ids[0]);
  }
}

void rope(char** argv) {
  kvcc::RopeInfo info;
  info.theta = std::stod(argv[0]);
  info.rotary_dim = std::stoi(argv[1]);
  const int64_t dim = std::stol(argv[2]), tokens = std::stol(argv[5]);
  info.scaling = argv[3];
  info.scaling_json = argv[4];
  const kvcc::Rope rope(info);
  std::ofstream out(argv[6], std::ios::binary);
  append(out, rope.inverse_frequencies(tokens));
  append(out, rope.rotate(at::ones({1, tokens, 1, dim}), rope.angles(0, tokens)));
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "rope" && argc == 9) {
    rope(argv + 2);
  } else if ((verb == "logits" || verb == "greedy") && argc == 5) {
    const kvcc::ModelFiles files = kvcc::open_model(argv[2]);
    if (verb == "logits") logits(files, read_ids(argv[3]), argv[4]);
    if (verb == "greedy") greedy(files, read_ids(argv[3]), std::stol(argv[4]));
  } else {
    std::fputs("model_probe logits|greedy|rope …\n", stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
