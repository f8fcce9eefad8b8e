#include "formats/store/hdf5_library.h"

#include <sys/mman.h>

#include "formats/core/error.h"

namespace kvcc::hdf5 {

std::mutex& library_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::string library_message() {
  std::string message;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* error, void* out) -> herr_t {
        if (n == 0 && error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
        return 0;
      },
      &message);
  return message.empty() ? "HDF5 failed" : message;
}

void check_memory(const std::string& place, size_t bytes) {
  const size_t wanted = 4 * bytes + (24 << 20);
  void* const probe = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) throw Error(ErrorKind::resource, place, "out of memory");
  munmap(probe, wanted);
}

hid_t made(hid_t id) {
  if (id < 0) throw Error(ErrorKind::resource, "HDF5 image", library_message());
  return id;
}
void done(herr_t status) { made(status); }

hid_t file_type(Element type) {
  switch (type) {
    case Element::u8:
      return H5T_STD_U8LE;
    case Element::u16:
      return H5T_STD_U16LE;
    case Element::u32:
      return H5T_STD_U32LE;
    case Element::u64:
      return H5T_STD_U64LE;
    case Element::i8:
      return H5T_STD_I8LE;
    case Element::i16:
      return H5T_STD_I16LE;
    case Element::i32:
      return H5T_STD_I32LE;
    case Element::i64:
      return H5T_STD_I64LE;
    case Element::f32:
      return H5T_IEEE_F32LE;
    case Element::f64:
      return H5T_IEEE_F64LE;
    case Element::text:
      break;
  }
  throw Error(ErrorKind::failed, "HDF5 image", "text outside an attribute");
}

}  // namespace kvcc::hdf5
