// The CUDA compiler as a program: found, asked for its architectures, run on one unit.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/build/ptxas_report.h"
#include "formats/core/error.h"

namespace kvcc::codegen {

struct Nvcc {
  std::string path;
  std::string version;                     ///< e.g. "13.0.88"
  std::vector<std::string> virtual_archs;  ///< as --list-gpu-arch prints them: "compute_75", …
};

/// Where nvcc may be, best first: $KVCC_NVCC alone where that is set, else the folders of PATH, CUDA_HOME,
/// /usr/local/cuda, and the nvidia/cu13 wheel of VIRTUAL_ENV or of a .venv beside the build tree.
std::vector<std::string> nvcc_places();
/// Oldest major version that compiles what kvcc generates (C++20).
inline constexpr int kOldestNvcc = 12;

/// There is no nvcc, or none that will do: kind `failed`, with what to install.
struct NoNvcc : Error {
  using Error::Error;
};

/// The first of the places that is a program and new enough. Throws NoNvcc; Error(failed) for one that does not answer.
Nvcc find_nvcc(const std::vector<std::string>& places = nvcc_places());

struct Archs {
  std::vector<std::string> gpu;  ///< "sm_80", …
  bool cpu = false;
};
/// "sm_80,sm_90a,cpu" to its parts, those of GPUs sorted by number, each once. Throws Error(usage) for text that names
/// no architecture.
Archs parse_archs(const std::string& text);
/// Number of an architecture: 90 for "sm_90a".
int arch_number(const std::string& arch);
/// Throws Error(usage) naming those that this nvcc does not compile for, and those it does.
void check_archs(const Nvcc& nvcc, const std::vector<std::string>& archs);

/// Flags of every unit's PTX, and of every cubin that is made from PTX, in order.
const std::vector<std::string>& ptx_flags();
const std::vector<std::string>& cubin_flags();

/// PTX is made once a unit, for the oldest architecture asked for but none newer than this: cubins of all
/// architectures come from it, and a driver can compile it for those to come.
inline constexpr int kBasePtx = 80;
std::string ptx_arch(const std::vector<std::string>& archs);

struct Compiled {
  std::string binary;                         ///< PTX or cubin
  std::map<std::string, KernelUsage> usage;   ///< of a cubin, by symbol
  std::map<std::string, int> dynamic_shared;  ///< bytes a launch must give, by symbol; of PTX and compile_unit()
  std::map<std::string, int> min_blocks;      ///< of a cubin, by symbol: as min_blocks_of(), of what was assembled
  bool lowered = false;                       ///< some of min_blocks are less than the PTX states
  bool cached = false;
};

// Results are kept in `cache_folder` by the hash of all that decides them, so equal inputs compile once. Throw
// Error(failed) with the compiler's words when it fails, warnings included.

/// Compiles `unit` (text of NAME.cu) with the headers (path in the include folder to text) to PTX for "compute_NN".
Compiled compile_ptx(const Nvcc& nvcc, const std::string& name, const std::string& unit,
                     const std::map<std::string, std::string>& headers, const std::string& arch,
                     const std::string& cache_folder);
/// PTX to a cubin for "sm_NN", the bounds as the PTX states them; what spills is in `usage`. Throws Error(failed) for
/// local memory that is no spill.
Compiled assemble_once(const Nvcc& nvcc, const std::string& name, const std::string& ptx, const std::string& arch,
                       const std::string& cache_folder);
/// The same, but entries that spill are assembled again with a block less on a multiprocessor, which leaves them more
/// registers, until they don't or are at one block. A function of the inputs: each try is kept by its own text.
Compiled assemble(const Nvcc& nvcc, const std::string& name, const std::string& ptx, const std::string& arch,
                  const std::string& cache_folder);
/// Both, as kvcc compile does it.
Compiled compile_unit(const Nvcc& nvcc, const std::string& name, const std::string& unit,
                      const std::map<std::string, std::string>& headers, const std::string& arch,
                      const std::string& cache_folder);

/// Blocks that fit a multiprocessor at least (.minnctapersm), by symbol; 0 where an entry of the PTX states none.
std::map<std::string, int> min_blocks_of(const std::string& ptx);
/// The PTX with the bounds of these entries replaced. Entries that state none keep that.
std::string with_min_blocks(std::string ptx, const std::map<std::string, int>& bounds);

/// Which entries of a cubin spill and how much, a line each: empty when none does. Throws Error(failed) with the lines
/// where the configuration is one of the shipped ones, which must not.
std::vector<std::string> check_spills(const std::string& name, const std::string& arch, const Compiled& cubin,
                                      bool shipped);

}  // namespace kvcc::codegen
