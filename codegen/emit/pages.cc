#include <set>

#include "codegen/emit/emit.h"
#include "formats/layout/linear.h"
#include "formats/layout/mma.h"

namespace kvcc::codegen {

namespace {

PageRule vector_rule(const VectorArrays& vectors) {
  PageRule rule;
  rule.coded = true;
  rule.function = "kvcc_vector_page_bytes";
  rule.code_words = vectors.code_words;
  rule.head_words = vectors.head_words;
  return rule;
}

}  // namespace

PageRule page_rule(const Artifact& artifact, Layout layout, bool keys) {
  if (layout == Layout::vector) return vector_rule(keys ? artifact.key_vectors : artifact.value_vectors);
  const TensorScheme& scheme = keys ? artifact.scheme.key : artifact.scheme.value;
  const TensorTables& tables = keys ? artifact.key : artifact.value;
  const CacheShape& shape = artifact.shape;
  const int head_dim = keys ? shape.head_dim : shape.value_head_dim, channels = shape.kv_heads * head_dim;
  PageRule rule;
  if (scheme.grid == Grid::full) return rule;
  const bool channel = scheme.axis == Axis::channel, mma = layout == Layout::mma;
  rule.coded = true;
  rule.function = mma ? "kvcc_mma_page_bytes" : "kvcc_page_bytes";
  rule.ranges = channel ? 0 : 1;
  rule.tail = channel ? 0 : outliers_per_tail(artifact.scheme.sparse, channels);
  const bool sparse = channel ? artifact.scheme.sparse > 0 : rule.tail > 0;
  if (mma && sparse) {
    const double fraction = channel ? artifact.scheme.sparse : 2.0 * rule.tail / channels;
    rule.classes = static_cast<int>(mma::kClasses);
    rule.default_capacity = static_cast<int>(mma::default_capacity(fraction, head_dim));
  } else if (!mma && channel && sparse) {
    rule.csr = 1;
    rule.default_capacity =
        static_cast<int>(linear::default_capacity(artifact.scheme.sparse, shape.kv_heads, head_dim));
  }
  for (int l = 0; l < shape.layers; ++l) {
    std::vector<uint32_t> first;
    uint32_t words = 0;
    for (int h = 0; h < shape.kv_heads; ++h) {
      const uint32_t bits = tables.bits[l * shape.kv_heads + h];
      first.push_back(words);
      words += mma ? mma::tile_words(head_dim, bits) : linear::kPageTokens * linear::row_words(head_dim, bits);
    }
    rule.head_words.push_back(std::move(first));
    rule.code_words.push_back(static_cast<int32_t>(words));
  }
  if (std::set<uint8_t>(tables.bits.begin(), tables.bits.end()).size() == 1) rule.head_words.clear();
  return rule;
}

}  // namespace kvcc::codegen
