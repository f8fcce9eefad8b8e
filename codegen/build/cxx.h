// The host's C++ compiler as a program: found, asked who it is, run on one unit of the CPU.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/core/error.h"

namespace kvcc::codegen {

struct Cxx {
  std::vector<std::string> command;  ///< the program, and words of $CXX that follow it
  std::string version;               ///< first line of --version
  std::string highway;               ///< version of Highway's headers, e.g. "1.0.3"
};

/// Where the compiler may be, best first: the words of $CXX alone where that is set, else c++, g++ and clang++ of PATH.
std::vector<std::vector<std::string>> cxx_places();

/// There is no compiler, or it lacks C++20 or Highway: kind `failed`, with what to install.
struct NoCxx : Error {
  using Error::Error;
};

/// The first of the places that is a program. Throws NoCxx where it finds none, or where Highway's headers are not in
/// its include path; Error(failed) for one that does not answer.
Cxx find_cxx(const std::vector<std::vector<std::string>>& places = cxx_places());

/// Flags of every object and of the library, in order.
const std::vector<std::string>& cxx_flags();
const std::vector<std::string>& link_flags();

struct Built {
  std::string binary;
  bool cached = false;
};

// Results are kept as those of nvcc are (nvcc.h). Throw Error(failed) with the compiler's words when it fails.

/// `unit`, text of NAME.cc, with the headers (path in the include folder to text), to an object.
Built compile_object(const Cxx& cxx, const std::string& name, const std::string& unit,
                     const std::map<std::string, std::string>& headers, const std::string& cache_folder);
/// Objects (name, bytes) to a shared library that is called `file`. Throws NoCxx where libhwy is missing.
Built link_library(const Cxx& cxx, const std::string& file,
                   const std::vector<std::pair<std::string, std::string>>& objects, const std::string& cache_folder);

/// Instruction sets that a library has, as its table's unit marks them: "SSE4", "AVX2", … Throws Error(failed), naming
/// `file`, for none.
std::vector<std::string> instruction_sets(std::string_view library, const std::string& file);

}  // namespace kvcc::codegen
