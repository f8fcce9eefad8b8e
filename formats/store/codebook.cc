#include "formats/store/codebook.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/store/codebook_fields.h"
#include "formats/store/codebook_parse.h"
#include "formats/store/problems.h"
#include "formats/store/versions.h"

namespace kvcc {
namespace {

/// The least version that has what the file holds: 1.3 is of cap and qnorm, 1.4 of vector codebooks, 1.5 of
/// their energies, 1.6 of values that are predicted.
const char* written_version(const Codebook& codebook) {
  if (codebook.scheme.value.predicted) return kCodebookVersion;
  if (!codebook.key.stats.energy.empty() || !codebook.value.stats.energy.empty()) return "1.5";
  return codebook.scheme.is_vector() ? "1.4" : codebook.scheme.is_extended() ? "1.3" : "1.2";
}

void put_dataset(Tree& tree, const std::string& path, TreeValue value, const char* axes, const char* unit) {
  TreeObject& object = tree[path];
  object.dataset = true;
  object.value = std::move(value);
  object.attributes["axes"] = text_value(axes);
  object.attributes["unit"] = text_value(unit);
}

void put_model(Tree& tree, const ModelInfo& model) {
  auto& to = tree["/model"].attributes;
  to["name"] = text_value(model.name);
  to["architecture"] = text_value(model.architecture);
  to["weights_sha256"] = text_value(model.weights_sha256);
  to["layers"] = integer_value(model.shape.layers);
  to["query_heads"] = integer_value(model.shape.query_heads);
  to["kv_heads"] = integer_value(model.shape.kv_heads);
  to["head_dim"] = integer_value(model.shape.head_dim);
  to["value_head_dim"] = integer_value(model.shape.value_head_dim);
  to["rope_theta"] = float_value(model.rope.theta);
  to["rope_kind"] = text_value(model.rope.kind);
  to["rope_scaling"] = text_value(model.rope.scaling);
  to["rope_scaling_json"] = text_value(model.rope.scaling_json);
  to["rope_rotary_dim"] = integer_value(model.rope.rotary_dim);
  to["qk_norm"] = integer_value(model.qk_norm ? 1 : 0);
  if (model.attention_bias) to["attention_bias"] = integer_value(*model.attention_bias ? 1 : 0);
  to["sliding_window_layers"] = array_value(Element::i32, {static_cast<int64_t>(model.sliding_window_layers.size())},
                                            model.sliding_window_layers);
  to["dtype"] = text_value(model.dtype);
}

void put_provenance(Tree& tree, const Provenance& provenance) {
  auto& to = tree["/provenance"].attributes;
  to["tool_version"] = text_value(provenance.tool_version);
  to["dataset_name"] = text_value(provenance.dataset_name);
  to["dataset_sha256"] = text_value(provenance.dataset_sha256);
  to["dataset_flavour"] = text_value(provenance.dataset_flavour);
  to["tokenizer_sha256"] = text_value(provenance.tokenizer_sha256);
  to["bos"] = text_value(provenance.bos);
  to["samples"] = integer_value(provenance.samples);
  to["seqlen"] = integer_value(provenance.seqlen);
  to["seed"] = integer_value(provenance.seed);
  to["tokens"] = integer_value(provenance.tokens);
  if (provenance.samples_asked > 0) to["samples_asked"] = integer_value(provenance.samples_asked);
  if (!provenance.quantised_weights.empty()) to["quantised_weights"] = text_value(provenance.quantised_weights);
  if (provenance.held_out > 0) to["held_out"] = integer_value(provenance.held_out);
  to["activations_sha256"] = text_value(provenance.activations_sha256);
  if (!provenance.date.empty()) to["date"] = text_value(provenance.date);
  if (!provenance.shard.empty()) {
    to["parent_sha256"] = text_value(provenance.parent_sha256);
    to["shard"] = text_value(provenance.shard);
  }
  if (!provenance.sources_json.empty()) to["sources"] = text_value(provenance.sources_json);
}

void put_tensor(Tree& tree, const std::string& path, const TensorCodebooks& tensor, const CacheShape& shape, int dim) {
  for (const CodebookField& field : tensor_fields()) {
    std::vector<int64_t> extents = field_extents(field, shape, tensor, dim);
    if (extents.back() < 0)
      extents.back() = extents.size() == 1 ? static_cast<int64_t>(tensor.vectors.size()) : tensor.codes;
    size_t count = 1;
    for (const int64_t extent : extents) count *= static_cast<size_t>(extent);
    const std::string where = field_path(field, path);
    const auto put = [&](const auto& data) {
      if (data.empty()) return;
      if (data.size() != count) {
        throw Error(ErrorKind::failed, where, fmt::format("{} values", data.size()), fmt::format("{}", count));
      }
      put_dataset(tree, where, array_value(field.type, extents, data), field.axes, field.unit);
    };
    if (field.floats != nullptr) put(tensor.*field.floats);
    if (field.bytes != nullptr) put(tensor.*field.bytes);
    if (field.words != nullptr) put(tensor.*field.words);
    if (field.stat_floats != nullptr) put(tensor.stats.*field.stat_floats);
    if (field.stat_words != nullptr) put(tensor.stats.*field.stat_words);
  }
}

Tree tree_of(const Codebook& codebook) {
  Tree tree = codebook.extras;
  auto& root = tree["/"].attributes;
  root["format"] = text_value("kvcc-codebook");
  // A rewritten file of a later minor version keeps its number with the additions it keeps.
  root["format_version"] = text_value(codebook.extras.empty() ? written_version(codebook) : codebook.format_version);
  root["scheme"] = text_value(to_string(codebook.scheme));
  root["scheme_json"] = text_value(scheme_json(codebook.scheme));
  put_model(tree, codebook.model);
  put_provenance(tree, codebook.provenance);
  put_dataset(tree, "/layer_index",
              array_value(Element::u16, {static_cast<int64_t>(codebook.layer_index.size())}, codebook.layer_index),
              "layer", "1");
  put_tensor(tree, "/key", codebook.key, codebook.model.shape, codebook.model.shape.head_dim);
  put_tensor(tree, "/value", codebook.value, codebook.model.shape, codebook.model.shape.value_head_dim);
  // The groups above a dataset are objects of the file too, and the checksum covers them.
  std::vector<std::string> groups;
  for (const auto& [path, object] : tree) {
    for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      groups.push_back(path.substr(0, slash));
    }
  }
  for (const std::string& group : groups) tree[group];
  root["content_sha256"] = text_value(content_sha256(tree));
  return tree;
}

/// Sets what the file will say of itself.
Tree checked_tree(Codebook& codebook, const std::string& place) {
  Tree tree = tree_of(codebook);
  const ParsedCodebook parsed = parse_codebook(tree);
  if (!parsed.problems.empty()) {
    throw Error(ErrorKind::failed, place, fmt::format("refusing to write: {}", listing(parsed.problems)));
  }
  codebook.content_sha256 = parsed.codebook.content_sha256;
  codebook.format_version = parsed.codebook.format_version;
  return tree;
}

Tree read_tree(const std::string& path) {
  const MappedFile file(path);
  return hdf5_to_tree(file.bytes(), path);
}

}  // namespace

EffectiveBitsQuery bits_query(const Codebook& codebook, EffectiveBitsQuery query) {
  query.key_outlier_fraction = mean_outlier_fraction(codebook.key.outlier_fraction);
  if (!codebook.scheme.is_vector()) return query;
  int64_t codes = 0, floats = 0;
  for (const TensorCodebooks* tensor : {&codebook.key, &codebook.value}) {
    for (const uint8_t bits : tensor->group_bits) codes += bits;
    for (const auto* transform : {&tensor->forward, &tensor->inverse, &tensor->from_key}) {
      floats += static_cast<int64_t>(transform->size()) - std::count(transform->begin(), transform->end(), 0.0f);
    }
    floats += static_cast<int64_t>(tensor->vectors.size() + tensor->rotation_mean.size());
  }
  const CacheShape& shape = codebook.model.shape;
  query.code_bits = static_cast<double>(codes) /
                    (static_cast<double>(shape.layers) * shape.kv_heads * (shape.head_dim + shape.value_head_dim));
  query.vector_bytes = floats * static_cast<int64_t>(sizeof(float));
  return query;
}

std::vector<size_t> vector_offsets(const TensorCodebooks& tensor, int layers) {
  std::vector<size_t> offsets{0};
  const size_t row = static_cast<size_t>(tensor.units) * tensor.coordinates;
  for (int layer = 0; layer < layers; ++layer) {
    size_t numbers = 0;
    for (size_t i = layer * row; i < (layer + 1) * row; ++i) {
      if (tensor.group_width[i] > 0)
        numbers += (size_t{1} << std::min<int>(tensor.group_bits[i], 16)) * tensor.group_width[i];
    }
    offsets.push_back(offsets.back() + numbers);
  }
  return offsets;
}

void write_codebook(AtomicFile& file, const std::string& path, Codebook& codebook) {
  const Tree tree = checked_tree(codebook, path);
  file.write(tree_to_hdf5(tree));
  file.commit();
}

void write_codebook(const std::string& path, Codebook& codebook) {
  AtomicFile file(path);
  write_codebook(file, path, codebook);
}

Tree codebook_tree(Codebook& codebook) { return checked_tree(codebook, "the artifact"); }

Codebook read_codebook(const std::string& path) {
  ParsedCodebook parsed = parse_codebook(read_tree(path));
  if (!parsed.problems.empty()) {
    throw bad_input(path, listing(parsed.problems), "",
                    parsed.problems.size() > 1 ? "'kvcc validate' lists them all" : "");
  }
  return std::move(parsed.codebook);
}

std::vector<std::string> validate_codebook(const std::string& path) {
  const MappedFile file(path);
  try {
    return parse_codebook(hdf5_to_tree(file.bytes(), path)).problems;
  } catch (const Error& error) {
    return {error.what()};
  }
}

}  // namespace kvcc
