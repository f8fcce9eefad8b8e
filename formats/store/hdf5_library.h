// What writing and reading HDF5 share: the library's only users are tree_write.cc and tree_read.cc. Files are built and
// parsed as images in memory: writing goes through AtomicFile, reading through MappedFile, and HDF5's own ways with
// paths, locks and full disks never come into it.
#pragma once

#include <hdf5.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <utility>

#include "formats/store/tree.h"

namespace kvcc::hdf5 {

/// The library keeps global state and is not thread-safe as Debian builds it.
std::mutex& library_mutex();

/// Owns an HDF5 identifier.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator hid_t() const { return id_; }
  bool valid() const { return id_ >= 0; }
  herr_t close_now() {
    const hid_t id = std::exchange(id_, -1);
    return id >= 0 ? close_(id) : 0;
  }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// The innermost message of the library's error stack, for our message.
std::string library_message();

/// Throws Error(resource) at `place` when a small multiple of `bytes` can't be had. Asked before the library is
/// entered, as libhdf5 1.10 itself crashes where its first allocations fail; and after it failed, as a damaged file may
/// ask for absurd sizes, which is no want of memory. Its small allocations number some thousands, each of which takes a
/// page in a thread that malloc could make no arena for.
void check_memory(const std::string& place, size_t bytes);

/// Throws the writer's error unless `id` is valid: the image is made in memory, so that only memory can run out.
hid_t made(hid_t id);
void done(herr_t status);

/// The type of numbers in files. Throws Error(failed) for text, which is an attribute's alone.
hid_t file_type(Element type);

}  // namespace kvcc::hdf5
