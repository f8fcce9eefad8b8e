// Headers of an HDF5 file's objects. For hdf5_structure.cc, which walks from one to the next.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "formats/store/hdf5_bytes.h"

namespace kvcc::hdf5 {

/// A group of the form before release 1.8: where its names and links are.
struct SymbolTable {
  uint64_t tree = kNowhere, heap = kNowhere;
  bool operator==(const SymbolTable&) const = default;
};

/// What an object's header says of it, as far as reading depends on it.
struct ObjectHeader {
  uint64_t elements = kTooMany;
  Type type;
  uint64_t fill = 0, stored = kNowhere;  ///< bytes of each
  bool has_space = false, has_layout = false;
  size_t attributes = 0;
  std::map<std::string, uint64_t> links;  ///< addresses by name
  SymbolTable symbols;
};

/// Begin and size of bytes that belong to one structure.
using Extents = std::vector<std::pair<uint64_t, uint64_t>>;

/// Reads headers, which share the limits of the file.
class HeaderReader {
 public:
  explicit HeaderReader(const Bytes& bytes) : bytes_(bytes), heaps_(bytes) {}
  /// The header at `at`, of either version. Adds what it takes up to `extents`. Throws Error(bad_input) with the path
  /// for what the file cannot hold or kvcc's files do not.
  ObjectHeader read(const std::string& path, uint64_t at, Extents& extents);
  const GlobalHeaps& heaps() const { return heaps_; }  ///< of texts of variable length met so far

 private:
  const Bytes& bytes_;
  GlobalHeaps heaps_;
  size_t attributes_ = 0;
};

/// Takes a link of the group `path`. Throws Error(bad_input) for a name that is none, two of a name, and too many.
void add_link(const Bytes& bytes, const std::string& path, const std::string& name, uint64_t address,
              std::map<std::string, uint64_t>& links);

}  // namespace kvcc::hdf5
