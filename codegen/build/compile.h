// From a codebook to a folder of kernels: sources, headers, cubins, PTX, library for the CPU, C header, kernels.json.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "codegen/emit/emit.h"
#include "codegen/plan/plan.h"
#include "formats/store/codebook.h"
#include "formats/store/kernels_manifest.h"

namespace kvcc::codegen {

/// What compile needs of a codebook; `name` is the file's, without folder and extension. Grids without stored levels
/// (int, nf) can't occur: the artifact stores every grid's levels. Throws Error(usage) for vector codebooks across the
/// heads of a layer, and of head dimensions that no page holds.
Artifact describe(const Codebook& codebook, const std::string& name);

/// Templates from share_folder()/codegen/templates.
Templates read_templates();

/// The units' includes and theirs, by include path, from share_folder(); those of Highway are left out. Throws
/// Error(bad_input) for one that is absent.
std::map<std::string, std::string> header_closure(const std::vector<std::string>& units);
/// The same among headers that were read already, `all`. Throws Error(failed) for one that is not there.
std::map<std::string, std::string> header_closure(const std::string& unit,
                                                  const std::map<std::string, std::string>& all);

struct CompileOptions {
  std::string folder;              ///< written to
  std::vector<std::string> archs;  ///< of GPUs, sorted; checked against nvcc here
  bool emit_only = false;          ///< sources, headers and manifest alone; needs no compiler
  bool force = false;              ///< replaces a kernels.json of a newer schema too
  int threads = 1;
  std::string cache_folder;
  std::string tool_version;
  std::function<void()>
      progress;  ///< called after each unit and architecture, by any thread one at a time; may be empty
};

struct CompileResult {
  KernelsManifest manifest;
  int compiled = 0;                   ///< PTX, cubins, objects and library made, a run of a compiler each
  int cached = 0;                     ///< taken from the cache
  int written = 0;                    ///< files that changed
  int removed = 0;                    ///< files of an earlier kernels.json
  std::vector<std::string> warnings;  ///< a line for each entry and architecture that spills
};

/// Results that compile() will make or take from the cache: of units of the GPU PTX and a cubin an architecture, of
/// units of the CPU an object, and the library of these with its table.
int compilations(const Plan& plan, const CompileOptions& options);

/// Writes the folder. Files that hold the right bytes are left alone; files that an earlier kernels.json lists and this
/// one does not are removed; kernels.json is written last. One of a newer schema is Error(bad_input) before anything is
/// compiled. Same bytes for any number of threads. Entries that spill are
/// given more registers (assemble()); what still spills is warned of, of a shipped configuration Error(failed).
CompileResult compile(const Artifact& artifact, const Plan& plan, const CompileOptions& options);

}  // namespace kvcc::codegen
