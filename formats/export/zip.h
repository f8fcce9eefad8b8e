// A ZIP archive with stored entries, no times, and no 64-bit extension: what .npz needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

uint32_t crc32(std::string_view bytes);

class ZipWriter {
 public:
  /// Throws Error(failed) when the archive would exceed 4 GiB or 65,535 entries.
  void add(const std::string& name, const std::string& bytes);
  std::string finish();

 private:
  std::string file_, directory_;
  size_t entries_ = 0;
};

struct ZipEntry {
  std::string name;
  std::string_view bytes;  ///< in the archive
};

/// Entries in order of the directory. Throws Error(bad_input) at `place` for what is no such archive, is compressed,
/// truncated or overlapping, or whose checksums disagree.
std::vector<ZipEntry> read_zip(std::string_view file, const std::string& place);

}  // namespace kvcc
