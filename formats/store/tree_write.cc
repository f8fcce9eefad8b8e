// A tree as the image of an HDF5 file.
#include <algorithm>
#include <cstring>

#include "formats/store/hdf5_checksum.h"
#include "formats/store/hdf5_library.h"

namespace kvcc {
namespace {

using namespace hdf5;

hid_t make_space(const std::vector<int64_t>& shape) {
  if (shape.empty()) return made(H5Screate(H5S_SCALAR));
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  return made(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr));
}

void write_attribute(hid_t object, const std::string& name, const TreeValue& value) {
  const Handle space(make_space(value.shape), H5Sclose);
  std::string bytes = value.bytes;
  Handle text_type(value.type == Element::text ? made(H5Tcopy(H5T_C_S1)) : hid_t{-1}, H5Tclose);
  if (text_type.valid()) {
    bytes.resize(std::max<size_t>(1, bytes.size()));  // a text type has at least one byte
    done(H5Tset_size(text_type, bytes.size()));
    done(H5Tset_strpad(text_type, H5T_STR_NULLPAD));
    done(H5Tset_cset(text_type, H5T_CSET_UTF8));
  }
  const hid_t type = text_type.valid() ? static_cast<hid_t>(text_type) : file_type(value.type);
  const Handle attribute(made(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT)), H5Aclose);
  if (!bytes.empty()) done(H5Awrite(attribute, type, bytes.data()));
}

void write_attributes(hid_t object, const TreeObject& from) {
  for (const auto& [name, value] : from.attributes) write_attribute(object, name, value);
}

/// Settings that every object's creation list shares: no times, attributes and links kept in the object's header.
void set_plain(hid_t list) {
  done(H5Pset_obj_track_times(list, false));
  done(H5Pset_attr_phase_change(list, 256, 0));
}

void write_dataset(hid_t file, const std::string& path, const TreeObject& object) {
  const TreeValue& value = object.value;
  const Handle list(made(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
  set_plain(list);
  done(H5Pset_layout(list, H5D_CONTIGUOUS));
  done(H5Pset_fill_time(list, H5D_FILL_TIME_NEVER));
  done(H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY));
  const Handle space(make_space(value.shape), H5Sclose);
  const hid_t type = file_type(value.type);
  const Handle dataset(made(H5Dcreate2(file, path.c_str(), type, space, H5P_DEFAULT, list, H5P_DEFAULT)), H5Dclose);
  if (!value.bytes.empty()) done(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, value.bytes.data()));
  write_attributes(dataset, object);
}

void write_group(hid_t file, const std::string& path, const TreeObject& object) {
  if (path == "/") {
    const Handle root(made(H5Gopen2(file, "/", H5P_DEFAULT)), H5Gclose);
    write_attributes(root, object);
    return;
  }
  const Handle list(made(H5Pcreate(H5P_GROUP_CREATE)), H5Pclose);
  set_plain(list);
  done(H5Pset_link_phase_change(list, 256, 0));
  const Handle group(made(H5Gcreate2(file, path.c_str(), H5P_DEFAULT, list, H5P_DEFAULT)), H5Gclose);
  write_attributes(group, object);
}

/// H5Fget_file_image clears the "open for writing" flag of the superblock but leaves the checksum that was made with
/// it (HDF5 1.10.8). This is that checksum again, over the 44 bytes before it.
void repair_superblock(std::string& image) {
  constexpr size_t kBytes = 44;
  const uint32_t sum = hdf5::lookup3(image.data(), kBytes);
  std::memcpy(image.data() + kBytes, &sum, sizeof sum);
}

}  // namespace

std::string tree_to_hdf5(const Tree& tree) {
  const std::lock_guard<std::mutex> lock(library_mutex());
  size_t bytes = 1 << 16;
  for (const auto& [path, object] : tree) bytes += object.value.bytes.size() + 1024;
  check_memory("HDF5 image", bytes);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const Handle access(made(H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  done(H5Pset_fapl_core(access, bytes, false));
  done(H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18));
  const Handle creation(made(H5Pcreate(H5P_FILE_CREATE)), H5Pclose);
  set_plain(creation);
  done(H5Pset_link_phase_change(creation, 256, 0));
  Handle file(made(H5Fcreate("image", H5F_ACC_TRUNC, creation, access)), H5Fclose);
  Tree with_groups = tree;
  with_groups["/"];
  for (const auto& [path, object] : tree) {
    for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      with_groups[path.substr(0, slash)];
    }
  }
  for (const auto& [path, object] : with_groups) {
    object.dataset ? write_dataset(file, path, object) : write_group(file, path, object);
  }
  done(H5Fflush(file, H5F_SCOPE_GLOBAL));
  const ssize_t size = H5Fget_file_image(file, nullptr, 0);
  made(size);
  std::string image(static_cast<size_t>(size), '\0');
  made(H5Fget_file_image(file, image.data(), image.size()));
  done(file.close_now());
  repair_superblock(image);
  return image;
}

}  // namespace kvcc
