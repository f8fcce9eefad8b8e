// The tree that the image of an HDF5 file holds.
#include <fmt/format.h>

#include <algorithm>

#include "formats/core/error.h"
#include "formats/core/text.h"
#include "formats/store/hdf5_library.h"
#include "formats/store/hdf5_structure.h"

namespace kvcc {
namespace {

using namespace hdf5;

constexpr int kMaxDepth = 16;
constexpr size_t kMaxObjects = 1 << 20;

struct Reader {
  std::string place;
  size_t file_bytes = 0;
  size_t read_bytes = 0;  ///< of datasets so far: names that share bytes must not multiply memory
  Tree tree;
  std::vector<haddr_t> open_groups;  ///< from the root to the group being read, against cycles

  Error refuse(const std::string& path, std::string found, std::string wanted = "") const {
    return bad_input(fmt::format("{}: {}", place, path), std::move(found), std::move(wanted));
  }
  void need(bool holds, const std::string& path) const {
    if (holds) return;
    check_memory(place, file_bytes);
    throw refuse(path, fmt::format("damaged ({})", library_message()));
  }

  /// Element type of an HDF5 type; text for fixed or variable strings.
  Element element_of(hid_t type, const std::string& path) const {
    const H5T_class_t kind = H5Tget_class(type);
    const size_t bytes = H5Tget_size(type);
    if (kind == H5T_STRING) return Element::text;
    if (kind == H5T_INTEGER || kind == H5T_FLOAT) {
      for (int i = 0; i < static_cast<int>(Element::text); ++i) {
        const Element element = static_cast<Element>(i);
        if (H5Tequal(type, file_type(element)) > 0) return element;
      }
      if (H5Tget_order(type) == H5T_ORDER_BE) throw refuse(path, "big-endian numbers", "little-endian");
    }
    throw refuse(path, fmt::format("an element type of class {} and {} bytes", static_cast<int>(kind), bytes),
                 "plain little-endian numbers");
  }

  std::vector<int64_t> shape_of(hid_t space, const std::string& path) const {
    const int axes = H5Sget_simple_extent_ndims(space);
    if (axes < 0 || H5Sget_simple_extent_type(space) == H5S_NULL)
      throw refuse(path, "no shape", "a scalar or an array");
    std::vector<hsize_t> extents(static_cast<size_t>(axes));
    need(axes == 0 || H5Sget_simple_extent_dims(space, extents.data(), nullptr) >= 0, path);
    return {extents.begin(), extents.end()};
  }

  /// Elements of the shape; what can't lie in this file is refused before memory is asked for.
  size_t count_of(const std::vector<int64_t>& shape, size_t bytes_each, const std::string& path) const {
    size_t count = 1;
    for (const int64_t extent : shape) {
      if (extent < 0 || __builtin_mul_overflow(count, static_cast<size_t>(extent), &count) ||
          count > file_bytes / bytes_each) {
        throw refuse(path, fmt::format("shape {} does not fit in a file of {} bytes", shape_text(shape), file_bytes));
      }
    }
    return count;
  }

  TreeValue read_text(hid_t attribute, hid_t type, const std::string& path) const {
    TreeValue value{Element::text, {}, ""};
    const htri_t variable = H5Tis_variable_str(type);
    need(variable >= 0, path);
    if (variable > 0) {  // not written by kvcc, but by h5py's attrs
      const Handle memory_type(H5Tcopy(H5T_C_S1), H5Tclose);
      char* text = nullptr;
      need(H5Tset_size(memory_type, H5T_VARIABLE) >= 0 && H5Tset_cset(memory_type, H5Tget_cset(type)) >= 0 &&
               H5Aread(attribute, memory_type, &text) >= 0,
           path);
      if (text != nullptr) value.bytes = text;
      H5free_memory(text);
      return value;
    }
    const size_t bytes = H5Tget_size(type);
    if (bytes > file_bytes) throw refuse(path, fmt::format("a text of {} bytes", bytes));
    value.bytes.resize(bytes);
    need(H5Aread(attribute, type, value.bytes.data()) >= 0, path);
    value.bytes.resize(value.bytes.find_last_not_of('\0') + 1);
    return value;
  }

  void read_attributes(hid_t object, const std::string& path, std::map<std::string, TreeValue>& out) const {
    H5O_info_t info;
    need(H5Oget_info2(object, &info, H5O_INFO_NUM_ATTRS) >= 0, path);
    for (hsize_t i = 0; i < info.num_attrs; ++i) {
      const Handle attribute(H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT, H5P_DEFAULT),
                             H5Aclose);
      need(attribute.valid(), path);
      const ssize_t length = H5Aget_name(attribute, 0, nullptr);
      need(length >= 0, path);
      std::string name(static_cast<size_t>(length) + 1, '\0');
      need(H5Aget_name(attribute, name.size(), name.data()) >= 0, path);
      name.pop_back();
      const std::string where = fmt::format("{} attribute {}", path, name);
      const Handle type(H5Aget_type(attribute), H5Tclose);
      const Handle space(H5Aget_space(attribute), H5Sclose);
      need(type.valid() && space.valid(), where);
      const Element element = element_of(type, where);
      const std::vector<int64_t> shape = shape_of(space, where);
      if (element == Element::text) {
        if (!shape.empty()) throw refuse(where, "an array of texts", "one text");
        out[name] = read_text(attribute, type, where);
        continue;
      }
      TreeValue value{element, shape, ""};
      value.bytes.resize(count_of(shape, element_bytes(element), where) * element_bytes(element));
      if (!value.bytes.empty()) need(H5Aread(attribute, file_type(element), value.bytes.data()) >= 0, where);
      out[name] = std::move(value);
    }
  }

  void read_dataset(hid_t parent, const std::string& name, const std::string& path) {
    const Handle dataset(H5Dopen2(parent, name.c_str(), H5P_DEFAULT), H5Dclose);
    need(dataset.valid(), path);
    const Handle type(H5Dget_type(dataset), H5Tclose);
    const Handle space(H5Dget_space(dataset), H5Sclose);
    const Handle list(H5Dget_create_plist(dataset), H5Pclose);
    need(type.valid() && space.valid() && list.valid(), path);
    TreeObject object;
    object.dataset = true;
    TreeValue& value = object.value;
    value.type = element_of(type, path);
    if (value.type == Element::text) throw refuse(path, "a dataset of texts", "numbers");
    value.shape = shape_of(space, path);
    const H5D_layout_t layout = H5Pget_layout(list);
    if (layout != H5D_CONTIGUOUS && layout != H5D_COMPACT) {
      throw refuse(path, "chunked or virtual storage", "contiguous storage");
    }
    if (H5Pget_external_count(list) != 0) throw refuse(path, "bytes in another file", "bytes in this file");
    const size_t bytes = count_of(value.shape, element_bytes(value.type), path) * element_bytes(value.type);
    if (H5Dget_storage_size(dataset) != bytes) throw refuse(path, "no bytes stored", "the values");
    read_bytes += bytes;
    if (read_bytes > file_bytes) throw refuse(path, "datasets that share their bytes", "bytes of its own for each");
    value.bytes.resize(bytes);
    if (bytes > 0) {
      need(H5Dread(dataset, file_type(value.type), H5S_ALL, H5S_ALL, H5P_DEFAULT, value.bytes.data()) >= 0, path);
    }
    read_attributes(dataset, path, object.attributes);
    tree[path] = std::move(object);
  }

  void read_group(hid_t group, const std::string& path, int depth) {
    if (depth > kMaxDepth) throw refuse(path, "groups nested too deeply");
    read_attributes(group, path, tree[path].attributes);
    H5G_info_t info;
    need(H5Gget_info(group, &info) >= 0, path);
    for (hsize_t i = 0; i < info.nlinks; ++i) {
      if (tree.size() > kMaxObjects) throw refuse(path, "too many objects");
      const ssize_t length = H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, nullptr, 0, H5P_DEFAULT);
      need(length >= 0, path);
      std::string name(static_cast<size_t>(length) + 1, '\0');
      need(H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size(), H5P_DEFAULT) >= 0,
           path);
      name.pop_back();
      const std::string child = path == "/" ? "/" + name : path + "/" + name;
      H5L_info_t link;
      need(H5Lget_info(group, name.c_str(), &link, H5P_DEFAULT) >= 0, child);
      if (link.type != H5L_TYPE_HARD) throw refuse(child, "a soft or external link", "groups and datasets");
      H5O_info_t object;
      need(H5Oget_info_by_name2(group, name.c_str(), &object, H5O_INFO_BASIC, H5P_DEFAULT) >= 0, child);
      if (object.type == H5O_TYPE_DATASET) {
        read_dataset(group, name, child);
      } else if (object.type == H5O_TYPE_GROUP) {
        if (object.rc != 1 || std::find(open_groups.begin(), open_groups.end(), object.addr) != open_groups.end()) {
          throw refuse(child, "a group with several names", "one name for each group");
        }
        const Handle inner(H5Gopen2(group, name.c_str(), H5P_DEFAULT), H5Gclose);
        need(inner.valid(), child);
        open_groups.push_back(object.addr);
        read_group(inner, child, depth + 1);
        open_groups.pop_back();
      } else {
        throw refuse(child, "neither group nor dataset");
      }
    }
  }
};

}  // namespace

Tree hdf5_to_tree(std::span<const std::byte> bytes, const std::string& place) {
  constexpr unsigned char kSignature[] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  if (bytes.size() < sizeof kSignature ||
      !std::equal(std::begin(kSignature), std::end(kSignature), reinterpret_cast<const unsigned char*>(bytes.data()))) {
    throw bad_input(place, fmt::format("no HDF5 file ({} bytes)", bytes.size()), "a file written by kvcc");
  }
  check_hdf5_structure(bytes, place);
  const std::lock_guard<std::mutex> lock(library_mutex());
  check_memory(place, bytes.size());
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const Handle access(made(H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  done(H5Pset_fapl_core(access, 1 << 16, false));
  // The library copies the image; the parameter is not const in its interface.
  done(H5Pset_file_image(access, const_cast<std::byte*>(bytes.data()), bytes.size()));
  const Handle file(H5Fopen("image", H5F_ACC_RDONLY, access), H5Fclose);
  if (!file.valid()) {
    check_memory(place, bytes.size());
    throw bad_input(place,
                    fmt::format("damaged or truncated HDF5 file of {} bytes ({})", bytes.size(), library_message()));
  }
  Reader reader;
  reader.place = place;
  reader.file_bytes = bytes.size();
  const Handle root(H5Gopen2(file, "/", H5P_DEFAULT), H5Gclose);
  reader.need(root.valid(), "/");
  reader.read_group(root, "/", 0);
  return std::move(reader.tree);
}

}  // namespace kvcc
