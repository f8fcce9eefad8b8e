#include <algorithm>

#include "codegen/build/compile.h"

namespace kvcc::codegen {

Artifact describe(const Codebook& codebook, const std::string& name) {
  Artifact artifact;
  artifact.name = name;
  artifact.content_sha256 = codebook.content_sha256;
  artifact.model = codebook.model.name;
  artifact.scheme = codebook.scheme;
  artifact.shape = codebook.model.shape;
  artifact.shape.layers = static_cast<int>(codebook.layer_index.size());
  artifact.rope = codebook.model.rope;
  artifact.key = {codebook.key.codes, codebook.key.codebook, codebook.key.bits, codebook.key.scale, codebook.key.zero};
  artifact.value = {codebook.value.codes, codebook.value.codebook, codebook.value.bits, codebook.value.scale,
                    codebook.value.zero};
  return artifact;
}

}  // namespace kvcc::codegen
