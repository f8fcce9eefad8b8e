// From a spec to the text of a unit, and from a plan to the C header. Pure: templates come in as text.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"

namespace kvcc::codegen {

/// Texts of codegen/templates by file name.
using Templates = std::map<std::string, std::string>;

/// Names of the templates that emitting needs.
const std::vector<std::string>& template_names();

/// One entry point of a unit. Units with two are launched in order: the selection of outliers before packing, the merge
/// of splits after attention and value_mix.
struct Entry {
  std::string family;  ///< "key_scores", …; of second entries "pack_value_select", "value_merge", "attention_merge"
  std::string name;    ///< of the unit; that of a second entry ends in "_select" or "_merge"
  std::string symbol;
  std::string body;             ///< C++ class of kernels/device, or function template of kernels/cpu
  std::string params;           ///< C struct of formats/layout/launch.h or mma_launch.h
  std::string grid_rule;        ///< C function of them that computes the grid
  int tokens_per_block = 0;     ///< tokens a block reads or writes at a time; 0: none
  std::string splits = "one";   ///< who divides the context among blocks: "host" or "one"
  int stage = 0;                ///< place in the unit's order of launches
  std::string when = "always";  ///< or "splits > 1"
};
/// In order of launch.
std::vector<Entry> entries_of(const KernelSpec& spec);

/// File of kernels/device or kernels/cpu that has the unit's bodies, as an include path.
std::string header_of(const KernelSpec& spec);
/// File name of the generated unit: NAME.cu, or NAME.cc for the CPU.
std::string source_of(const KernelSpec& spec);

/// File of the vector codebooks' arrays, KvccVectorTensor's: kvcc_NAME_vectors.bin.
std::string vectors_file(const Artifact& artifact);

/// How pages of one tensor are made, what the C header and kernels.json say of it.
struct PageRule {
  bool coded = false;                              ///< false: the tensor stays at full precision
  std::string function;                            ///< C function that gives a page's bytes
  std::vector<int32_t> code_words;                 ///< [L] 32-bit words of codes in a page
  std::vector<std::vector<uint32_t>> head_words;   ///< [L][H] words before each head's codes; empty: one width
  int ranges = 0, csr = 0, classes = 0, tail = 0;  ///< csr: linear-1; classes: mma-1
  int default_capacity = 0;  ///< records: linear-1 of a page, mma-1 of a tile (one head of a page); 0: no sparse part
};
PageRule page_rule(const Artifact& artifact, Layout layout, bool keys);

/// The generated unit: banner, include, table of codebooks, constants, entries.
std::string emit_unit(const Artifact& artifact, const KernelSpec& spec, const Templates& templates,
                      const std::string& tool_version);

/// The unit beside those of the CPU that makes a library of them: their table (kernels/cpu/library.h).
std::string emit_library(const Artifact& artifact, const Plan& plan, const Templates& templates,
                         const std::string& tool_version);
/// Names of that unit, without extension, and of the shared library: kvcc_NAME_cpu, kvcc_NAME_cpu.so.
std::string library_unit(const Artifact& artifact);
std::string library_file(const Artifact& artifact);

/// kvcc_NAME.h: names of the kernels, geometry and layout constants of the artifact. Compiles as C99 and C++.
/// `dynamic_shared` holds bytes by symbol; empty: nothing was compiled.
std::string emit_header(const Artifact& artifact, const Plan& plan, const Templates& templates,
                        const std::string& tool_version, const std::map<std::string, int>& dynamic_shared = {});

/// Text from elsewhere as part of one comment line: control characters and backslashes become '?', "*/" is broken up.
std::string comment_text(const std::string& text);

/// The artifact's name as a C identifier: letters, digits and underscores, not starting with a digit.
std::string identifier(const std::string& name);

}  // namespace kvcc::codegen
