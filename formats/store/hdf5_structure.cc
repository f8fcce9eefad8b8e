#include "formats/store/hdf5_structure.h"

#include <algorithm>

#include "formats/store/hdf5_header.h"

namespace kvcc {
namespace {

using namespace hdf5;

constexpr size_t kMostObjects = 4096;
constexpr int kMostDepth = 32;

class Walk {
 public:
  Walk(std::span<const std::byte> file, const std::string& place) : bytes_(file, place), headers_(bytes_) {}

  void run() {
    constexpr uint64_t kVersion = 8;
    bytes_.need(0, kVersion + 1, "", "a superblock");
    const uint64_t version = bytes_.number(kVersion, 1);
    if (version == 0) return run_old();
    if (version != 2 && version != 3) {
      throw bytes_.refuse("", fmt::format("an HDF5 file with superblock {}", version), "superblock 2, or 0 or 3");
    }
    Cursor in = superblock(9, 48);
    check_widths(in);
    in.skip(1);  // flags
    in.need(in.number(8) == 0, "a base address");
    in.need(in.number(8) == kNowhere, "an extension");
    check_end(in);
    walk_object("/", in.number(8), 0);
    check_extents();
  }

 private:
  Cursor superblock(uint64_t skip, uint64_t size) {
    claim(0, size);
    static const std::string kPath;
    Cursor in(bytes_, kPath, "superblock", 0, size);
    in.skip(skip);
    return in;
  }
  static void check_widths(Cursor& in) {
    const uint64_t offsets = in.number(1), lengths = in.number(1);
    in.need(offsets == 8 && lengths == 8, "addresses that do not have 8 bytes");
  }
  void check_end(Cursor& in) const {
    const uint64_t end = in.number(8);
    if (end > bytes_.size()) throw in.wrong(fmt::format("the file should have {}", end));
  }

  /// Superblock 0, whose root group is an entry of a symbol table.
  void run_old() {
    Cursor in = superblock(9, 96);
    in.skip(4);
    check_widths(in);
    in.skip(1 + 2 + 2 + 4);  // nothing, ranks of trees, flags
    in.need(in.number(8) == 0, "a base address");
    in.need(in.number(8) == kNowhere, "a free-space index");
    check_end(in);
    in.need(in.number(8) == kNowhere, "a driver");
    in.skip(8);  // the root has no name
    walk_entry("/", in, 0);
    check_extents();
  }

  /// The end of an entry of a symbol table: an object, and what is kept of it beside its address.
  void walk_entry(const std::string& path, Cursor& in, int depth) {
    const uint64_t address = in.number(8), kept = in.number(4);
    in.skip(4);
    const SymbolTable table{in.number(8), in.number(8)};
    if (kept == 2) throw bytes_.refuse(path, "a soft or external link", "groups and datasets");
    in.need(kept <= 1, "kind of a symbol");
    walk_object(path, address, depth);
    if (kept == 1 && !(tables_[address] == table)) throw in.wrong("another symbol table than the group's");
  }

  /// Marks bytes as those of one structure.
  void claim(uint64_t at, uint64_t size) {
    if (size > 0) extents_.emplace_back(at, size);
  }
  /// The same for a node of a tree, which only one other may lead to: else a small file could be walked for ever.
  void claim_node(uint64_t at, uint64_t size) {
    claim(at, size);
    if (!nodes_.insert(at).second) throw bytes_.damaged("", fmt::format("two structures at {}", at));
  }

  void check_extents() {
    extents_.insert(extents_.end(), headers_.heaps().extents().begin(), headers_.heaps().extents().end());
    std::sort(extents_.begin(), extents_.end());
    for (size_t i = 1; i < extents_.size(); ++i) {
      const auto [before, size] = extents_[i - 1];
      if (before + size > extents_[i].first) {
        throw bytes_.damaged("", fmt::format("two structures at {}", extents_[i].first));
      }
    }
  }

  // ---- objects

  void walk_object(const std::string& path, uint64_t at, int depth) {
    if (depth > kMostDepth) throw bytes_.refuse(path, "groups nested too deeply");
    if (!objects_.insert(at).second) return;  // several names: the reader decides
    if (objects_.size() > kMostObjects) throw bytes_.refuse(path, "too many objects");
    const ObjectHeader object = headers_.read(path, at, extents_);
    check_dataset(path, object);
    tables_[at] = object.symbols;
    for (const auto& [name, address] : object.links) {
      walk_object((path == "/" ? path : path + "/") + name, address, depth + 1);
    }
    if (!(object.symbols == SymbolTable{})) walk_symbols(path, object.symbols, depth);
  }

  void check_dataset(const std::string& path, const ObjectHeader& object) const {
    if (!object.has_layout) return;
    if (!object.has_space || object.type.bytes == 0) throw bytes_.damaged(path, "a dataset without shape or type");
    if (object.type.kind == kVariable) throw bytes_.refuse(path, "a dataset of texts", "numbers");
    uint64_t bytes = 0;
    if (object.elements == kTooMany || __builtin_mul_overflow(object.elements, object.type.bytes, &bytes) ||
        (object.stored != kNowhere && bytes != object.stored)) {
      throw bytes_.refuse(path, "its shape is not that of the bytes stored");
    }
    if (object.fill != 0 && object.fill != object.type.bytes)
      throw bytes_.damaged(path, "a fill value of another size");
  }

  // ---- groups of the old form

  struct Chunk {
    uint64_t at, size;
  };

  void walk_symbols(const std::string& path, const SymbolTable& table, int depth) {
    const Chunk names = read_names(path, table.heap);
    std::map<std::string, uint64_t> links;
    walk_tree(path, table.tree, -1, names, links, depth);
  }

  /// The local heap of names. Its list of free parts is followed too, as the library does.
  Chunk read_names(const std::string& path, uint64_t at) {
    constexpr uint64_t kEnd = 1;
    Cursor in(bytes_, path, "a heap of names", at, 32);
    in.need(in.text(4) == "HEAP" && in.number(1) == 0, "no heap");
    in.skip(3);
    const uint64_t size = in.number(8);
    uint64_t free = in.number(8);
    const Chunk names{in.number(8), size};
    claim(at, 32);
    claim(names.at, size);
    bytes_.need(names.at, size, path, "names");
    for (uint64_t found = 0; free != kEnd && free != kNowhere; ++found) {
      in.need(found <= size / 16 && free < size && size - free >= 16, "free parts");
      const uint64_t next = bytes_.number(names.at + free, 8), bytes = bytes_.number(names.at + free + 8, 8);
      in.need(bytes >= 16 && bytes <= size - free, "a free part");
      free = next;
    }
    return names;
  }

  /// `level`: that of the node above minus one, -1 for the root.
  void walk_tree(const std::string& path, uint64_t at, int level, const Chunk& names,
                 std::map<std::string, uint64_t>& links, int depth) {
    Cursor in(bytes_, path, "a tree of links", at, 24);
    in.need(in.text(4) == "TREE" && in.number(1) == 0, "no tree");
    const int own = static_cast<int>(in.number(1));
    const uint64_t count = in.number(2);
    in.need((level < 0 && own < 8) || own == level, "level of a tree");
    const uint64_t size = 8 + 16 * count;
    bytes_.need(at + 24, size, path, "a tree of links");
    claim_node(at, 24 + size);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t child = bytes_.number(at + 24 + 8 + 16 * i, 8);
      own > 0 ? walk_tree(path, child, own - 1, names, links, depth) : walk_leaf(path, child, names, links, depth);
    }
  }

  void walk_leaf(const std::string& path, uint64_t at, const Chunk& names, std::map<std::string, uint64_t>& links,
                 int depth) {
    constexpr uint64_t kEntry = 40;
    Cursor head(bytes_, path, "links", at, 8);
    head.need(head.text(4) == "SNOD" && head.number(1) == 1, "no links");
    head.skip(1);
    const uint64_t count = head.number(2);
    bytes_.need(at + 8, kEntry * count, path, "links");
    claim_node(at, 8 + kEntry * count);
    for (uint64_t i = 0; i < count; ++i) {
      Cursor in(bytes_, path, "a link", at + 8 + kEntry * i, kEntry);
      const uint64_t offset = in.number(8);
      in.need(offset < names.size, "a name beyond the names");
      const std::string_view rest = bytes_.text(names.at + offset, names.size - offset);
      in.need(rest.find('\0') != std::string_view::npos, "a name without end");
      const std::string name(rest.substr(0, rest.find('\0')));
      add_link(bytes_, path, name, 0, links);
      const std::string child = (path == "/" ? path : path + "/") + name;
      walk_entry(child, in, depth + 1);
    }
  }

  const Bytes bytes_;
  HeaderReader headers_;
  std::set<uint64_t> objects_, nodes_;
  std::map<uint64_t, SymbolTable> tables_;  ///< of objects by address
  Extents extents_;
};

}  // namespace

void check_hdf5_structure(std::span<const std::byte> file, const std::string& place) { Walk(file, place).run(); }

}  // namespace kvcc
