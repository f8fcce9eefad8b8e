// window_rows MODEL CODEBOOK IDS OUT: one window of ids (raw int32) through eval's own cache. OUT gets the rows that
// the cache is given, before it quantises them: of each layer keys before RoPE [T, H, D], then values, f32. Prints the
// window's mean loss as eval counts it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "calib/eval/comparison.h"
#include "calib/eval/simulated_cache.h"
#include "formats/store/codebook.h"

namespace {

using namespace kvcc;

class RecordingTap : public SimulatedCache {
 public:
  RecordingTap(const Codebook& codebook, int layers, std::ofstream& out)
      : SimulatedCache(codebook, layers, at::get_num_threads()), out_(out) {}
  void before_rope(int layer, at::Tensor& key, at::Tensor& value) override {
    for (const at::Tensor* x : {&key, &value}) {
      const at::Tensor rows = x->contiguous();
      out_.write(reinterpret_cast<const char*>(rows.const_data_ptr<float>()),
                 static_cast<std::streamsize>(rows.numel() * sizeof(float)));
    }
    SimulatedCache::before_rope(layer, key, value);
  }

 private:
  std::ofstream& out_;
};

int run(char** argv) {
  std::ifstream in(argv[3], std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(int32_t));
  const ModelFiles files = open_model(argv[1]);
  const Decoder decoder(files);
  std::ofstream out(argv[4], std::ios::binary);
  RecordingTap tap(read_codebook(argv[2]), decoder.layers(), out);
  const at::Tensor normed = decoder.forward(ids_tensor(ids), &tap)[0];
  const int64_t predictions = static_cast<int64_t>(ids.size()) - 1;
  Predictions found;
  ReferenceChunk(decoder.logits(normed.narrow(0, 0, predictions)), {ids.begin() + 1, ids.end()}).add_self(found);
  std::printf("%.12g\n", std::accumulate(found.nll.begin(), found.nll.end(), 0.0) / static_cast<double>(predictions));
  return out.flush() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("window_rows MODEL CODEBOOK IDS OUT\n", stderr);
    return 2;
  }
  const c10::NoGradGuard no_gradient;
  try {
    return run(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "window_rows: %s\n", error.what());
    return 1;
  }
}
