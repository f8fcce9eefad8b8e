// make_report codebook PATH LAYERS HEADS DIM NAME [bare] | activations FOLDER LAYERS HEADS DIM | evaluation JSON HTML
// Files for the tests of the HTML reports: an artifact of any size that looks like one of a model (a few channels far
// above the rest, a head most of whose Fisher mass is on one token, one that lost nothing; bare: without statistics),
// activations of its geometry, and the page of an evaluation. Equal arguments give equal files.
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calib/report/html_report.h"
#include "formats/core/file.h"
#include "tests/formats/store/made.h"

namespace {

using kvcc::Codebook;
using kvcc::TensorCodebooks;

/// Of 64 mixed bits (splitmix64), [0, 1).
class Noise {
 public:
  double operator()() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }

 private:
  uint64_t state_ = 1;
};

struct Size {
  int layers, heads, dim;
};

kvcc::ModelInfo model(const Size& size, const std::string& name) {
  kvcc::ModelInfo info = kvcc::made::model(size.layers);
  info.name = name;
  info.shape = {size.layers, 4 * size.heads, size.heads, size.dim, size.dim};
  info.rope = {10000.0, "half-split", "none", "", size.dim};
  info.sliding_window_layers.clear();
  return info;
}

/// How far channel c of head h reaches: keys have two channels far above the rest, in every layer.
double reach(bool key, int head, int channel, const Size& size, Noise& noise) {
  const double base = (key ? 3.0 : 0.6) * (0.7 + 0.6 * noise());
  const bool far = key && (channel == (17 + 11 * head) % size.dim || (head == 0 && channel == size.dim - 3));
  return far ? base * (6 + 2 * noise()) : base;
}

TensorCodebooks tensor(bool key, const Size& size, int bits, bool channel, Noise& noise) {
  TensorCodebooks out = kvcc::made::tensor(size.layers, size.heads, size.dim, bits, channel, true, 0.5f);
  kvcc::TensorStats& stats = out.stats;
  stats.histogram.clear();
  stats.code_use.clear();
  size_t at = 0, head_at = 0;
  for (int layer = 0; layer < size.layers; ++layer) {
    for (int head = 0; head < size.heads; ++head, ++head_at) {
      for (int c = 0; c < size.dim; ++c, ++at) {
        const double far = reach(key, head, c, size, noise) * (1 + 0.5 * layer / size.layers);
        stats.min[at] = static_cast<float>(-far * (0.8 + 0.2 * noise()));
        stats.max[at] = static_cast<float>(far * (0.8 + 0.2 * noise()));
        stats.mean[at] = static_cast<float>(far * 0.1 * (noise() - 0.5));
        stats.variance[at] = static_cast<float>(far * far / 9);
        stats.fisher[at] = static_cast<float>(std::exp(-14 + 4 * noise()));
        if (!channel) continue;
        out.threshold_lower[at] = 0.5f * stats.min[at];
        out.threshold_upper[at] = 0.5f * stats.max[at];
      }
      out.outlier_fraction[head_at] = static_cast<float>(0.01 + 0.003 * noise());
      stats.sqnr_db[head_at] = static_cast<float>(19 + 4 * noise() - (layer == 0 ? 4 : 0));
      stats.weighted_sse[head_at] = static_cast<float>(std::exp(-4 + 3 * noise()) * (1 + layer));
      stats.first_token_share[head_at] = static_cast<float>(0.25 * noise());
      stats.token_share[head_at] = static_cast<float>(0.1 * noise());
      stats.sample_share[head_at] = static_cast<float>(0.1 + 0.1 * noise());
      stats.drift[head_at] = static_cast<float>(0.2 * noise());
      if (!stats.held_out_outliers.empty()) stats.held_out_outliers[head_at] = out.outlier_fraction[head_at];
      const double width = 0.3 + 0.15 * noise();
      double sum = 0;
      std::vector<float> bins;
      for (int b = 0; b < kvcc::kNormalisedBins; ++b) {
        const double y = (kvcc::normalised_edge(b) + kvcc::normalised_edge(b + 1)) / 2;
        bins.push_back(static_cast<float>(std::exp(-y * y / (2 * width * width)) + 1e-5));
        sum += bins.back();
      }
      for (const float bin : bins) stats.histogram.push_back(static_cast<float>(bin / sum));
      std::vector<double> use;
      sum = 0;
      for (int code = 0; code < out.codes; ++code) sum += use.emplace_back(0.5 + noise());
      for (const double share : use) stats.code_use.push_back(static_cast<float>(share / sum));
    }
  }
  return out;
}

void write_codebook(const std::string& path, const Size& size, const std::string& name, bool bare) {
  Noise noise;
  Codebook codebook = kvcc::made::codebook("kvcc-nuq4-1%-sink1", size.layers);
  codebook.model = model(size, name);
  for (int layer = 0; layer < size.layers; ++layer) codebook.layer_index[layer] = static_cast<uint16_t>(layer);
  codebook.key = tensor(true, size, 4, true, noise);
  codebook.value = tensor(false, size, 4, false, noise);
  codebook.key.stats.token_share[std::min<size_t>(size.heads + 1, codebook.key.bits.size() - 1)] = 0.8f;
  codebook.provenance.samples_asked = 64;
  codebook.value.stats.sqnr_db[0] = std::numeric_limits<float>::infinity();  // nothing was lost
  if (bare) codebook.key.stats = codebook.value.stats = {};
  kvcc::write_codebook(path, codebook);
}

void write_activations(const std::string& folder, const Size& size) {
  kvcc::ActivationsSettings settings = kvcc::made::settings(1, size.layers, 48);
  settings.model = model(size, "tiny");
  kvcc::ActivationsWriter writer(folder, settings, false, true);
  Noise noise;
  for (int layer = 0; layer < size.layers; ++layer) {
    Noise shape;
    std::vector<double> far[2];
    for (const bool key : {true, false}) {
      for (int h = 0; h < size.heads; ++h) {
        for (int c = 0; c < size.dim; ++c) far[key].push_back(reach(key, h, c, size, shape));
      }
    }
    kvcc::Shard shard;
    for (int64_t token = 0; token < settings.seqlen; ++token) {
      for (size_t i = 0; i < far[1].size(); ++i) {
        shard.key.push_back(static_cast<float>(far[1][i] * (0.2 + 0.8 * noise())));
        shard.value.push_back(static_cast<float>(far[0][i] * (2 * noise() - 1)));
      }
    }
    shard.key_grad.assign(shard.key.size(), 1e-3f);
    shard.value_grad.assign(shard.value.size(), 1e-3f);
    writer.put(0, layer, shard);
  }
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string what = words.empty() ? "" : words[0];
  try {
    if ((what == "codebook" && words.size() >= 6) || (what == "activations" && words.size() == 5)) {
      const Size size = {std::stoi(words[2]), std::stoi(words[3]), std::stoi(words[4])};
      if (what == "codebook") {
        write_codebook(words[1], size, words[5], words.size() > 6);
      } else {
        write_activations(words[1], size);
      }
      return 0;
    }
    if (what == "evaluation" && words.size() == 3) {
      const auto document = nlohmann::ordered_json::parse(kvcc::read_text_file(words[1]));
      kvcc::write_text_file(words[2], kvcc::evaluation_html(document));
      return 0;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::fputs("usage: see the file's first lines\n", stderr);
  return 2;
}
