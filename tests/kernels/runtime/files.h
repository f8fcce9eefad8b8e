// What the tests of cache files share: loading, taking a file apart and putting it together again, the example of
// formats/spec/cache-file.md.
#pragma once

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/core/json.h"
#include "tests/kernels/runtime/made.h"

namespace kvcc::test {

using nlohmann::ordered_json;

inline Sequence load(const KvccArtifact* artifact, const std::string& bytes, const KvccOptions& o = options()) {
  const std::string path = scratch_file();
  std::ofstream(path, std::ios::binary) << bytes;
  KvccSequence* sequence = nullptr;
  const int code = kvcc_load(artifact, path.c_str(), &o, &sequence);
  std::filesystem::remove(path);
  EXPECT_EQ(code == KVCC_OK, sequence != nullptr);
  return Sequence(sequence);
}

inline ordered_json header_of(const std::string& file) {
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof length);
  return ordered_json::parse(file.substr(8, length));
}
inline std::string data_of(const std::string& file) {
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof length);
  return file.substr(8 + length);
}

/// The file of a header and data, with the checksum of what they hold.
inline std::string file_of(ordered_json header, const std::string& data, bool checksum = true) {
  if (checksum) {
    std::map<std::string, std::string> metadata = header.at("__metadata__");
    std::map<std::string, ordered_json> tensors;
    std::string text;
    for (const auto& [name, value] : metadata) {
      if (name == "content_sha256") continue;
      text.append("metadata ").append(name).append(" ").append(std::to_string(value.size())).append("\n");
      text.append(value).append("\n");
    }
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") tensors[name] = entry;
    }
    for (const auto& [name, entry] : tensors) {
      std::string shape;
      for (const int64_t n : json_member<std::vector<int64_t>>(entry, "shape", name)) {
        if (!shape.empty()) shape += 'x';
        shape += std::to_string(n);
      }
      const auto [begin, end] = json_member<std::array<uint64_t, 2>>(entry, "data_offsets", name);
      text.append("tensor ")
          .append(name)
          .append(" ")
          .append(entry.at("dtype").get<std::string>())
          .append(" ")
          .append(shape);
      text.append(" ").append(std::to_string(end - begin)).append("\n").append(data, begin, end - begin).append("\n");
    }
    header["__metadata__"]["content_sha256"] = sha256_hex(text);
  }
  std::string json = header.dump();
  json.resize((json.size() + 8 + 127) / 128 * 128 - 8, ' ');
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + json + data;
}

/// The example of the page, in two pieces: what the artifact is, what is appended.
class Example {
 public:
  Example()
      : made_({.scheme = "k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=1",
               .shape = {1, 1, 1, 16, 16},
               .rope = {1e4, "half-split", "none", "", 16}}) {
    Tree& tree = made_.tree();
    std::vector<float> levels;
    for (int j = 0; j < 8; ++j) levels.push_back(-0.875f + 0.25f * static_cast<float>(j));
    for (const char* at : {"/key/codebook", "/value/codebook"}) {
      tree[at].value = array_value(Element::f32, {1, 1, 8}, levels);
    }
    for (const auto& [name, value] : {std::pair<const char*, float>{"scale", 2},
                                      {"zero", 0.5f},
                                      {"threshold_lower", -1.5f},
                                      {"threshold_upper", 2.5f}}) {
      tree[std::string("/key/") + name].value = array_value(Element::f32, {1, 1, 16}, std::vector<float>(16, value));
    }
    tree["/model"].attributes["name"] = text_value("example");
    tree["/"].attributes["content_sha256"] = text_value(std::string(64, 'a'));
    artifact_ = open(tree_to_safetensors(tree));
    sequence_ = create(artifact_.get());
    std::vector<float> x;
    for (int t = 0; t < 3; ++t) {
      for (int c = 0; c < 16; ++c) {
        const auto channel = static_cast<float>(c);
        x.push_back(t == 0 ? channel / 8 : t == 2 && c == 3 ? 5 : t == 2 && c == 15 ? -7.5f : -1.25f + 0.25f * channel);
      }
    }
    EXPECT_EQ(kvcc_append(sequence_.get(), 0, x.data(), x.data(), 3), KVCC_OK) << kvcc_error_message();
    const int32_t ids[] = {1, 2, 300};
    const made::TemporaryFolder folder;
    EXPECT_EQ(kvcc_save(sequence_.get(), (folder / "f").c_str(), ids, 3), KVCC_OK) << kvcc_error_message();
    file_ = read_text_file(folder / "f");
  }
  const KvccArtifact* artifact() const { return artifact_.get(); }
  const std::string& file() const { return file_; }

 private:
  Made made_;
  Artifact artifact_;
  Sequence sequence_;
  std::string file_;
};

}  // namespace kvcc::test
