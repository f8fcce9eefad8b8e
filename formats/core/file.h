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

/// What tells whether a file is the same and its content may have changed.
struct FileState {
  uint64_t device = 0, inode = 0, size = 0;
  int64_t seconds = 0, nanoseconds = 0;  ///< of the last change
  bool operator==(const FileState&) const = default;
};

/// A read-only memory map of a whole file. Throws Error(bad_input) when missing, a folder, or empty with `allow_empty`
/// false. A file that another process truncates meanwhile ends programs as catch_truncated_maps() says.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path, bool allow_empty = false);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  /// The process no longer holds what it read so far (it stays in the system's cache and comes back when read again).
  void release() const;
  const std::string& path() const { return path_; }
  /// Throws Error(bad_input) when the mapped file was written to since it was opened. Another file that took its name
  /// does not matter: the map keeps the one that was opened.
  void check_unchanged() const;
  /// Throws Error(bad_input) when its name means another file by now, or the file was written to.
  void check_same_file() const;

 private:
  void close();
  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
  int file_ = -1, slot_ = -1;
  FileState opened_;
};

/// Makes a read of a mapped file that was truncated meanwhile (SIGBUS) end the process with exit code 3 and a message
/// that names `program` and the file; with `json` a document on stdout says it too. For programs, not for libraries.
void catch_truncated_maps(const std::string& program, bool json);

/// PATH.partial, to be written and renamed into place: commit() syncs and renames it, the destructor removes it
/// otherwise. So a full disk or a kill never leaves a file that opens under the final name; what a killed process left
/// is taken over. The name is locked: a second writer of `path` is refused (Error(bad_input)), or waits for the first.
class AtomicFile {
 public:
  enum class Busy { refuse, wait };
  explicit AtomicFile(std::string path, Busy busy = Busy::refuse);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  /// What is to be written; whoever opens it by this name truncates what is there.
  const std::string& temporary() const { return temporary_; }
  /// Throws Error(resource) with needed and free bytes when the file system has no room for `bytes`, where it can tell.
  void check_room(uint64_t bytes) const;
  /// Writes the whole content. Throws Error(resource) with needed and free bytes on ENOSPC, Error(failed) otherwise.
  void write(std::string_view text) const;
  /// `sync_name` false: the bytes are synced but the new name need not survive a power cut at once (one sync less, for
  /// callers that write hundreds of files and check them before use).
  void commit(bool sync_name = true);

 private:
  void take(Busy busy);

  std::string path_, temporary_;
  int lock_ = -1;
  bool done_ = false;
};

std::string read_text_file(const std::string& path);
/// Through AtomicFile.
void write_text_file(const std::string& path, std::string_view text, bool sync_name = true,
                     AtomicFile::Busy busy = AtomicFile::Busy::refuse);
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
