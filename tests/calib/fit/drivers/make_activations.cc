// Writes a small activations folder for the tests of `kvcc fit`:
//   make_activations FOLDER SAMPLES SEQLEN LAYERS SEED [no-fisher] [nan] [silent-head] [thin-head] [wide] [other-text]
// wide: keys and values of 16 channels, which kernels serve, not of 8 and 6; nan: one key is NaN; silent-head: the
// gradients of head 1 of the model's layer 2 are zero; thin-head: but at token 1 of sample 0; other-text: samples named
// by SEED too, as if of another text. Layer numbers are 0, 2, 4 …
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <string>

#include "formats/core/error.h"
#include "formats/core/hash.h"
#include "formats/store/activations.h"

int main(int argc, char** argv) {
  using namespace kvcc;
  if (argc < 6) return 2;
  ActivationsSettings settings;
  settings.samples = std::atoi(argv[2]);
  settings.seqlen = std::atoi(argv[3]);
  settings.seed = std::atoi(argv[5]);
  const int layers = std::atoi(argv[4]);
  const std::set<std::string> flags(argv + 6, argv + argc);
  settings.fisher = !flags.contains("no-fisher");
  settings.model.name = "made";
  settings.model.architecture = "llama";
  settings.model.weights_sha256 = sha256_hex("weights");
  const int key_dim = flags.contains("wide") ? 16 : 8, value_dim = flags.contains("wide") ? 16 : 6;
  settings.model.shape = {layers, 6, 2, key_dim, value_dim};
  settings.model.rope.rotary_dim = key_dim;
  settings.model.dtype = "F32";
  settings.tokenizer_sha256 = sha256_hex("tokenizer");
  const std::string text = flags.contains("other-text") ? std::string(" ") + argv[5] : "";
  settings.text_name = "made text" + text;
  settings.text_sha256 = sha256_hex("text" + text);
  settings.text_flavour = "raw";
  for (int s = 0; s < settings.samples; ++s) {
    settings.offsets.push_back(s * settings.seqlen);
    settings.sample_sha256.push_back(sha256_hex(std::to_string(s) + text));
  }
  for (int l = 0; l < layers; ++l) settings.layer_index.push_back(2 * l);
  try {
    ActivationsWriter writer(argv[1], settings, false, true);
    std::mt19937 random(static_cast<uint32_t>(settings.seed));
    std::normal_distribution<float> normal;
    for (int s = 0; s < settings.samples; ++s) {
      for (int l = 0; l < layers; ++l) {
        Shard shard;
        const auto fill = [&](std::vector<float>& x, std::vector<float>& g, int dim) {
          for (int64_t t = 0; t < settings.seqlen; ++t) {
            for (int c = 0; c < 2 * dim; ++c) {
              const bool thin = flags.contains("thin-head") && (s > 0 || t != 1);
              const float heavy = t == 0 ? 10.0f : 1.0f;
              const bool silent = (flags.contains("silent-head") || thin) && l == 1 && c >= dim;
              x.push_back(heavy * normal(random) * static_cast<float>(1 + c % 3) + static_cast<float>(c % 5));
              g.push_back(silent ? 0.0f : 0.01f * heavy * normal(random) * std::exp(normal(random)));
            }
          }
          if (!settings.fisher) g.clear();
        };
        fill(shard.key, shard.key_grad, key_dim);
        fill(shard.value, shard.value_grad, value_dim);
        if (flags.contains("nan") && s == settings.samples - 1 && l == 1) shard.key[5 * 16 + 11] = std::nanf("");
        writer.put(s, l, shard);
      }
    }
    writer.finish();
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_code();
  }
  return 0;
}
