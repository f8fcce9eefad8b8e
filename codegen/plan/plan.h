// From an artifact and targets to the units to generate. Pure: no files, no clock, no environment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/plan/configuration.h"
#include "formats/core/model_info.h"
#include "formats/core/scheme.h"

namespace kvcc::codegen {

/// Levels and widths of one tensor, as the artifact stores them.
struct TensorTables {
  int codes = 0;              ///< C
  std::vector<float> levels;  ///< [L, H, C]; entries beyond 2^bits are not read
  std::vector<uint8_t> bits;  ///< [L, H]
};

/// What compile needs to know of an artifact. A plain description, so that planning and emitting are pure.
struct Artifact {
  std::string name;            ///< of the file, without folder and extension
  std::string content_sha256;  ///< of the codebook
  std::string model;           ///< for people
  Scheme scheme;
  CacheShape shape;
  RopeInfo rope;
  TensorTables key, value;
};

struct Targets {
  std::vector<std::string> archs;  ///< "sm_80", …
  Dtype dtype = Dtype::f16;        ///< of what the kernels read beside the cache
};

/// One unit to generate.
struct KernelSpec {
  Configuration configuration;
  std::string name;    ///< name(configuration)
  std::string symbol;  ///< of its entry in the cubin: "kvcc_" + name
  int layers = 0, heads = 0;
  int tail = 0;               ///< outliers of each tail a token, 0 without tail part
  double sparse = 0;          ///< the scheme's fraction; with csr it decides the default capacity of a page
  std::vector<float> levels;  ///< [L, H, 2^bits]; zeros for heads of other widths
  std::vector<uint8_t> bits;  ///< [L, H] when the widths are mixed, else empty
};

/// A family that has nothing to compile for this artifact.
struct Skipped {
  Family family;
  std::string reason;
};

struct Plan {
  std::vector<KernelSpec> kernels;  ///< by family, then width; names are unique
  std::vector<Skipped> skipped;
};

/// Throws Error(usage) naming what a scheme or model needs that kernels/list does not have, or when nothing is left to
/// compile; Error(bad_input) when the artifact's tables have other shapes than its model.
Plan plan(const Artifact& artifact, const Targets& targets);

}  // namespace kvcc::codegen
