// Attention through the C API against the reference's in double, over the rows that the cache gives back.
#include <thread>

#include "kernels/host/rope_frequencies.h"
#include "kernels/reference/attention.h"
#include "tests/kernels/runtime/made.h"

namespace kvcc::test {
namespace {

class Attending : public testing::TestWithParam<Case> {};

reference::Rotation rotation_of(const Made& made, const host::RopeUse& use = {}) {
  const RopeInfo& rope = made.of().rope;
  reference::Rotation rotation;
  if (rope.rotary_dim == 0 || made.codebook().scheme.key.site == Site::post_rope) return rotation;
  const host::RopeFrequencies f = host::rope_frequencies(rope, use);
  rotation.interleaved = rope.kind == "interleaved";
  rotation.frequencies.assign(f.inverse.begin(), f.inverse.end());
  rotation.factor = f.attention_factor;
  return rotation;
}

/// out [Hq, Dv] of query (turned) over the first `tokens` that the layer gives back.
void expect_attention(const Made& made, KvccSequence* sequence, int layer, const std::vector<float>& query,
                      float multiplier, int64_t window, const std::vector<float>& out, int arithmetic,
                      const reference::Rotation& rotation) {
  const int64_t tokens = kvcc_length(sequence, layer);
  std::vector<float> key(tokens * made.key_columns()), value(tokens * made.value_columns());
  ASSERT_EQ(kvcc_read(sequence, layer, 0, tokens, key.data(), value.data()), KVCC_OK);
  const CacheShape& s = made.of().shape;
  if (multiplier == 0) multiplier = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  const auto wanted = reference::attention(
      key, value, query, {s.kv_heads, s.head_dim, s.value_head_dim, s.group(), window, multiplier}, rotation);
  float most = 0;  // bounds scale and zero-point of a range
  for (const float v : value) most = std::max(most, std::fabs(v));
  const double e = arithmetic == 0 ? 0x1p-19 : arithmetic == 1 ? 0x1p-8 : 0x1p-22;  // f32, i16, f64
  for (size_t i = 0; i < out.size(); ++i) {
    const double bound = e * wanted.sensitivity[i] + 2 * e * (wanted.magnitude[i] + 2 * most);
    ASSERT_NEAR(out[i], wanted.value[i], bound) << "output " << i << " of layer " << layer << ", window " << window;
  }
}

std::vector<float> attend(KvccSequence* sequence, int layer, const std::vector<float>& query, const Made& made,
                          float multiplier = 0, int64_t window = 0) {
  std::vector<float> out(made.of().shape.query_heads * made.of().shape.value_head_dim, -7.0f);
  EXPECT_EQ(kvcc_attend(sequence, layer, query.data(), multiplier, window, out.data()), KVCC_OK)
      << kvcc_error_message();
  return out;
}

/// Vector codebooks have units of f32 alone; another arithmetic is refused, not computed in f32.
bool is_there(const Made& made, const KvccArtifact* artifact, int arithmetic) {
  if (arithmetic == 0 || !parse_scheme(made.of().scheme).is_vector()) return true;
  const KvccOptions o = options(1, arithmetic);
  KvccSequence* sequence = nullptr;
  EXPECT_EQ(kvcc_create(artifact, &o, &sequence), KVCC_USAGE);
  EXPECT_EQ(sequence, nullptr);
  EXPECT_NE(std::string(kvcc_error_message()).find("arithmetic"), std::string::npos) << kvcc_error_message();
  return false;
}

TEST_P(Attending, AgreesWithTheReference) {
  for (const int arithmetic : {0, 1, 2}) {
    Made made(GetParam());
    const Artifact artifact = open(made.bytes());
    if (!is_there(made, artifact.get(), arithmetic)) continue;
    const Sequence sequence = create(artifact.get(), options(2, arithmetic));
    const Text text(made, 1400);
    int64_t done = 0;
    for (const int64_t tokens : {1, 2, 63, 64, 65, 200, 1400}) {  // of 1400 there are splits
      text.append(made, sequence.get(), done, tokens - done);
      done = tokens;
      for (const auto& [multiplier, window] :
           {std::pair<float, int64_t>{0, 0}, {0.3f, 1}, {0, 100}, {0.05f, 1300}, {0, 1LL << 40}}) {
        for (int l = 0; l < made.of().shape.layers; ++l) {
          std::vector<float> query = made.queries(1);
          ASSERT_EQ(kvcc_rotate(sequence.get(), query.data(), tokens - 1, 1), KVCC_OK);
          const auto out = attend(sequence.get(), l, query, made, multiplier, window);
          ASSERT_NO_FATAL_FAILURE(expect_attention(made, sequence.get(), l, query, multiplier,
                                                   window > tokens ? 0 : window, out, arithmetic, rotation_of(made)))
              << tokens << " tokens, arithmetic " << arithmetic;
        }
      }
    }
  }
}

TEST_P(Attending, ManyAtATimeAreAsOneByOne) {
  for (const auto& [arithmetic, threads] : {std::pair{0, 1}, {1, 2}, {0, 3}, {2, 2}}) {
    Made made(GetParam());
    const Artifact artifact = open(made.bytes());
    if (!is_there(made, artifact.get(), arithmetic)) continue;
    const int64_t before = 40, count = 600;
    const Text text(made, before + count);
    const std::vector<float> query = made.queries(count);
    const CacheShape& s = made.of().shape;
    const int64_t q = s.query_heads * s.head_dim, o = s.query_heads * s.value_head_dim;
    const Sequence one = create(artifact.get(), options(1, arithmetic));
    const Sequence many = create(artifact.get(), options(threads, arithmetic));
    text.append(made, one.get(), 0, before);
    text.append(made, many.get(), 0, before);
    for (int l = 0; l < s.layers; ++l) {
      std::vector<float> wanted(count * o), found(count * o);
      const float* const key = text.key[l].data() + before * made.key_columns();
      const float* const value = text.value[l].data() + before * made.value_columns();
      for (int64_t t = 0; t < count; ++t) {
        ASSERT_EQ(kvcc_append(one.get(), l, key + t * made.key_columns(), value + t * made.value_columns(), 1),
                  KVCC_OK);
        ASSERT_EQ(kvcc_attend(one.get(), l, query.data() + t * q, 0, 500, wanted.data() + t * o), KVCC_OK);
      }
      for (int64_t t = 0; t < count; t += 0) {
        const int64_t n = std::min<int64_t>(count - t, t == 0 ? 1 : t == 1 ? 300 : 1000);
        ASSERT_EQ(kvcc_append_attend(many.get(), l, key + t * made.key_columns(), value + t * made.value_columns(),
                                     query.data() + t * q, n, 0, 500, found.data() + t * o),
                  KVCC_OK)
            << kvcc_error_message();
        t += n;
      }
      for (size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_EQ(float_bits(wanted[i]), float_bits(found[i]))
            << "query " << i / o << ", " << i % o << " of layer " << l;
      }
    }
    EXPECT_TRUE(saved(one.get()) == saved(many.get()));
  }
}

TEST_P(Attending, DoesNotDependOnThreads) {
  Made made(GetParam());
  const Artifact artifact = open(made.bytes());
  const Text text(made, 3000);
  const std::vector<float> query = made.queries(1);
  std::vector<float> wanted;
  for (const int threads : {1, 2, 5}) {
    const Sequence sequence = create(artifact.get(), options(threads));
    text.append(made, sequence.get(), 0, text.tokens);
    for (int again = 0; again < 5; ++again) {
      const auto out = attend(sequence.get(), 0, query, made);
      if (wanted.empty()) wanted = out;
      ASSERT_EQ(std::memcmp(out.data(), wanted.data(), out.size() * 4), 0) << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, Attending, testing::ValuesIn(cases()));

// Every scaling, at lengths that it depends on; base rows made anew as the sequence outgrows them.
TEST(Rotary, FollowsTheModelsScaling) {
  const std::string list = "[1.0,1.1,1.2,1.3,1.4,1.5,1.6,1.7,1.8,1.9,2.0,2.1,2.2,2.3,2.4,2.5]";
  const std::string longer = "[2.0,2.1,2.2,2.3,2.4,2.5,2.6,2.7,2.8,2.9,3.0,3.1,3.2,3.3,3.4,3.5]";
  for (const auto& [scaling, json, trained] : std::vector<std::tuple<std::string, std::string, int64_t>>{
           {"none", "", 0},
           {"linear", R"({"factor":4.0})", 0},
           {"llama3",
            R"({"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":128})", 0},
           {"yarn", R"({"factor":4.0,"original_max_position_embeddings":64})", 0},
           {"dynamic", R"({"factor":2.0,"original_max_position_embeddings":100})", 100},
           {"longrope",
            R"({"original_max_position_embeddings":100,"factor":4.0,"short_factor":)" + list + R"(,"long_factor":)" +
                longer + "}",
            100}}) {
    for (const int64_t max_tokens : {0, 150}) {
      SCOPED_TRACE(scaling + ", max_tokens " + std::to_string(max_tokens));
      Made made({.shape = {1, 4, 2, 32, 32}, .rope = {10000.0, "half-split", scaling, json, 32}});
      const Artifact artifact = open(made.bytes());
      KvccOptions o = options();
      o.max_tokens = max_tokens;
      const Sequence sequence = create(artifact.get(), o);
      const Text text(made, 500);
      int64_t done = 0, positions = max_tokens > 0 ? max_tokens : trained > 0 ? trained : 32768;
      for (const int64_t tokens : {60, 140, 350, 500}) {
        text.append(made, sequence.get(), done, tokens - done);
        done = tokens;
        const bool grows = tokens > positions;
        if (grows) positions = std::max(tokens, 2 * positions);
        const bool stretched = max_tokens > 0 || positions > trained;
        const auto rotation = rotation_of(made, {trained, trained > 0 && stretched ? positions : 0});
        std::vector<float> query = made.queries(1), turned = query;
        ASSERT_EQ(kvcc_rotate(sequence.get(), turned.data(), tokens - 1, 1), KVCC_OK);
        for (int h = 0; h < 4; ++h) {
          for (int i = 0; i < 16; ++i) {
            const double angle = static_cast<double>(tokens - 1) * rotation.frequencies[i];
            const double a = query[h * 32 + i], b = query[h * 32 + i + 16];
            EXPECT_NEAR(turned[h * 32 + i], rotation.factor * (a * std::cos(angle) - b * std::sin(angle)), 2e-6);
            EXPECT_NEAR(turned[h * 32 + i + 16], rotation.factor * (b * std::cos(angle) + a * std::sin(angle)), 2e-6);
          }
        }
        const auto out = attend(sequence.get(), 0, turned, made);
        ASSERT_NO_FATAL_FAILURE(
            expect_attention(made, sequence.get(), 0, turned, 0, 0, out, /*arithmetic=*/0, rotation))
            << tokens;
      }
    }
  }
}

// Gemma 3's two bases and SmolLM3's layers without rotation: each layer as the model has it.
TEST(Rotary, FollowsTheLayer) {
  const std::string json =
      R"({"layers":[-1,1,0,1,-1,0,1],"kinds":[{"theta":1000000.0,"scaling":"linear","scaling_json":"{\"factor\":8.0}"},)"
      R"({"theta":500.0,"scaling":"none","scaling_json":""}]})";
  Made made({.shape = {4, 4, 2, 32, 32}, .rope = {10000.0, "half-split", "by-layer", json, 16}});
  std::vector<int> layers;
  for (const uint16_t layer : made.codebook().layer_index) layers.push_back(layer);
  const RopeInfo kinds[] = {{1e6, "half-split", "linear", R"({"factor":8.0})", 16},
                            {500.0, "half-split", "none", "", 16}};
  const int kind_of_layer[] = {-1, 1, 0, 1, -1, 0, 1};
  const Artifact artifact = open(made.bytes());
  const Sequence sequence = create(artifact.get());
  const Text text(made, 300);
  text.append(made, sequence.get(), 0, 300);
  std::vector<std::vector<float>> outputs;
  const std::vector<float> query = made.queries(1);
  for (int l = 0; l < 4; ++l) {
    const int kind = kind_of_layer[layers[l]];
    reference::Rotation rotation;
    if (kind >= 0) {
      const host::RopeFrequencies f = host::rope_frequencies(kinds[kind]);
      rotation.frequencies.assign(f.inverse.begin(), f.inverse.end());
      rotation.factor = f.attention_factor;
    }
    std::vector<float> turned = query;
    ASSERT_EQ(kvcc_rotate_layer(sequence.get(), l, turned.data(), 299, 1), KVCC_OK);
    for (int h = 0; h < 4; ++h) {
      for (int i = 0; i < 8; ++i) {
        const double angle = kind < 0 ? 0 : 299 * rotation.frequencies[i];
        const double a = query[h * 32 + i], b = query[h * 32 + i + 8];
        EXPECT_NEAR(turned[h * 32 + i], a * std::cos(angle) - b * std::sin(angle), 2e-6) << "layer " << layers[l];
        EXPECT_NEAR(turned[h * 32 + i + 8], b * std::cos(angle) + a * std::sin(angle), 2e-6) << "layer " << layers[l];
      }
    }
    const auto out = attend(sequence.get(), l, turned, made);
    ASSERT_NO_FATAL_FAILURE(expect_attention(made, sequence.get(), l, turned, 0, 0, out, /*arithmetic=*/0, rotation));
  }
  std::vector<float> turned = query;
  EXPECT_EQ(kvcc_rotate(sequence.get(), turned.data(), 299, 1), KVCC_USAGE);
  EXPECT_NE(std::string(kvcc_error_message()).find("kvcc_rotate_layer"), std::string::npos);
  EXPECT_EQ(kvcc_rotate_layer(sequence.get(), 4, turned.data(), 299, 1), KVCC_USAGE);
  EXPECT_EQ(kvcc_rotate_layer(sequence.get(), -1, turned.data(), 299, 1), KVCC_USAGE);
}

TEST(Rotary, RefusesListsOfLayersThatAreNone) {
  const std::string kind = R"([{"theta":10000.0,"scaling":"none","scaling_json":""}])";
  for (const auto& [json, word] : std::vector<std::pair<std::string, std::string>>{
           {"", "by-layer"},
           {"{}", "layers"},
           {R"({"layers":[0,1,1,0,0,0,0],"kinds":)" + kind + "}", "a layer of kind 1"},
           {R"({"layers":[0,-2,0,0,0,0,0],"kinds":)" + kind + "}", "a layer of kind -2"},
           {R"({"layers":[0],"kinds":)" + kind + "}", "no layer"},
           {R"({"layers":[0,0,0,0,0,0,0],"kinds":[]})", "no kinds"},
           {R"({"layers":[0,0,0,0,0,0,0],"kinds":[{"theta":10000.0}]})", "scaling"}}) {
    Made made({.shape = {4, 4, 2, 32, 32}, .rope = {10000.0, "half-split", "by-layer", json, 32}});
    const Artifact artifact = open(made.bytes());
    KvccSequence* sequence = nullptr;
    KvccOptions o = options();
    EXPECT_EQ(kvcc_create(artifact.get(), &o, &sequence), KVCC_BAD_INPUT) << json;
    EXPECT_NE(std::string(kvcc_error_message()).find(word), std::string::npos) << kvcc_error_message();
  }
}

TEST(Rotary, TurnsPairsAndLeavesTheRest) {
  Made made({.shape = {1, 2, 1, 32, 32}, .rope = {10000.0, "interleaved", "none", "", 16}});
  const Artifact artifact = open(made.bytes());
  const Sequence sequence = create(artifact.get());
  const std::vector<float> query = made.queries(3);
  std::vector<float> turned = query;
  ASSERT_EQ(kvcc_rotate(sequence.get(), turned.data(), 7, 3), KVCC_OK);
  const auto rotation = rotation_of(made);
  for (int t = 0; t < 3; ++t) {
    for (int h = 0; h < 2; ++h) {
      const size_t at = (t * 2 + h) * 32;
      for (int i = 0; i < 8; ++i) {
        const double angle = (7 + t) * rotation.frequencies[i], a = query[at + 2 * i], b = query[at + 2 * i + 1];
        EXPECT_NEAR(turned[at + 2 * i], a * std::cos(angle) - b * std::sin(angle), 1e-6);
        EXPECT_NEAR(turned[at + 2 * i + 1], b * std::cos(angle) + a * std::sin(angle), 1e-6);
      }
      for (int c = 16; c < 32; ++c) EXPECT_EQ(turned[at + c], query[at + c]);
    }
  }
}

TEST(Threads, SequencesShareAnArtifact) {
  Made made(cases()[0]);
  Artifact artifact = open(made.bytes());
  const Text text(made, 700);
  const std::vector<float> query = made.queries(700);
  const auto decode = [&](int seed) {
    const Sequence sequence = create(artifact.get(), options(2));
    std::vector<float> out(made.of().shape.query_heads * made.of().shape.value_head_dim);
    for (int64_t t = 0; t < 700; ++t) {
      for (int l = 0; l < 2; ++l) {
        EXPECT_EQ(kvcc_append(sequence.get(), l, text.key[l].data() + t * 128, text.value[l].data() + t * 128, 1),
                  KVCC_OK);
        EXPECT_EQ(kvcc_attend(sequence.get(), l, query.data() + (t + seed) % 700 * 384, 0, 0, out.data()), KVCC_OK);
      }
    }
    return std::pair(out, saved(sequence.get()));
  };
  const auto a = decode(0), b = decode(5);
  std::pair<std::vector<float>, std::string> found[4];
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&, i] { found[i] = decode(i % 2 * 5); });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(found[i] == (i % 2 ? b : a)) << i;
}

TEST(Artifacts, LiveAsLongAsTheirSequences) {
  Made made(Case{});
  Artifact artifact = open(made.bytes());
  const Sequence sequence = create(artifact.get());
  artifact.reset();
  const Text text(made, 70);
  text.append(made, sequence.get(), 0, 70);
  EXPECT_EQ(kvcc_length(sequence.get(), 1), 70);
}

}  // namespace
}  // namespace kvcc::test
