// From an artifact and targets to the units to generate. Pure: no files, no clock, no environment.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codegen/plan/configuration.h"
#include "formats/core/model_info.h"
#include "formats/core/scheme.h"
#include "formats/layout/vector_launch.h"

namespace kvcc::codegen {

/// Levels, widths and static scales of one tensor, as the artifact stores them.
struct TensorTables {
  int codes = 0;                   ///< C
  std::vector<float> levels;       ///< [L, H, C]; entries beyond 2^bits are not read
  std::vector<uint8_t> bits;       ///< [L, H]
  std::vector<float> scale, zero;  ///< [L, H, D]; empty when they are found online
};

/// Vector codebooks of one tensor: how its pages are made, and where its arrays lie in Artifact::vectors.
struct VectorArrays {
  int steps = 0;                                                ///< of KvccVectorTensor::slots, of every layer
  int token_bits = 0;                                           ///< of the head and layer with most
  int table_bytes = 0;                                          ///< of the fp16 tables of the head with most
  double greatest = 0;                                          ///< magnitude that a decoded channel can have
  bool transform = false;                                       ///< of every layer
  std::vector<int32_t> code_words;                              ///< [L] 32-bit words of codes in a page
  std::vector<std::vector<uint32_t>> head_words;                ///< [L][H] words before each head's codes
  std::vector<std::array<int64_t, KVCC_VECTOR_ARRAYS>> places;  ///< [L]
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
  VectorArrays key_vectors, value_vectors;  ///< of vector codebooks, in place of the tables
  std::string vectors;                      ///< bytes that both point into, as kvcc compile writes them; else empty
};

struct Targets {
  std::vector<std::string> archs;  ///< "sm_80", …
  Dtype dtype = Dtype::f16;        ///< of what the GPU's kernels read beside the cache
  std::optional<Layout> layout{};  ///< none: vector-1 of vector codebooks; mma-1 where it has all that the artifact
                                   ///< needs, else linear-1
  std::vector<Family> families{};  ///< empty: all of the layout
  bool cpu = false;                ///< units for the CPU too, or alone where there are no archs
  Dtype cpu_dtype = Dtype::f32;    ///< of what those read beside the cache

  /// The machines that units are wanted for: the GPU but where the CPU is asked for alone.
  std::vector<Machine> machines() const {
    if (!cpu) return {Machine::gpu};
    return archs.empty() ? std::vector{Machine::cpu} : std::vector{Machine::gpu, Machine::cpu};
  }
};

/// What a unit embeds of one tensor.
struct TensorSpec {
  int tail = 0;               ///< outliers of each tail a token, 0 without tail part
  std::vector<float> levels;  ///< [L, H, 2^bits]; zeros for heads of other widths
  std::vector<uint8_t> bits;  ///< [L, H] when the widths are mixed, else empty
};

/// One unit to generate. The tensor is the only one of the family, and the keys of attention.
struct KernelSpec : TensorSpec {
  Configuration configuration;
  Machine machine = Machine::gpu;
  std::string name;           ///< name(configuration); units of both machines may share it
  std::string symbol;         ///< of its entry in the cubin or the library: "kvcc_" + name
  int layers = 0, heads = 0;  ///< 0 for copy_pages
  double sparse = 0;          ///< the scheme's fraction; it decides the default capacity of a page
  TensorSpec value;           ///< of attention
};

/// A family that has nothing to compile for this artifact.
struct Skipped {
  Family family;
  std::string reason;
};

struct Plan {
  Layout layout = Layout::linear;
  std::string layout_reason;        ///< why it is not mma-1, where the targets left it open; else empty
  std::vector<KernelSpec> kernels;  ///< by machine, family, width; names are unique on a machine
  std::vector<Skipped> skipped;
};

/// The greatest |level * scale + zero| that readers of mma-1, which work in fp16, can take: with RoPE the turned number
/// can be sqrt(2) times that.
constexpr double kLargestHalf = 65504.0, kLargestTurned = 46318.0;

/// mma.m16n8k16 with fp16 and cp.async came with it.
constexpr int kOldestMmaArch = 80;

/// All that keeps the artifact's wanted families from layout mma-1, one reason each; empty when nothing does.
std::vector<std::string> obstacles_to_mma(const Artifact& artifact, const Targets& targets);

/// Throws Error(usage) naming what a scheme or model needs that kernels/list does not have, or when nothing is left to
/// compile; Error(bad_input) when the artifact's tables have other shapes than its model.
Plan plan(const Artifact& artifact, const Targets& targets);

}  // namespace kvcc::codegen
