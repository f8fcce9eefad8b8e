// Artifacts made on the spot, as kvcc export writes them, with the quantisers that they stand for, and rows to append.
// Everything follows from the seed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "formats/codec/reference.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/export/export.h"
#include "formats/store/codebook.h"
#include "kernels/host/kvcc_runtime.h"
#include "tests/formats/store/made.h"
#include "tests/kernels/vector_cases.h"

namespace kvcc::test {

struct Case {
  std::string scheme = "kvcc-nuq3-1%-sink1";
  CacheShape shape = {2, 6, 2, 64, 64};
  RopeInfo rope = {10000.0, "half-split", "none", "", 64};
  uint32_t seed = 1;
  /// Widths of a layer's heads, repeated over layers; empty: the scheme's.
  std::vector<uint8_t> key_bits = {}, value_bits = {};
};

inline void PrintTo(const Case& c, std::ostream* out) {
  *out << c.scheme << ", " << c.shape.query_heads << ":" << c.shape.kv_heads << " heads of " << c.shape.head_dim
       << " and " << c.shape.value_head_dim << ", " << c.rope.kind << " " << c.rope.rotary_dim << " " << c.rope.scaling;
}

class Made {
 public:
  explicit Made(const Case& c) : c_(c), random_(c.seed) {
    Codebook& b = codebook_;
    b = made::codebook(c.scheme, c.shape.layers);
    b.model.shape = c.shape;
    b.model.rope = c.rope;
    b.model.sliding_window_layers.clear();
    fill(b.key, b.scheme.key, c.shape.head_dim, c.key_bits);
    fill(b.value, b.scheme.value, c.shape.value_head_dim, c.value_bits);
    const made::TemporaryFolder folder;
    const std::string path = folder / "made.kvcb";
    Codebook written = b;  // of the scheme's width, as the file demands; other widths are put into the tree
    for (TensorCodebooks* tensor : {&written.key, &written.value}) {
      const int bits = tensor == &written.key ? b.scheme.key.bits : b.scheme.value.bits;
      if (!widths(tensor == &written.key).empty()) *tensor = narrow(*tensor, bits);
    }
    write_codebook(path, written);
    tree_ = hdf5_to_tree(MappedFile(path).bytes(), path);
    for (const bool key : {true, false}) {
      if (!widths(key).empty()) put_widths(key ? "/key" : "/value", key ? b.key : b.value);
    }
    tree_["/"].attributes["content_sha256"] = text_value(content_sha256(tree_));
    bytes_ = tree_to_safetensors(tree_);
  }

  const Case& of() const { return c_; }
  const Codebook& codebook() const { return codebook_; }
  const std::string& bytes() const { return bytes_; }
  std::string sha256() const { return tree_.at("/").attributes.at("content_sha256").bytes; }
  Tree& tree() { return tree_; }
  int64_t key_columns() const { return int64_t{c_.shape.kv_heads} * c_.shape.head_dim; }
  int64_t value_columns() const { return int64_t{c_.shape.kv_heads} * c_.shape.value_head_dim; }

  /// [count, H, D]; head 1 has wider values, so that its tiles overflow first.
  std::vector<float> rows(bool key, int64_t count) {
    const int dim = key ? c_.shape.head_dim : c_.shape.value_head_dim;
    std::normal_distribution<float> normal;
    std::vector<float> x(count * c_.shape.kv_heads * dim);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = normal(random_) * (i / dim % c_.shape.kv_heads == 1 ? 1.6f : 1.0f);
    }
    return x;
  }
  std::vector<float> queries(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> x(count * c_.shape.query_heads * c_.shape.head_dim);
    for (float& v : x) v = normal(random_);
    return x;
  }
  std::mt19937& random() { return random_; }

  /// What a cache that holds x [T, H, D] gives back.
  std::vector<float> given_back(bool key, int layer, const std::vector<float>& x) const {
    const int64_t n = key ? key_columns() : value_columns(), tokens = static_cast<int64_t>(x.size()) / n;
    const Scheme& s = codebook_.scheme;
    std::vector<float> record(x.size()), out(x.size());
    if (codebook_.scheme.sink + codebook_.scheme.residual > 0) round_to_record(x, record, "x");
    // Tokens of a scheme with a residual window pass through its fp16 rows.
    round_trip(key, layer, s.residual > 0 ? record : x, out);
    for (int64_t t = 0; t < tokens; ++t) {
      if (t < s.sink || t >= tokens - s.residual) std::copy_n(record.begin() + t * n, n, out.begin() + t * n);
    }
    return out;
  }

 private:
  const std::vector<uint8_t>& widths(bool key) const { return key ? c_.key_bits : c_.value_bits; }

  void fill(TensorCodebooks& t, const TensorScheme& scheme, int dim, const std::vector<uint8_t>& bits) {
    const int heads = c_.shape.layers * c_.shape.kv_heads;
    if (scheme.grid == Grid::vector) return fill_vectors(t, scheme, dim);
    t = made::tensor(c_.shape.layers, c_.shape.kv_heads, dim, scheme.bits, scheme.axis == Axis::channel,
                     codebook_.scheme.sparse > 0, 0.5f);
    for (size_t i = 0; i < bits.size() * c_.shape.layers; ++i) t.bits[i] = bits[i % bits.size()];
    t.codes = 1 << *std::max_element(t.bits.begin(), t.bits.end());
    t.codebook.assign(static_cast<size_t>(heads) * t.codes, bits_float(0x7fc00000u));
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int h = 0; h < heads; ++h) {
      float* const levels = t.codebook.data() + static_cast<size_t>(h) * t.codes;
      for (int j = 0; j < 1 << t.bits[h]; ++j) levels[j] = uniform(random_);
      std::sort(levels, levels + (1 << t.bits[h]));
    }
    std::uniform_real_distribution<float> width(2.0f, 2.6f);
    for (size_t i = 0; i < t.scale.size(); ++i) {
      t.scale[i] = width(random_);
      t.zero[i] = 0.2f * uniform(random_);
      if (t.threshold_lower.empty()) continue;
      t.threshold_lower[i] = t.zero[i] - t.scale[i];
      t.threshold_upper[i] = t.zero[i] + t.scale[i];
    }
  }

  /// Widths up to 4 and up to 6 bits, every layer's its own.
  void fill_vectors(TensorCodebooks& t, const TensorScheme& scheme, int dim) {
    const size_t heads = static_cast<size_t>(c_.shape.layers) * c_.shape.kv_heads;
    t = made::tensor(c_.shape.layers, c_.shape.kv_heads, dim, 1, false, false, 0.5f);
    made::make_vectors(t, scheme, c_.shape.layers, c_.shape.kv_heads, dim, 0.5f);
    for (auto* part : {&t.rotation_mean, &t.forward, &t.inverse, &t.vectors}) part->clear();
    t.group_width.clear();
    t.group_bits.clear();
    for (int l = 0; l < c_.shape.layers; ++l) {
      const bool turned = scheme.rotation != Rotation::none;
      quantisers_[&t == &codebook_.key].push_back(
          make_vector_quantiser({c_.shape.kv_heads, dim, turned, 6, 4}, random_));
      const VectorQuantiser& q = quantisers_[&t == &codebook_.key].back();
      const auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
      add(t.rotation_mean, q.mean);
      add(t.forward, q.forward);
      add(t.inverse, q.inverse);
      add(t.vectors, q.vectors);
      add(t.group_width, q.width);
      add(t.group_bits, q.bits);
    }
    if (scheme.rotation == Rotation::none) set_order(t, heads, dim);
  }
  /// A group's channels are those that its coordinates mix.
  static void set_order(TensorCodebooks& t, size_t heads, size_t n) {
    t.channel_order.clear();
    for (size_t head = 0; head < heads; ++head) {
      for (size_t at = 0; at < n; at += t.group_width[head * n + at]) {
        for (size_t c = 0; c < n; ++c) {
          const float* row = t.inverse.data() + (head * n + c) * n + at;
          const bool own = std::any_of(row, row + t.group_width[head * n + at], [](float x) { return x != 0; });
          if (own) t.channel_order.push_back(static_cast<uint16_t>(c));
        }
      }
    }
  }

  static TensorCodebooks narrow(TensorCodebooks t, int bits) {
    const size_t heads = t.bits.size();
    std::fill(t.bits.begin(), t.bits.end(), static_cast<uint8_t>(bits));
    t.codes = 1 << bits;
    t.codebook.assign(heads * t.codes, 0.5f);
    return t;
  }
  void put_widths(const std::string& at, const TensorCodebooks& t) {
    const std::vector<int64_t> head = {c_.shape.layers, c_.shape.kv_heads};
    tree_[at + "/bits"].value = array_value(Element::u8, head, t.bits);
    tree_[at + "/codebook"].value = array_value(Element::f32, {head[0], head[1], t.codes}, t.codebook);
  }

  void round_trip(bool key, int layer, const std::vector<float>& x, std::vector<float>& out) const {
    const TensorCodebooks& t = key ? codebook_.key : codebook_.value;
    const int heads = c_.shape.kv_heads, dim = key ? c_.shape.head_dim : c_.shape.value_head_dim;
    const auto slice = [&](const auto& from, size_t each) {
      const auto begin = from.begin() + static_cast<int64_t>(layer * each);
      return from.empty() ? from : std::decay_t<decltype(from)>(begin, begin + static_cast<int64_t>(each));
    };
    if (codebook_.scheme.is_vector()) {
      make_codec(quantisers_[key][layer])->round_trip(x, out, 1, "x");
      return;
    }
    const LevelTable table{heads, t.codes, slice(t.codebook, static_cast<size_t>(heads) * t.codes),
                           slice(t.bits, static_cast<size_t>(heads))};
    const size_t n = static_cast<size_t>(heads) * dim;
    if (t.scale.empty()) {
      const TokenQuantiser q{heads, dim, table, outliers_per_tail(codebook_.scheme.sparse, heads * dim)};
      kvcc::round_trip(q, x, out);
    } else {
      const ChannelQuantiser q{heads,
                               dim,
                               table,
                               slice(t.scale, n),
                               slice(t.zero, n),
                               slice(t.threshold_lower, n),
                               slice(t.threshold_upper, n)};
      kvcc::round_trip(q, x, out);
    }
  }

  Case c_;
  std::mt19937 random_;
  Codebook codebook_;
  std::vector<VectorQuantiser> quantisers_[2];  ///< of vector codebooks: values', keys', by layer
  Tree tree_;
  std::string bytes_;
};

/// Handles of the C API that free themselves.
struct FreeArtifact {
  void operator()(KvccArtifact* artifact) const { kvcc_artifact_free(artifact); }
};
struct FreeSequence {
  void operator()(KvccSequence* sequence) const { kvcc_free(sequence); }
};
using Artifact = std::unique_ptr<KvccArtifact, FreeArtifact>;
using Sequence = std::unique_ptr<KvccSequence, FreeSequence>;

inline Artifact open(const std::string& bytes) {
  KvccArtifact* artifact = nullptr;
  EXPECT_EQ(kvcc_artifact_open_memory(bytes.data(), bytes.size(), "made", &artifact), KVCC_OK) << kvcc_error_message();
  return Artifact(artifact);
}
inline KvccOptions options(int threads = 1, int arithmetic = 0) {
  KvccOptions o{};
  o.size = sizeof o;
  o.threads = threads;
  o.arithmetic = arithmetic;
  return o;
}
inline Sequence create(const KvccArtifact* artifact, const KvccOptions& o = options()) {
  KvccSequence* sequence = nullptr;
  EXPECT_EQ(kvcc_create(artifact, &o, &sequence), KVCC_OK) << kvcc_error_message();
  return Sequence(sequence);
}

/// Tokens of all layers: [layer] of [T, H, D].
struct Text {
  Text(Made& made, int64_t count) : tokens(count) {
    for (int l = 0; l < made.of().shape.layers; ++l) {
      key.push_back(made.rows(true, count));
      value.push_back(made.rows(false, count));
    }
  }
  /// Appends tokens [first, first + count) to every layer.
  void append(const Made& made, KvccSequence* sequence, int64_t first, int64_t count) const {
    for (size_t l = 0; l < key.size(); ++l) {
      ASSERT_EQ(kvcc_append(sequence, static_cast<int32_t>(l), key[l].data() + first * made.key_columns(),
                            value[l].data() + first * made.value_columns(), count),
                KVCC_OK)
          << kvcc_error_message();
    }
  }
  int64_t tokens;
  std::vector<std::vector<float>> key, value;
};

/// A name in memory where there is such a folder: tests save some thousand files, each synced.
inline std::string scratch_file() {
  static std::atomic<int> counter{0};
  const bool memory = std::filesystem::is_directory("/dev/shm");
  const auto folder = memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
  return (folder / ("kvcc-runtime-test-" + std::to_string(::getpid()) + "-" + std::to_string(counter++))).string();
}

/// Bytes of the file that the sequence saves.
inline std::string saved(const KvccSequence* sequence) {
  const std::string path = scratch_file();
  EXPECT_EQ(kvcc_save(sequence, path.c_str(), nullptr, 0), KVCC_OK) << kvcc_error_message();
  const std::string bytes = read_text_file(path);
  std::filesystem::remove(path);
  return bytes;
}

/// Schemes and shapes that between them have every width, axis, sparse part, window and kind of RoPE.
inline std::vector<Case> cases() {
  return {
      {},
      {.scheme = "kvcc-nuq4-1%-sink1", .shape = {1, 4, 1, 128, 128}, .rope = {500000, "half-split", "none", "", 128}},
      {.scheme = "k=nuq2@prerope/channel,v=nuq2@token,sparse=5%,sink=3",
       .shape = {2, 4, 4, 32, 48},
       .rope = {10000, "interleaved", "none", "", 16},
       .seed = 2},
      {.scheme = "k=nuq3@prerope/channel,v=nuq4@token,sparse=2%,sink=2,residual=20",
       .shape = {1, 9, 3, 64, 64},
       .seed = 3},
      {.scheme = "k=int4@postrope/token,v=int8@token,sparse=1%",
       .shape = {1, 4, 2, 16, 16},
       .rope = {1e4, "half-split", "none", "", 16}},
      {.scheme = "k=int8@prerope/token,v=int3@token,sparse=0%,residual=64,sink=70",
       .shape = {1, 2, 2, 80, 96},
       .rope = {1e4, "half-split", "linear", R"({"factor":4.0})", 32}},
      {.scheme = "k=nuq4@prerope/channel,v=nuq4@token,sparse=0%",
       .shape = {1, 20, 1, 256, 16},
       .rope = {1e4, "half-split", "none", "", 0}},
      {.scheme = "k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=1",
       .shape = {2, 6, 3, 64, 32},
       .key_bits = {2, 4, 3},
       .value_bits = {3, 8, 2}},
      {.scheme = "kvcc-2-head", .shape = {2, 6, 2, 64, 64}, .seed = 5},
      {.scheme = "kvcc-3-channels-sink3",
       .shape = {1, 4, 2, 32, 48},
       .rope = {1e4, "interleaved", "none", "", 16},
       .seed = 6},
  };
}

}  // namespace kvcc::test
