// dump_model MODEL [TENSOR OUT]: opens a model and prints what kvcc sees of it as JSON, with the SHA-256 of every
// tensor's float32 values; with a tensor, writes its values to OUT instead. Errors go to stderr, with their exit code.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "formats/core/error.h"
#include "formats/core/hash.h"
#include "formats/weights/model_files.h"

namespace {

std::vector<float> values(const kvcc::ModelFiles& model, const kvcc::TensorInfo& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.elements()));
  model.tensors->read(tensor.name, out);
  return out;
}

int dump(const kvcc::ModelFiles& model) {
  nlohmann::ordered_json root;
  const kvcc::DecoderConfig& c = model.config;
  const kvcc::ModelInfo info = kvcc::model_info(model);
  root["name"] = info.name;
  root["architecture"] = c.architecture;
  root["dtype"] = model.dtype;
  root["weights_sha256"] = info.weights_sha256;
  root["hidden"] = c.hidden;
  root["layers"] = c.layers;
  root["query_heads"] = c.query_heads;
  root["kv_heads"] = c.kv_heads;
  root["head_dim"] = c.head_dim;
  root["feed_forward"] = c.feed_forward;
  root["vocab"] = c.vocab;
  root["norm_epsilon"] = c.norm_epsilon;
  root["tied"] = c.tied_embeddings;
  root["attention_bias"] = c.attention_bias;
  root["mlp_bias"] = c.mlp_bias;
  root["max_position"] = c.max_position;
  root["bos"] = c.bos_id;
  root["eos"] = c.eos_id;
  root["rope"] = {{"theta", c.rope.theta},
                  {"kind", c.rope.kind},
                  {"scaling", c.rope.scaling},
                  {"json", c.rope.scaling_json},
                  {"rotary_dim", c.rope.rotary_dim}};
  root["weight_files"] = model.weight_files;
  for (const kvcc::TensorInfo& tensor : model.tensors->tensors()) {
    const std::vector<float> data = values(model, tensor);
    const auto raw = model.tensors->raw(tensor.name);
    const std::string_view bytes(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(float));
    root["tensors"].push_back({{"name", tensor.name},
                               {"shape", tensor.shape},
                               {"type", kvcc::weight_type_name(tensor.type)},
                               {"raw_bytes", raw.size()},
                               {"sha256", kvcc::sha256_hex(bytes)}});
  }
  std::cout << root.dump() << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const kvcc::ModelFiles model = kvcc::open_model(argv[1]);
    if (argc < 4) return dump(model);
    const kvcc::TensorInfo* tensor = model.tensors->find(argv[2]);
    if (!tensor) return 3;
    const std::vector<float> data = values(model, *tensor);
    std::ofstream(argv[3], std::ios::binary)
        .write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size() * sizeof(float)));
    return 0;
  } catch (const kvcc::Error& error) {
    std::cerr << error.what() << "\n";
    return error.exit_code();
  }
}
