// The CPU units of one artifact: those built in, or those of a shared library that `kvcc compile --arch cpu` made.
// Host only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/library.h"
#include "kernels/cpu/units.h"
#include "kernels/host/rope_table.h"
#include "kernels/host/runtime_artifact.h"

namespace kvcc::host {

class RuntimeUnits {
 public:
  /// `library`: path of the shared library; empty: the built-in units. arithmetic: KVCC_ARITHMETIC_…. Throws
  /// Error(bad_input) for a file that is no such library or of another contract, Error(usage) for one made of another
  /// artifact, or without a unit that the artifact needs, naming it. `artifact` must outlive this.
  RuntimeUnits(const RuntimeArtifact& artifact, const std::string& library, int arithmetic);

  /// Blocks [first, last) of a family's grid, KVCC_CPU_…. `rope`: tables of the families that turn keys, else null.
  /// From any thread.
  void run(int family, const void* params, uint32_t first, uint32_t last, const BlockRopeTables* rope = nullptr) const;

  int arithmetic() const { return tables_.arithmetic; }

 private:
  void run_vector(int family, const void* params, uint32_t first, uint32_t last, const BlockRopeTables* rope) const;
  void load(const RuntimeArtifact& artifact, const std::string& path);
  void find(const RuntimeArtifact& artifact, const std::string& path, const KvccCpuLibrary& library);

  const RuntimeArtifact& artifact_;
  KvccCpuConfig config_{};
  KvccCpuTables tables_{};
  std::shared_ptr<void> handle_;                 ///< of the library; null: built-in
  std::vector<std::vector<KvccCpuUnit>> units_;  ///< by family, of the library
};

}  // namespace kvcc::host
