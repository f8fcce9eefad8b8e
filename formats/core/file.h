// Files: read-only maps, and writing beside the name followed by a rename.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "formats/core/error.h"

namespace kvcc {

/// The error for a failed write to `path` with errno `code`: Error(resource) with needed and free bytes when the disk
/// is full or a file size limit is met, Error(failed) otherwise.
Error write_error(const std::string& path, int code, uint64_t needed = 0);

/// A read-only memory map of a whole file. Throws Error(bad_input) when missing, a folder, or empty with `allow_empty`
/// false.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path, bool allow_empty = false);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

/// A name beside `path` to write to; commit() syncs it and renames it into place, the destructor removes it otherwise.
/// So a full disk or a kill never leaves a file that opens under the final name.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  const std::string& temporary() const { return temporary_; }
  /// `sync_name` false: the bytes are synced but the new name need not survive a power cut at once (one sync less, for
  /// callers that write hundreds of files and check them before use).
  void commit(bool sync_name = true);

 private:
  std::string path_, temporary_;
  bool done_ = false;
};

std::string read_text_file(const std::string& path);
/// Through AtomicFile. Throws Error(resource) with needed and free bytes on ENOSPC.
void write_text_file(const std::string& path, std::string_view text, bool sync_name = true);
/// Leaves the file untouched (time stamp included) when it holds `text` already. Returns whether it wrote.
bool write_if_different(const std::string& path, std::string_view text);
/// Makes the folder with its parents. Throws Error(resource, bad_input or failed).
void make_folder(const std::string& path);
/// `path`, or the nearest folder above it that exists.
std::string nearest_existing(const std::string& path);

/// Folder of the installed read-only data (device headers, templates, data set manifest): $KVCC_SHARE, else
/// share/kvcc beside the programs' libexec/kvcc or bin folder.
std::string share_folder();
/// Folder of the running program.
std::string program_folder();
/// Where fetched data and compiled kernels are kept: $XDG_CACHE_HOME/kvcc, else ~/.cache/kvcc. As XDG has it, a
/// relative $XDG_CACHE_HOME is ignored.
std::string default_cache_folder();

}  // namespace kvcc
