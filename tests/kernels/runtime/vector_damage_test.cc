// Artifacts and cache files of vector codebooks that are damaged in one place.
#include <limits>

#include "tests/kernels/runtime/files.h"

namespace kvcc::test {
namespace {

const Case kCase{.scheme = "kvcc-2-head", .shape = {2, 4, 2, 32, 32}, .rope = {1e4, "half-split", "none", "", 32}};

/// Message of opening the artifact with one dataset changed.
template <class T>
std::string refusal(Made& made, const std::string& dataset, size_t at, T value) {
  Tree tree = made.tree();
  std::string& bytes = tree.at(dataset).value.bytes;
  std::memcpy(bytes.data() + at * sizeof value, &value, sizeof value);
  const std::string file = tree_to_safetensors(tree);
  KvccArtifact* artifact = nullptr;
  EXPECT_EQ(kvcc_artifact_open_memory(file.data(), file.size(), "made", &artifact), KVCC_BAD_INPUT) << dataset;
  EXPECT_EQ(artifact, nullptr);
  return kvcc_error_message();
}

TEST(VectorDamage, ArtifactsAreRefusedByField) {
  Made made(kCase);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  for (const char* name :
       {"/key/vectors", "/rotation/key/forward", "/rotation/value/inverse", "/rotation/value/mean"}) {
    const std::string message = refusal(made, name, 5, nan);
    expect(message, std::string(name).substr(1));
    expect(message, "number 5");
  }
  expect(refusal(made, "/key/group_width", 0, uint8_t{9}), "key/");
  expect(refusal(made, "/value/group_bits", 0, uint8_t{200}), "value/vectors");
  Tree tree = made.tree();
  tree.at("/key/vectors").value.bytes.resize(64);
  tree.at("/key/vectors").value.shape = {16};
  const std::string file = tree_to_safetensors(tree);
  KvccArtifact* artifact = nullptr;
  EXPECT_EQ(kvcc_artifact_open_memory(file.data(), file.size(), "made", &artifact), KVCC_BAD_INPUT);
  expect(kvcc_error_message(), "16 numbers");
}

TEST(VectorDamage, TheFormAcrossHeadsIsRefused) {
  Codebook book = made::codebook("kvcc-2");
  const std::string file = tree_to_safetensors(codebook_tree(book));
  KvccArtifact* artifact = nullptr;
  EXPECT_EQ(kvcc_artifact_open_memory(file.data(), file.size(), "made", &artifact), KVCC_USAGE);
  EXPECT_NE(std::string(kvcc_error_message()).find("across the heads of a layer"), std::string::npos);
}

TEST(VectorDamage, BitsOutsideFilledSlotsAreRefused) {
  Made made(kCase);
  const Artifact artifact = open(made.bytes());
  const Sequence sequence = create(artifact.get());
  const Text text(made, 4);  // a sink, and slots 0 to 2
  text.append(made, sequence.get(), 0, 4);
  const std::string file = saved(sequence.get());
  const ordered_json header = header_of(file);
  EXPECT_EQ(header["__metadata__"]["layout"], "vector-1");
  const std::string data = data_of(file);
  EXPECT_EQ(saved(load(artifact.get(), file_of(header, data)).get()), file);
  const auto begin = header["layers.1.key.pages"]["data_offsets"][0].get<size_t>();
  // Lane 5 of the first plane, which owns slots 5 and 37.
  std::string changed = data;
  changed[begin + 4 * 5] = static_cast<char>(changed[begin + 4 * 5] ^ 1);
  EXPECT_EQ(load(artifact.get(), file_of(header, changed)), nullptr);
  const std::string message = kvcc_error_message();
  EXPECT_NE(message.find("layers.1.key.pages, page 0, byte 20"), std::string::npos) << message;
  // Any code of a filled slot is one.
  changed = data;
  changed[begin + 4 * 1] = static_cast<char>(changed[begin + 4 * 1] ^ 1);
  EXPECT_NE(load(artifact.get(), file_of(header, changed)), nullptr);
}

}  // namespace
}  // namespace kvcc::test
