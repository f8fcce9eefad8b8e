#include <algorithm>

#include "codegen/build/compile.h"
#include "formats/codec/vector_fragments.h"
#include "formats/codec/vector_tables.h"
#include "formats/core/error.h"

namespace kvcc::codegen {
namespace {

template <class T>
std::vector<T> layer_of(const std::vector<T>& all, int layer, size_t each) {
  const auto begin = all.begin() + static_cast<int64_t>(layer * each);
  return {begin, begin + static_cast<int64_t>(each)};
}

VectorQuantiser quantiser_of(const TensorCodebooks& stored, const CacheShape& shape, int dim, int layer) {
  const size_t n = stored.coordinates, all = n * stored.units;
  const std::vector<size_t> offsets = vector_offsets(stored, shape.layers);
  const float* const first = stored.vectors.data();
  return {shape.kv_heads,
          dim,
          stored.units,
          layer_of(stored.rotation_mean, layer, all),
          layer_of(stored.forward, layer, all * n),
          layer_of(stored.inverse, layer, all * n),
          layer_of(stored.group_width, layer, all),
          layer_of(stored.group_bits, layer, all),
          std::vector<float>(first + offsets[layer], first + offsets[layer + 1])};
}

/// One unit serves all layers: where one needs a transform, all are given it.
VectorArrays describe_vectors(const TensorCodebooks& stored, const CacheShape& shape, int dim, FragmentsOf of,
                              std::string& bytes) {
  using Form = VectorTables::Form;
  std::vector<VectorTables> layers;
  VectorArrays arrays;
  for (int l = 0; l < shape.layers; ++l) {
    layers.emplace_back(quantiser_of(stored, shape, dim, l));
    arrays.transform = arrays.transform || layers.back().tensor().transform != 0;
  }
  for (int l = 0; l < shape.layers; ++l) {
    if (arrays.transform && layers[l].tensor().transform == 0) {
      layers[l] = VectorTables(quantiser_of(stored, shape, dim, l), Form::transform);
    }
    arrays.steps = std::max(arrays.steps, fragment_steps(layers[l].tensor(), shape.kv_heads, of));
    for (int h = 0; h < shape.kv_heads; ++h) {
      arrays.token_bits = std::max(arrays.token_bits, layers[l].tensor().token_bits[h]);
    }
  }
  for (int l = 0; l < shape.layers; ++l) {
    const VectorFragments fragments = make_fragments(layers[l].tensor(), shape.kv_heads, of, arrays.steps);
    arrays.table_bytes = std::max(arrays.table_bytes, fragments.table_bytes);
    arrays.greatest = std::max(arrays.greatest, fragments.greatest);
    arrays.code_words.push_back(static_cast<int32_t>(layers[l].code_words()));
    arrays.head_words.push_back(layers[l].head_words());
    arrays.places.push_back(layers[l].append_to(bytes));
    fragments.append_to(bytes, arrays.places.back());
  }
  return arrays;
}

}  // namespace

Artifact describe(const Codebook& codebook, const std::string& name) {
  Artifact artifact;
  artifact.name = name;
  artifact.content_sha256 = codebook.content_sha256;
  artifact.model = codebook.model.name;
  artifact.scheme = codebook.scheme;
  artifact.shape = codebook.model.shape;
  artifact.shape.layers = static_cast<int>(codebook.layer_index.size());
  artifact.rope = codebook.model.rope;
  if (!codebook.scheme.is_vector()) {
    artifact.key = {codebook.key.codes, codebook.key.codebook, codebook.key.bits, codebook.key.scale,
                    codebook.key.zero};
    artifact.value = {codebook.value.codes, codebook.value.codebook, codebook.value.bits, codebook.value.scale,
                      codebook.value.zero};
    return artifact;
  }
  try {
    const CacheShape& shape = artifact.shape;
    artifact.key_vectors = describe_vectors(codebook.key, shape, shape.head_dim, FragmentsOf::keys, artifact.vectors);
    artifact.value_vectors =
        describe_vectors(codebook.value, shape, shape.value_head_dim, FragmentsOf::values, artifact.vectors);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    throw Error(ErrorKind::usage, name + ", " + error.place(), error.found(), error.wanted(), error.hint());
  }
  return artifact;
}

}  // namespace kvcc::codegen
