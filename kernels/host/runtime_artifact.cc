#include "kernels/host/runtime_artifact.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "kernels/host/runtime_metadata.h"
#include "kernels/host/runtime_vectors.h"

namespace kvcc::host {
namespace {

constexpr int kMajor = 1;            // of codebook.md
constexpr int kMost = 1 << 20;       // heads and channels
constexpr int kMostExact = 1 << 24;  // tokens kept exactly: as many as have rotary tables
constexpr int kMostColumns = 65536;  // of a row

/// What the artifact asks for and the layouts, or a CPU unit, do not have.
Error unsupported(const std::string& name, std::string found, std::string wanted) {
  return Error(ErrorKind::usage, name, std::move(found), std::move(wanted),
               "the runtime holds caches of the layouts mma-1 and vector-1 alone");
}

class Reader {
 public:
  explicit Reader(const SafetensorsFile& file) : file_(file), fields_(file) {}

  std::shared_ptr<const RuntimeArtifact> read() {
    out_.name = file_.path();
    if (!file_.metadata().contains("format") || fields_.text("format") != "kvcc-codebook") {
      throw bad_input(out_.name, "no codebook artifact", "the safetensors export of one",
                      "kvcc export FILE.kvcb --to safetensors -o FILE");
    }
    fields_.check_version("format_version", kMajor);
    out_.content_sha256 = fields_.digest("content_sha256");
    read_scheme();
    read_model();
    read_layer_index();
    read_tensor(out_.scheme.key, mma::Tensor::key, out_.shape.head_dim, out_.key);
    read_tensor(out_.scheme.value, mma::Tensor::value, out_.shape.value_head_dim, out_.value);
    return std::make_shared<const RuntimeArtifact>(std::move(out_));
  }

 private:
  void read_scheme() {
    try {
      out_.scheme = parse_scheme(fields_.text("scheme"));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      throw fields_.wrong("scheme", error.what());
    }
    if (fields_.text("scheme_json") != scheme_json(out_.scheme)) {
      throw fields_.wrong("scheme_json", "not what the scheme says", scheme_json(out_.scheme));
    }
    if (out_.scheme.is_full()) throw unsupported(out_.name, "scheme fp", "quantised keys and values");
    if (out_.scheme.value.predicted && out_.scheme.value.rotation != Rotation::fklt_layer) {
      throw Error(ErrorKind::usage, out_.name,
                  "scheme " + short_name(out_.scheme) + ", whose values are predicted from keys",
                  "values coded by themselves", "kvcc-2-head is the like; kvcc eval and --cache simulated take this");
    }
    if (out_.scheme.is_vector()) {
      for (const TensorScheme* scheme : {&out_.scheme.key, &out_.scheme.value}) {
        if (scheme->rotation != Rotation::fklt_layer) continue;
        throw Error(ErrorKind::usage, out_.name,
                    "scheme " + short_name(out_.scheme) + ", whose transform is across the heads of a layer",
                    "groups of one head: a rank of a tensor-parallel model does not have all heads",
                    "fit the form -head or -channels, such as kvcc-2-head; kvcc eval and --cache simulated take this");
      }
    } else if (!out_.scheme.key.is_plain() || !out_.scheme.value.is_plain() || out_.scheme.is_extended()) {
      throw unsupported(out_.name, "scheme " + short_name(out_.scheme),
                        "scales per channel or token, without cap or qnorm");
    }
    if (out_.scheme.sink > kMostExact || out_.scheme.residual > kMostExact) {
      throw unsupported(
          out_.name,
          "sink " + std::to_string(out_.scheme.sink) + " and residual window " + std::to_string(out_.scheme.residual),
          "at most " + std::to_string(kMostExact) + " tokens each");
    }
  }

  void read_model() {
    CacheShape& shape = out_.shape;
    out_.model = fields_.text("model.name");
    const auto integer = [&](const char* name, int64_t least, int64_t most) {
      return static_cast<int>(fields_.integer(std::string("model.") + name, least, most));
    };
    shape.layers = integer("layers", 1, 65535);
    shape.kv_heads = integer("kv_heads", 1, kMost);
    shape.query_heads = integer("query_heads", 1, kMost);
    shape.head_dim = integer("head_dim", 1, kMost);
    shape.value_head_dim = integer("value_head_dim", 1, kMost);
    if (shape.query_heads % shape.kv_heads != 0) {
      throw fields_.wrong("model.query_heads", std::to_string(shape.query_heads),
                          "a multiple of the " + std::to_string(shape.kv_heads) + " KV heads");
    }
    RopeInfo& rope = out_.rope;
    rope.theta = fields_.number("model.rope_theta");
    if (!(rope.theta > 0)) throw fields_.wrong("model.rope_theta", std::to_string(rope.theta), "above 0");
    rope.kind = fields_.text("model.rope_kind");
    if (rope.kind != "half-split" && rope.kind != "interleaved") {
      throw fields_.wrong("model.rope_kind", rope.kind, "half-split or interleaved");
    }
    rope.scaling = fields_.text("model.rope_scaling");
    rope.scaling_json = fields_.text("model.rope_scaling_json");
    rope.rotary_dim = integer("rope_rotary_dim", 0, shape.head_dim);
    if (rope.rotary_dim % 2 != 0) {
      throw fields_.wrong("model.rope_rotary_dim", std::to_string(rope.rotary_dim), "an even number");
    }
    if (out_.scheme.key.site == Site::post_rope) return;
    out_.rotary_dim = rope.rotary_dim;
    if (out_.rotary_dim % 16 != 0) {
      throw unsupported(out_.name, std::to_string(out_.rotary_dim) + " rotary channels", "a multiple of 16");
    }
  }

  void read_layer_index() {
    const SafeTensor& index = fields_.tensor("layer_index", "U16", {out_.shape.layers});
    std::vector<uint16_t> layers(index.bytes.size() / 2);
    std::copy_n(reinterpret_cast<const uint8_t*>(index.bytes.data()), index.bytes.size(),
                reinterpret_cast<uint8_t*>(layers.data()));
    if (std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) != layers.end()) {
      throw fields_.wrong("layer_index", "not ascending", "numbers of the model's layers in order");
    }
    out_.layer_index.assign(layers.begin(), layers.end());
  }

  void read_tensor(const TensorScheme& scheme, mma::Tensor which, int head_dim, PackedTensor& t) {
    t.tensor = which;
    t.head_dim = head_dim;
    const std::string at = std::string(t.name()) + "/";
    const int64_t layers = out_.shape.layers, heads = out_.shape.kv_heads;
    const int64_t columns = heads * head_dim;
    if (!mma::supports(head_dim, 4) || columns > kMostColumns) {
      throw unsupported(out_.name, std::to_string(heads) + " " + t.name() + " heads of " + std::to_string(head_dim),
                        "head dimensions that are a multiple of 16 up to 256, and at most 65536 channels in all");
    }
    if (scheme.grid == Grid::vector) return read_vector_tensor(t);
    t.token_axis = scheme.axis == Axis::token;
    if (t.token_axis) {
      t.tail = outliers_per_tail(out_.scheme.sparse, static_cast<int>(columns));
      if (2 * int64_t{t.tail} >= columns) {
        throw unsupported(out_.name, std::to_string(t.tail) + " outliers of each tail a token",
                          "at least one value between the tails");
      }
    }
    t.sparse = t.token_axis ? t.tail > 0 : out_.scheme.sparse > 0;
    if (t.sparse) {
      const double fraction = t.token_axis ? 2.0 * t.tail / static_cast<double>(columns) : out_.scheme.sparse;
      const uint32_t most = mma::kPageTokens * static_cast<uint32_t>(head_dim);
      t.default_capacity = std::min(mma::default_capacity(fraction, static_cast<uint32_t>(head_dim)), most);
    }
    read_bits(at, t);
    read_levels(at, t);
    if (t.token_axis) return;
    const std::vector<int64_t> channels = {layers, heads, head_dim};
    t.scale = fields_.floats(at + "scale", channels);
    t.zero = fields_.floats(at + "zero", channels);
    check_each(at + "scale", t.scale, "a finite scale above 0", [](float x) { return std::isfinite(x) && x > 0; });
    check_each(at + "zero", t.zero, "a finite value", [](float x) { return std::isfinite(x); });
    if (!t.sparse) return;
    t.lower = fields_.floats(at + "threshold_lower", channels);
    t.upper = fields_.floats(at + "threshold_upper", channels);
    check_each(at + "threshold_lower", t.lower, "a finite value", [](float x) { return std::isfinite(x); });
    check_each(at + "threshold_upper", t.upper, "a finite value", [](float x) { return std::isfinite(x); });
    for (size_t i = 0; i < t.lower.size(); ++i) {
      if (t.lower[i] > t.upper[i])
        throw fields_.wrong(at + "threshold_lower", place(i, head_dim), "not above the upper");
    }
  }

  void read_vector_tensor(PackedTensor& t) {
    t.vectors = read_vectors(fields_, t.name(), out_.shape.layers, out_.shape.kv_heads, t.head_dim);
    for (const VectorTables& layer : t.vectors) {
      t.head_words.insert(t.head_words.end(), layer.head_words().begin(), layer.head_words().end());
      // A page has at least 128 bytes.
      t.code_words.push_back(static_cast<int32_t>(std::max(layer.code_words(), vector_page::kPageAlign / 4u)));
    }
  }

  void read_bits(const std::string& at, PackedTensor& t) {
    const int64_t layers = out_.shape.layers, heads = out_.shape.kv_heads;
    const auto bytes = fields_.tensor(at + "bits", "U8", {layers, heads}).bytes;
    t.bits.resize(bytes.size());
    std::copy_n(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), t.bits.data());
    const auto dim = static_cast<uint32_t>(t.head_dim);
    for (size_t i = 0; i < t.bits.size(); ++i) {
      if (t.bits[i] < 1 || t.bits[i] > 8) {
        throw fields_.wrong(at + "bits", std::to_string(t.bits[i]) + " at " + place(i, 1), "1 to 8");
      }
      if (!mma::supports(dim, t.bits[i])) {
        throw unsupported(out_.name, std::string(t.name()) + "s of " + std::to_string(t.bits[i]) + " bits",
                          "2, 3, 4 or 8 bits");
      }
    }
    const bool mixed = std::set<uint8_t>(t.bits.begin(), t.bits.end()).size() > 1;
    for (int64_t l = 0; l < layers; ++l) {
      uint32_t words = 0;
      for (int64_t h = 0; h < heads; ++h) {
        if (mixed) t.head_words.push_back(words);
        words += mma::tile_words(dim, t.bits[l * heads + h]);
      }
      t.code_words.push_back(static_cast<int32_t>(words));
    }
  }

  void read_levels(const std::string& at, PackedTensor& t) {
    t.codes = 1 << *std::max_element(t.bits.begin(), t.bits.end());
    t.levels = fields_.floats(at + "codebook", {out_.shape.layers, out_.shape.kv_heads, t.codes});
    for (size_t head = 0; head < t.bits.size(); ++head) {
      for (int c = 0; c < 1 << t.bits[head]; ++c) {
        const float* const level = t.levels.data() + head * t.codes + c;
        const bool good = std::isfinite(*level) && std::fabs(*level) <= 1.0f && (c == 0 || level[-1] <= *level);
        if (good) continue;
        throw fields_.wrong(at + "codebook",
                            std::to_string(*level) + " at " + place(head, 1) + " code " + std::to_string(c),
                            "levels in [-1, 1] that do not decrease");
      }
    }
  }

  /// "layer 3 head 1 channel 5" of element i of an array with `each` values a head.
  std::string place(size_t i, int each) const {
    const size_t head = i / each, heads = out_.shape.kv_heads;
    std::string text = "layer " + std::to_string(head / heads) + " head " + std::to_string(head % heads);
    return each > 1 ? text + " channel " + std::to_string(i % each) : text;
  }

  template <class Good>
  void check_each(const std::string& name, const std::vector<float>& values, const char* wanted,
                  const Good& good) const {
    const auto bad = std::find_if_not(values.begin(), values.end(), good);
    if (bad == values.end()) return;
    const int each = static_cast<int>(values.size()) / (out_.shape.layers * out_.shape.kv_heads);
    throw fields_.wrong(name, std::to_string(*bad) + " at " + place(bad - values.begin(), each), wanted);
  }

  const SafetensorsFile& file_;
  FileFields fields_;
  RuntimeArtifact out_;
};

}  // namespace

mma::PageShape PackedTensor::page_shape(int layer, int heads, uint32_t capacity) const {
  return {static_cast<uint32_t>(code_words[layer]), token_axis ? 1u : 0u, sparse ? mma::kClasses : 0u,
          static_cast<uint32_t>(heads), sparse ? capacity : 0u};
}

std::shared_ptr<const RuntimeArtifact> open_artifact(const std::string& path) {
  // Read, not mapped: an artifact is small, and a file that shrinks under a map ends the process.
  const std::string text = read_text_file(path);
  if (text.starts_with("\x89HDF")) {
    throw bad_input(path, "HDF5", "its safetensors export", "kvcc export " + path + " --to safetensors makes it");
  }
  return open_artifact(path, std::as_bytes(std::span(text)));
}

std::shared_ptr<const RuntimeArtifact> open_artifact(const std::string& name, std::span<const std::byte> bytes) {
  const SafetensorsFile file(name, bytes);
  return Reader(file).read();
}

}  // namespace kvcc::host
