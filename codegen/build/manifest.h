// What kernels.json says of units. Internal to codegen/build.
#pragma once

#include <string>
#include <vector>

#include "codegen/build/jobs.h"
#include "formats/store/kernels_manifest.h"

namespace kvcc::codegen {

/// The entries of a unit of the GPU. `launch_headers`: text of launch.h, mma_launch.h and vector_launch.h. A job
/// without arch: nothing was compiled. Throws Error(failed) where the compiled unit lacks an entry.
std::vector<KernelEntry> list_entries(const KernelSpec& spec, const CacheShape& shape, const Job& job,
                                      const std::string& launch_headers);
/// File of the job's result, "" without.
std::string file_of(const KernelSpec& spec, const Job& job);

/// The entries of a unit of the CPU. `file`, the library's, and the instruction sets are empty where nothing was
/// compiled. `headers`: text of launch.h, mma_launch.h and units.h.
std::vector<KernelEntry> list_cpu_entries(const KernelSpec& spec, const CacheShape& shape, const std::string& file,
                                          const std::vector<std::string>& instruction_sets, const std::string& headers);

KernelPages pages_of(PageRule rule);
/// Of vector codebooks.
KernelVectors vectors_of(const Artifact& artifact, bool keys);

}  // namespace kvcc::codegen
