// Artifacts as the runtime takes them: what it refuses, and by what name.
#include <nlohmann/json.hpp>

#include "tests/kernels/runtime/made.h"

namespace kvcc::test {
namespace {

using nlohmann::ordered_json;

void expect_refused(const std::string& bytes, int code, const std::string& part) {
  KvccArtifact* artifact = nullptr;
  EXPECT_EQ(kvcc_artifact_open_memory(bytes.data(), bytes.size(), "made", &artifact), code) << part;
  EXPECT_EQ(artifact, nullptr) << part;
  const std::string message = kvcc_error_message();
  EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
  EXPECT_EQ(message.substr(0, 4), "made") << message;
}

TEST(Artifacts, SayTheirShape) {
  Made made({.scheme = "k=nuq3@prerope/channel,v=nuq4@token,sparse=2%,sink=2,residual=20",
             .shape = {1, 9, 3, 64, 48},
             .rope = {1e4, "half-split", "none", "", 32}});
  const Artifact artifact = open(made.bytes());
  KvccShape s;
  ASSERT_EQ(kvcc_artifact_shape(artifact.get(), &s), KVCC_OK);
  EXPECT_EQ(s.layers, 1);
  EXPECT_EQ(s.query_heads, 9);
  EXPECT_EQ(s.kv_heads, 3);
  EXPECT_EQ(s.head_dim, 64);
  EXPECT_EQ(s.value_head_dim, 48);
  EXPECT_EQ(s.rotary_dim, 32);
  EXPECT_EQ(s.sink, 2);
  EXPECT_EQ(s.residual, 20);
  const Artifact turned = open(Made(cases()[4]).bytes());
  ASSERT_EQ(kvcc_artifact_shape(turned.get(), &s), KVCC_OK);
  EXPECT_EQ(s.rotary_dim, 0);  // keys come turned
}

TEST(Artifacts, LayoutsThatCannotBeHeldAreNamed) {
  const auto refused = [](const Case& c, const std::string& part) {
    expect_refused(Made(c).bytes(), KVCC_USAGE, part);
  };
  refused({.shape = {1, 2, 2, 72, 64}, .rope = {1e4, "half-split", "none", "", 64}}, "2 key heads of 72");
  refused({.shape = {1, 2, 2, 64, 8}}, "2 value heads of 8");
  refused({.shape = {1, 2, 2, 272, 64}}, "2 key heads of 272");
  refused({.shape = {1, 512, 512, 144, 64}}, "512 key heads of 144");
  refused({.scheme = "k=nuq5@prerope/channel,v=nuq3@token,sparse=1%"}, "keys of 5 bits");
  refused({.scheme = "k=nuq3@prerope/channel,v=int6@token,sparse=1%"}, "values of 6 bits");
  refused({.rope = {1e4, "half-split", "none", "", 24}}, "24 rotary channels");
  refused({.scheme = "k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=20000000"}, "sink 20000000");
  refused({.key_bits = {3, 1}}, "keys of 1 bits");
}

/// The file with one thing changed.
class Changed : public testing::Test {
 protected:
  Changed() : made_({.shape = {2, 6, 2, 16, 16}, .rope = {1e4, "half-split", "none", "", 16}}) {
    std::memcpy(&length_, made_.bytes().data(), 8);
    header_ = ordered_json::parse(made_.bytes().substr(8, length_));
    data_ = made_.bytes().substr(8 + length_);
  }
  static std::string file_of(const ordered_json& header, const std::string& data) {
    const std::string json = header.dump();
    const uint64_t length = json.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + json + data;
  }
  void metadata(const std::string& name, const ordered_json& value, const std::string& part,
                int code = KVCC_BAD_INPUT) {
    ordered_json changed = header_;
    if (value.is_null()) {
      changed["__metadata__"].erase(name);
    } else {
      changed["__metadata__"][name] = value;
    }
    expect_refused(file_of(changed, data_), code, part);
  }
  template <class T>
  void element(const std::string& tensor, size_t i, T value, const std::string& part, int code = KVCC_BAD_INPUT) {
    std::string changed = data_;
    std::memcpy(changed.data() + header_[tensor]["data_offsets"][0].get<size_t>() + i * sizeof value, &value,
                sizeof value);
    expect_refused(file_of(header_, changed), code, part);
  }

  Made made_;
  uint64_t length_ = 0;
  ordered_json header_;
  std::string data_;
};

TEST_F(Changed, FieldsOfTheMetadata) {
  expect_refused(made_.bytes().substr(0, 5), KVCC_BAD_INPUT, "truncated");
  metadata("format", "gguf", "no codebook artifact");
  metadata("format", nullptr, "no codebook artifact");
  metadata("format_version", "2.0", "up to 1.x");
  metadata("format_version", "1", "MAJOR.MINOR");
  metadata("format_version", "1.x", "MAJOR.MINOR");
  metadata("content_sha256", "abc", "64 lower-case");
  metadata("content_sha256", std::string(64, 'A'), "64 lower-case");
  metadata("scheme", "k=nuq3", "scheme");
  metadata("scheme", "fp", "scheme");
  metadata("scheme", "kivi-2", "scheme");
  metadata("scheme", "kvcc-nuq3-1%-qnorm-sink1", "scheme");
  metadata("scheme_json", "{}", "scheme_json");
  for (const char* name : {"layers", "kv_heads", "query_heads", "head_dim", "value_head_dim"}) {
    for (const char* value : {"0", "-1", "x", "", "99999999999", "3 ", "1.5"}) {
      metadata(std::string("model.") + name, value, name);
    }
    metadata(std::string("model.") + name, nullptr, "not in the file's metadata");
  }
  metadata("model.query_heads", "5", "a multiple of the 2 KV heads");
  metadata("model.layers", "3", "layer_index");
  metadata("model.kv_heads", "3", "key/bits");
  metadata("model.head_dim", "32", "key/scale");
  metadata("model.rope_theta", "nan", "a number");
  metadata("model.rope_theta", "", "a number");
  for (const char* theta : {"0", "-10000"}) metadata("model.rope_theta", theta, "above 0");
  metadata("model.rope_kind", "x", "half-split or interleaved");
  metadata("model.rope_rotary_dim", "15", "an even number");
  metadata("model.rope_rotary_dim", "18", "0 to 16");
  metadata("model.rope_scaling", nullptr, "not in the file's metadata");
}

TEST_F(Changed, ValuesOfTheTensors) {
  const float nan = std::nanf("");
  element<uint16_t>("layer_index", 0, 2, "ascending");
  for (const std::string t : {"key", "value"}) {
    element<uint8_t>(t + "/bits", 3, 9, "9 at layer 1 head 1; wanted 1 to 8");
    element<uint8_t>(t + "/bits", 3, 0, "1 to 8");
    element<uint8_t>(t + "/bits", 3, 5, t + "s of 5 bits", KVCC_USAGE);
    element<uint8_t>(t + "/bits", 0, 4, t + "/codebook");
    element<float>(t + "/codebook", 9, nan, "layer 0 head 1 code 1");
    element<float>(t + "/codebook", 9, 1.5f, "[-1, 1]");
    element<float>(t + "/codebook", 9, -0.9999f, "do not decrease");
  }
  element<float>("key/scale", 33, 0, "layer 1 head 0 channel 1");
  element<float>("key/scale", 16, nan, "layer 0 head 1 channel 0");
  element<float>("key/zero", 16, INFINITY, "layer 0 head 1 channel 0");
  element<float>("key/threshold_lower", 16, nan, "a finite value");
  element<float>("key/threshold_upper", 16, -100, "not above the upper");
}

TEST_F(Changed, TensorsThatAreMissingOrOfAnotherShape) {
  for (const char* name : {"layer_index", "key/bits", "key/codebook", "key/scale", "key/zero", "key/threshold_lower",
                           "key/threshold_upper", "value/bits", "value/codebook"}) {
    ordered_json without = header_;  // its bytes become another's, so that no hole gives it away
    without.erase(name);
    without["other"] = header_[name];
    expect_refused(file_of(without, data_), KVCC_BAD_INPUT, std::string(name) + ": no such tensor");
    ordered_json flat = header_;
    flat[name]["shape"].push_back(1);
    expect_refused(file_of(flat, data_), KVCC_BAD_INPUT, name);
  }
  ordered_json optional = header_;  // statistics are for people
  optional["key/stats/other"] = optional["key/stats/mean"];
  optional.erase("key/stats/mean");
  KvccArtifact* artifact = nullptr;
  const std::string bytes = file_of(optional, data_);
  EXPECT_EQ(kvcc_artifact_open_memory(bytes.data(), bytes.size(), "made", &artifact), KVCC_OK) << kvcc_error_message();
  kvcc_artifact_free(artifact);
}

TEST_F(Changed, EveryTruncationIsRefused) {
  for (size_t size = 0; size < made_.bytes().size(); size += 1 + size / 100) {
    expect_refused(made_.bytes().substr(0, size), KVCC_BAD_INPUT, "made");
  }
}

TEST_F(Changed, DamagedHeadersNeverCrash) {
  for (int run = 0; run < 3000; ++run) {
    std::string bytes = made_.bytes();
    for (int i = 0; i < 1 + run % 3; ++i) {
      const size_t at = made_.random()() % (run % 2 ? bytes.size() : 8 + length_);
      bytes[at] = run % 5 == 0 ? static_cast<char>(bytes[at] ^ 1) : static_cast<char>(made_.random()());
    }
    KvccArtifact* artifact = nullptr;
    if (kvcc_artifact_open_memory(bytes.data(), bytes.size(), "made", &artifact) != KVCC_OK) continue;
    KvccSequence* sequence = nullptr;
    const KvccOptions o = options();
    if (kvcc_create(artifact, &o, &sequence) == KVCC_OK) {
      const std::vector<float> x(32, 0.25f);
      EXPECT_EQ(kvcc_append(sequence, 0, x.data(), x.data(), 1), KVCC_OK) << kvcc_error_message();
    }
    kvcc_free(sequence);
    kvcc_artifact_free(artifact);
  }
}

TEST(Scalings, WhatIsWrongWithThemIsSaidWhenASequenceIsMade) {
  for (const auto& [scaling, json, part] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"linear", "{}", "factor"},
           {"dynamic", R"({"factor":2})", "max_position_embeddings"},
           {"longrope", R"({"original_max_position_embeddings":64,"factor":2,"short_factor":[1]})", "short_factor"}}) {
    Made made({.rope = {1e4, "half-split", scaling, json, 64}});
    const Artifact artifact = open(made.bytes());
    KvccSequence* sequence = nullptr;
    EXPECT_EQ(kvcc_create(artifact.get(), nullptr, &sequence), KVCC_BAD_INPUT);
    EXPECT_NE(std::string(kvcc_error_message()).find(part), std::string::npos) << kvcc_error_message();
  }
  Made made({.rope = {1e4, "half-split", "linear", R"({"factor":2})", 64}});
  Tree tree = made.tree();  // kvcc writes no artifact of a scaling that it does not know
  tree["/model"].attributes["rope_scaling"] = text_value("spiral");
  tree["/"].attributes["content_sha256"] = text_value(content_sha256(tree));
  const Artifact artifact = open(tree_to_safetensors(tree));
  KvccSequence* sequence = nullptr;
  EXPECT_EQ(kvcc_create(artifact.get(), nullptr, &sequence), KVCC_BAD_INPUT);
  EXPECT_NE(std::string(kvcc_error_message()).find("spiral"), std::string::npos) << kvcc_error_message();
}

}  // namespace
}  // namespace kvcc::test
