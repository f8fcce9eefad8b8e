// Vector codebooks of an artifact in its safetensors export, layer by layer as the CPU units take them. Host only.
#pragma once

#include <string>
#include <vector>

#include "formats/codec/vector_tables.h"
#include "kernels/host/runtime_metadata.h"

namespace kvcc::host {

/// One of the two tensors, [L]; `name`: "key" or "value". Throws Error(bad_input), naming the field, for what is
/// absent, of another shape, not finite, or whose groups do not tile a head.
std::vector<VectorTables> read_vectors(const FileFields& fields, const std::string& name, int layers, int heads,
                                       int dim);

}  // namespace kvcc::host
