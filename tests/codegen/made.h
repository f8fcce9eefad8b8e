// Artifacts made on the spot for the tests of code generation.
#pragma once

#include <cmath>
#include <string>

#include "codegen/build/compile.h"
#include "codegen/plan/plan.h"
#include "tests/formats/store/made.h"

namespace kvcc::made {

/// A codebook file's content for `layers` layers of `heads` KV heads and `group` query heads each; `bits` 0 takes the
/// scheme's.
inline Codebook kernel_codebook(const std::string& scheme, int layers, int heads, int group, int head_dim,
                                int value_head_dim) {
  Codebook out = codebook(scheme, layers);
  out.model.name = "made";
  out.model.shape = {layers, heads * group, heads, head_dim, value_head_dim};
  out.model.rope = {10000.0, "half-split", "none", "", head_dim};
  out.model.sliding_window_layers = {};
  const bool sparse = out.scheme.sparse > 0;
  out.key = tensor(layers, heads, head_dim, out.scheme.key.bits, out.scheme.key.axis == Axis::channel, sparse, 0.25f);
  out.value = tensor(layers, heads, value_head_dim, out.scheme.value.bits, out.scheme.value.axis == Axis::channel,
                     sparse, 0.5f);
  if (out.scheme.is_vector()) {
    make_vectors(out.key, out.scheme.key, layers, heads, head_dim, 0.25f);
    make_vectors(out.value, out.scheme.value, layers, heads, value_head_dim, 0.5f);
    for (auto* t : {&out.key, &out.value}) {  // a transform proper: every channel follows from several groups
      if (!t->channel_order.empty()) continue;
      for (size_t i = 0; i < t->inverse.size(); ++i) {
        t->inverse[i] += 0.03125f * static_cast<float>(static_cast<int>((i * 7 + i / 64) % 5) - 2);
      }
    }
  }
  return out;
}

/// The same as compile takes it, with a fixed hash.
inline codegen::Artifact kernel_artifact(const std::string& scheme, int layers, int heads, int group, int head_dim,
                                         int value_head_dim) {
  const Codebook book = kernel_codebook(scheme, layers, heads, group, head_dim, value_head_dim);
  codegen::Artifact artifact;
  if (book.scheme.is_vector()) artifact = codegen::describe(book, "tiny-3");
  artifact.name = "tiny-3";
  artifact.content_sha256 = std::string(64, 'a');
  artifact.model = book.model.name;
  artifact.scheme = book.scheme;
  artifact.shape = book.model.shape;
  artifact.rope = book.model.rope;
  if (book.scheme.is_vector()) return artifact;
  artifact.key = {book.key.codes, book.key.codebook, book.key.bits, book.key.scale, book.key.zero};
  artifact.value = {book.value.codes, book.value.codebook, book.value.bits, book.value.scale, book.value.zero};
  return artifact;
}

}  // namespace kvcc::made
