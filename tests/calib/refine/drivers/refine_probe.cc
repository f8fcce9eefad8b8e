// refine_probe MODEL CODEBOOK IDS OUT RECOMPUTE: one window of ids (raw int32) forward and back under the artifact's
// codebooks, as kvcc refine runs it. Prints the divergence; OUT gets, in f64, of each layer the gradients of the key's
// vectors, of its transform's A [U, N, N], and the same of the value.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "calib/eval/vector_quantiser.h"
#include "calib/refine/tuning_pass.h"

namespace {

using namespace kvcc;

std::vector<int32_t> read_ids(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  bytes.copy(reinterpret_cast<char*>(ids.data()), bytes.size());
  return ids;
}

void run(const char* const* arguments) {
  at::set_num_threads(1);
  const ModelFiles files = open_model(arguments[1]);
  const Decoder decoder(files);
  const Codebook book = read_codebook(arguments[2]);
  const std::vector<int32_t> ids = read_ids(arguments[3]);
  std::vector<TensorTuner> tuners;
  tuners.reserve(2 * book.layer_index.size());
  Tuners by_layer{std::vector<TensorTuner*>(decoder.layers()), std::vector<TensorTuner*>(decoder.layers()), {}};
  if (book.scheme.value.predicted) by_layer.prediction.resize(decoder.layers());
  for (size_t row = 0; row < book.layer_index.size(); ++row) {
    if (book.scheme.value.predicted) by_layer.prediction.at(book.layer_index[row]) = key_prediction(book, row);
    for (const CacheTensor tensor : {CacheTensor::key, CacheTensor::value}) {
      tuners.emplace_back(vector_quantiser(book, row, tensor), book.scheme.sink, book.scheme.residual, true);
      (tensor == CacheTensor::key ? by_layer.key : by_layer.value).at(book.layer_index[row]) = &tuners.back();
    }
  }
  const at::Tensor exact = decoder.forward(ids_tensor(ids))[0];
  const bool recompute = std::string(arguments[5]) == "1";
  std::printf("%.17g\n", tuning_pass(decoder, ids, exact, by_layer, recompute, 1, "the window"));
  std::ofstream out(arguments[4], std::ios::binary);
  const auto write = [&](const double* numbers, size_t count) {
    out.write(reinterpret_cast<const char*>(numbers), static_cast<std::streamsize>(count * sizeof(double)));
  };
  for (const TensorTuner& tuner : tuners) {
    write(tuner.vector_gradient().data(), tuner.vector_gradient().size());
    for (const at::Tensor& a : tuner.transform_gradient()) {
      write(a.const_data_ptr<double>(), static_cast<size_t>(a.numel()));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  try {
    run(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
