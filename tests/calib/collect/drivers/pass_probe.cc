// pass_probe IDS MODEL OUT [MODEL OUT ...]: forward and backward passes over ids (int32 [T], raw) of each model. Raw
// little-endian f32 into folder OUT: logits, and of each layer N with a cache N.key, N.value, N.key_grad, N.value_grad;
// the same of a pass that runs layers twice (again-N.*) and of one whose weights stay in their files as well
// (streamed-N.*).
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "calib/collect/sample_pass.h"

namespace {

void write(const std::string& path, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(flat.const_data_ptr()), static_cast<std::streamsize>(flat.nbytes()));
}

void run_pass(const kvcc::Decoder& decoder, const std::vector<int32_t>& ids, bool recompute,
              const std::string& prefix) {
  kvcc::SamplePass pass;
  pass.recompute = recompute;
  pass.done = [&](int layer, const kvcc::LayerActs& acts) {
    const std::string stem = prefix + std::to_string(layer);
    write(stem + ".key", acts.key);
    write(stem + ".value", acts.value);
    write(stem + ".key_grad", acts.key_grad);
    write(stem + ".value_grad", acts.value_grad);
  };
  kvcc::run_sample(decoder, ids, pass);
}

void run(const std::vector<int32_t>& ids, const std::string& model, const std::string& out) {
  const kvcc::ModelFiles files = kvcc::open_model(model);
  const kvcc::Decoder decoder(files), streamed(files, {.streamed = true});
  {
    const c10::NoGradGuard no_gradient;
    write(out + "/logits", decoder.logits(decoder.forward(kvcc::ids_tensor(ids))[0]));
  }
  run_pass(decoder, ids, false, out + "/");
  run_pass(decoder, ids, true, out + "/again-");
  run_pass(streamed, ids, true, out + "/streamed-");
}

}  // namespace

int main(int argc, char** argv) {
  std::ifstream in(argv[1], std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<int32_t> ids(bytes.size() / 4);
  std::memcpy(ids.data(), bytes.data(), ids.size() * 4);
  int failed = 0;
  for (int i = 2; i + 1 < argc; i += 2) {
    try {
      run(ids, argv[i], argv[i + 1]);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", argv[i], error.what());
      failed = 1;
    }
  }
  return failed;
}
