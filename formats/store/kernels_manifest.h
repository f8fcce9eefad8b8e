// kernels.json: what kvcc compile wrote, and how a runtime launches it (CLI.md; formats/spec/kernels.md).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvcc {

/// Of what is written. Readers refuse a higher version, and know what a higher minor one adds by its members.
inline constexpr int kKernelsSchema = 1, kKernelsSchemaMinor = 3;

/// KernelEntry::arch of units of the CPU.
inline constexpr char kCpuArch[] = "cpu";

/// One argument of a kernel, in order.
struct KernelArgument {
  std::string name;
  std::string type;                ///< C type as in the header, e.g. "const uint32_t*"
  std::vector<std::string> shape;  ///< dimensions by name or number, e.g. {"tokens", "3", "64"}; empty: a scalar
};

/// How to launch: the host computes the grid from these.
struct KernelLaunch {
  std::array<int, 3> block = {0, 0, 0};  ///< threads
  int tokens_per_block = 0;
  std::string splits = "host";    ///< who divides a sequence among blocks: "host" or "one"
  std::string grid = "";          ///< C function that computes the grid; "" from writers of 1.0
  int dynamic_shared_bytes = -1;  ///< of a block; -1: nothing was compiled, or the writer was of 1.0
  int stage = 0;                  ///< place in the order of the source's launches
  std::string when = "always";    ///< or "splits > 1"
};

struct KernelEntry {
  std::string name;    ///< of the kernel: what is computed and how, a grammar (codegen/plan)
  std::string symbol;  ///< in the cubin or the library
  std::string family;  ///< key_scores, value_mix, pack_key, pack_value, …
  nlohmann::ordered_json spec = nlohmann::ordered_json::object();  ///< the kernel's configuration
  std::string arch;                                                ///< "sm_90"; of PTX: "compute_90"; "cpu"
  std::string source;                                              ///< generated unit, relative to the folder
  std::string cubin, ptx;                                          ///< relative to the folder; "" when not made
  std::string library;                                             ///< of units of the CPU, likewise
  std::vector<std::string> instruction_sets;  ///< that the library chooses among, as Highway names them: "AVX2", …
  int registers = 0;                          ///< per thread
  int spill_bytes = 0;                        ///< stores plus loads, per thread
  int shared_bytes = 0;                       ///< static, per block
  int min_blocks = 0;  ///< fit a multiprocessor at least, which bounds registers; 0: no bound, or nothing compiled
  KernelLaunch launch;
  std::vector<KernelArgument> arguments;
};

/// How pages of keys or values are made. head_words is empty when a layer's heads have one width.
struct KernelPages {
  std::string function;                           ///< C function that gives a page's bytes
  std::vector<int32_t> code_words;                ///< [L] 32-bit words of codes in a page
  std::vector<std::vector<uint32_t>> head_words;  ///< [L][H] words before each head's codes
  int ranges = 0, csr = 0, classes = 0;           ///< arguments of the function
  int tail = 0;                                   ///< outliers of each tail a token
  int default_capacity = 0;                       ///< records of a page (linear-1), of a tile (mma-1)
};

/// Vector codebooks of keys or values (layout vector-1): where their arrays lie in KernelsManifest::vectors_file.
struct KernelVectors {
  int head_dim = 0;
  bool transform = false;                    ///< KvccVectorTensor.transform
  std::vector<std::vector<int64_t>> places;  ///< [L][kVectorArrays]; -1: there is none
};
/// Names of the arrays, in the order of KVCC_VECTOR_… (formats/layout/vector_launch.h).
const std::vector<std::string>& vector_arrays();

struct KernelsManifest {
  std::string content_sha256;           ///< of the artifact the kernels were made from
  std::string artifact, scheme, model;  ///< for people
  std::string layout = "linear-1";
  std::string tool_version;
  std::map<std::string, KernelPages> pages;  ///< of "key" and "value" where they have codes; empty from writers of 1.0
  std::string vectors_file;                  ///< of vector-1; else ""
  std::map<std::string, KernelVectors> vectors;  ///< of "key" and "value", with it
  std::string nvcc_version;                      ///< "" when only sources were written
  std::string cxx_version, highway_version;      ///< "" when no unit of the CPU was compiled
  std::map<std::string, std::string> files;      ///< every file of the folder but this one: name to sha256
  std::vector<KernelEntry> kernels;
};

/// The document, with "schema_version" first. Equal manifests give equal text.
nlohmann::ordered_json to_json(const KernelsManifest& manifest);
/// Throws Error(bad_input) naming `place` and the member that is missing or wrong, and for a newer schema_version or an
/// unknown layout.
KernelsManifest kernels_from_json(const nlohmann::ordered_json& document, const std::string& place);

/// The text of FOLDER/kernels.json.
std::string kernels_manifest_text(const KernelsManifest& manifest);
KernelsManifest read_kernels_manifest(const std::string& folder);

/// All that is wrong with the folder: files that are missing or whose hash differs, cubins and libraries that are not
/// whole ELF files (whatever their hash), spills, names given twice. Throws only if kernels.json can't be read.
std::vector<std::string> validate_kernels(const std::string& folder);

}  // namespace kvcc
