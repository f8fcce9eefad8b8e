#include "formats/store/hdf5_structure.h"

#include <algorithm>
#include <deque>

#include "formats/store/hdf5_bytes.h"

namespace kvcc {
namespace {

using namespace hdf5;

constexpr size_t kMostObjects = 4096, kMostAttributes = 8192, kMostLinks = 1024, kMostAttributesEach = 256;
constexpr int kMostDepth = 32;

/// Names of header messages in the specification, as far as they are taken.
enum Kind : uint64_t {
  kNil = 0x00,
  kSpace = 0x01,
  kLinkInfo = 0x02,
  kType = 0x03,
  kOldFill = 0x04,
  kFill = 0x05,
  kLink = 0x06,
  kLayout = 0x08,
  kGroupInfo = 0x0a,
  kAttribute = 0x0c,
  kContinuation = 0x10,
  kSymbolTable = 0x11,
  kModified = 0x12,
  kAttributeInfo = 0x15,
  kReferences = 0x16,
};

/// A group of the old form: where its names and links are.
struct SymbolTable {
  uint64_t tree = kNowhere, heap = kNowhere;
  bool operator==(const SymbolTable&) const = default;
};

class Walk {
 public:
  Walk(std::span<const std::byte> file, const std::string& place) : bytes_(file, place), heaps_(bytes_) {}

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
  struct Object {
    uint64_t elements = kTooMany;
    Type type;
    uint64_t fill = 0, stored = kNowhere;  ///< bytes of each
    bool has_space = false, has_layout = false;
    size_t attributes = 0;
    std::map<std::string, uint64_t> links;
    SymbolTable symbols;
  };

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
    extents_.insert(extents_.end(), heaps_.extents().begin(), heaps_.extents().end());
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
    Object object;
    bytes_.need(at, 16, path, "an object");
    bytes_.text(at, 4) == "OHDR" ? read_header(path, at, object) : read_old_header(path, at, object);
    check_dataset(path, object);
    tables_[at] = object.symbols;
    for (const auto& [name, address] : object.links) {
      walk_object((path == "/" ? path : path + "/") + name, address, depth + 1);
    }
    if (!(object.symbols == SymbolTable{})) walk_symbols(path, object.symbols, depth);
  }

  void check_dataset(const std::string& path, const Object& object) const {
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

  struct Chunk {
    uint64_t at, size;
  };

  /// Object header version 2 (signature OHDR, continued in OCHK): each part ends in a checksum.
  void read_header(const std::string& path, uint64_t at, Object& object) {
    const uint64_t flags = bytes_.number(at + 5, 1);
    if (bytes_.number(at + 4, 1) != 2 || (flags & 0xc0) != 0) throw bytes_.damaged(path, "version of an object header");
    const int width = 1 << (flags & 3);
    const uint64_t head = 6 + (flags & 0x20 ? 16 : 0) + (flags & 0x10 ? 4 : 0);
    bytes_.need(at, head + static_cast<uint64_t>(width), path, "an object header");
    const uint64_t size = bytes_.number(at + head, width), begin = at + head + static_cast<uint64_t>(width);
    bytes_.need(begin, size, path, "an object header");
    bytes_.need(begin + size, 4, path, "a checksum");
    claim(at, begin + size + 4 - at);
    std::deque<Chunk> chunks = {{begin, size}};
    for (size_t i = 0; i < chunks.size(); ++i) {
      Cursor in(bytes_, path, "an object header", chunks[i].at, chunks[i].size);
      const uint64_t prefix = flags & 4 ? 6 : 4;
      while (in.left() >= prefix) {  // less is a gap
        const uint64_t kind = in.number(1), bytes = in.number(2), marks = in.number(1);
        if (flags & 4) in.skip(2);
        const Chunk more = read_message(path, kind, marks, in.part("a message", bytes), object);
        if (more.size == 0) continue;
        bytes_.need(more.at, more.size, path, "an object header");
        if (more.size < 8 || bytes_.text(more.at, 4) != "OCHK") throw bytes_.damaged(path, "no continuation");
        add_chunk(path, chunks, {more.at + 4, more.size - 8}, more);
      }
    }
  }

  /// Version 1: without signatures and checksums, messages in multiples of 8 bytes.
  void read_old_header(const std::string& path, uint64_t at, Object& object) {
    constexpr uint64_t kHead = 16;
    if (bytes_.number(at, 1) != 1) throw bytes_.damaged(path, fmt::format("no object at {}", at));
    const uint64_t size = bytes_.number(at + 8, 4);
    bytes_.need(at + kHead, size, path, "an object header");
    claim(at, kHead + size);
    std::deque<Chunk> chunks = {{at + kHead, size}};
    for (size_t i = 0; i < chunks.size(); ++i) {
      Cursor in(bytes_, path, "an object header", chunks[i].at, chunks[i].size);
      while (in.left() > 0) {
        const uint64_t kind = in.number(2), bytes = in.number(2), marks = in.number(1);
        in.skip(3);
        in.need(bytes % 8 == 0, "a message that is not aligned");
        const Chunk more = read_message(path, kind, marks, in.part("a message", bytes), object);
        if (more.size > 0) add_chunk(path, chunks, more, more);
      }
    }
  }

  void add_chunk(const std::string& path, std::deque<Chunk>& chunks, const Chunk& messages, const Chunk& whole) {
    constexpr size_t kMost = 1024;
    bytes_.need(whole.at, whole.size, path, "an object header");
    if (chunks.size() >= kMost) throw bytes_.damaged(path, "an object header without end");
    claim(whole.at, whole.size);
    chunks.push_back(messages);
  }

  /// Where the header goes on, when the message says so.
  Chunk read_message(const std::string& path, uint64_t kind, uint64_t marks, Cursor in, Object& object) {
    if (kind == kNil) return {0, 0};
    if (marks & 2) throw bytes_.refuse(path, "a shared message", "what belongs to one object");
    switch (kind) {
      case kContinuation: {
        const uint64_t at = in.number(8), size = in.number(8);
        in.need(size > 0, "an empty continuation");
        return {at, size};
      }
      case kSpace:
        object.elements = read_space(in);
        object.has_space = true;
        break;
      case kType:
        object.type = read_type(in);
        break;
      case kOldFill:
      case kFill:
        check_fill(in, kind == kOldFill, object.fill);
        break;
      case kLayout:
        read_layout(path, in, object);
        break;
      case kLink:
        read_link(path, in, object);
        break;
      case kAttribute:
        read_attribute(path, in, object);
        break;
      case kLinkInfo:
      case kAttributeInfo:
        check_no_heap(path, in, kind == kLinkInfo);
        break;
      case kSymbolTable:
        object.symbols = {in.number(8), in.number(8)};
        break;
      case kGroupInfo: {
        in.need(in.number(1) == 0, "version of a group's settings");
        const uint64_t flags = in.number(1);
        in.need((flags & ~uint64_t{3}) == 0, "flags of a group's settings");
        in.skip((flags & 1 ? 4 : 0) + (flags & 2 ? 4 : 0));
        break;
      }
      case kModified:
        in.skip(8);
        break;
      case kReferences:
        in.need(in.number(1) == 0, "version of a count of names");
        in.skip(4);
        break;
      case 0x07:
        throw bytes_.refuse(path, "bytes in another file", "bytes in this file");
      case 0x0b:
        throw bytes_.refuse(path, "a filter", "plain bytes");
      default:
        throw bytes_.refuse(path, fmt::format("a message of kind {}", kind), "what kvcc's files hold");
    }
    return {0, 0};
  }

  void read_layout(const std::string& path, Cursor& in, Object& object) {
    const uint64_t version = in.number(1), kind = in.number(1);
    if (version != 3 && version != 4) throw in.wrong("version of a layout");
    object.has_layout = true;
    if (kind == 0) {
      object.stored = in.number(2);
      in.skip(object.stored);
    } else if (kind == 1) {
      const uint64_t at = in.number(8), size = in.number(8);
      if (at == kNowhere) return;  // nothing is stored: the reader refuses it
      bytes_.need(at, size, path, "a dataset");
      claim(at, size);
      object.stored = size;
    } else {
      throw bytes_.refuse(path, "chunked or virtual storage", "contiguous storage");
    }
  }

  void read_link(const std::string& path, Cursor& in, Object& object) {
    in.need(in.number(1) == 1, "version of a link");
    const uint64_t flags = in.number(1), kind = flags & 8 ? in.number(1) : 0;
    // Where it refuses a link, libhdf5 1.10 frees what it has not set yet (H5G__link_release_table).
    in.need((flags & ~uint64_t{0x1f}) == 0, "flags of a link");
    in.skip(flags & 4 ? 8 : 0);
    in.need(!(flags & 0x10) || in.number(1) <= 1, "character set of a link");
    const std::string name(in.text(in.number(1 << (flags & 3))));
    if (kind != 0) throw bytes_.refuse(path + "/" + name, "a soft or external link", "groups and datasets");
    add_link(path, name, in.number(8), object.links);
  }

  void add_link(const std::string& path, const std::string& name, uint64_t address,
                std::map<std::string, uint64_t>& links) const {
    const bool plain =
        !name.empty() && name != "." && name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
    if (!plain) throw bytes_.damaged(path, "a link's name");
    if (!links.emplace(name, address).second) throw bytes_.refuse(path, fmt::format("two links '{}'", name));
    if (links.size() > kMostLinks) throw bytes_.refuse(path, "too many objects");
  }

  void read_attribute(const std::string& path, Cursor& in, Object& object) {
    if (++object.attributes > kMostAttributesEach || ++attributes_ > kMostAttributes) {
      throw bytes_.refuse(path, "too many attributes");
    }
    const uint64_t version = in.number(1), flags = in.number(1);
    in.need(version >= 1 && version <= 3, "version of an attribute");
    if (version > 1 && flags != 0) throw bytes_.refuse(path, "an attribute of a shared type", "a type of its own");
    const uint64_t name = in.number(2), type = in.number(2), space = in.number(2);
    if (version == 3) in.skip(1);
    const auto padded = [&](uint64_t n) { return version == 1 ? (n + 7) / 8 * 8 : n; };
    const std::string_view text = in.text(name);
    in.need(name > 1 && text.find('\0') == name - 1, "an attribute's name");
    in.skip(padded(name) - name);
    const std::string where = fmt::format("{} attribute {}", path, text.substr(0, name - 1));
    Cursor type_part(bytes_, where, "an element type", in.at(), type);
    const Type element = read_type(type_part);
    in.skip(padded(type));
    Cursor space_part(bytes_, where, "a shape", in.at(), space);
    const uint64_t count = read_space(space_part);
    in.skip(padded(space));
    if (count > in.left() / element.bytes) {
      throw bytes_.refuse(where, "its shape and type need more bytes than it has");
    }
    for (uint64_t i = 0; element.kind == kVariable && i < count; ++i) {
      const uint64_t length = in.number(4), heap = in.number(8), index = in.number(4);
      if (length > 0 && heap != 0) heaps_.check(where, heap, index, length);
    }
  }

  /// Links and attributes that lie in heaps of their own, for which there are too many in an artifact.
  void check_no_heap(const std::string& path, Cursor& in, bool links) const {
    in.need(in.number(1) == 0, "version of an index");
    const uint64_t flags = in.number(1);
    if (flags & 1) in.skip(links ? 8 : 2);
    const bool none =
        in.number(8) == kNowhere && in.number(8) == kNowhere && (!(flags & 2) || in.number(8) == kNowhere);
    if (!none) throw bytes_.refuse(path, "a heap of links or attributes", "as few as fit in the object's header");
  }

  // ---- groups of the old form

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
      add_link(path, name, 0, links);
      const std::string child = (path == "/" ? path : path + "/") + name;
      walk_entry(child, in, depth + 1);
    }
  }

  const Bytes bytes_;
  GlobalHeaps heaps_;
  std::set<uint64_t> objects_, nodes_;
  std::map<uint64_t, SymbolTable> tables_;  ///< of objects by address
  std::vector<std::pair<uint64_t, uint64_t>> extents_;
  size_t attributes_ = 0;
};

}  // namespace

void check_hdf5_structure(std::span<const std::byte> file, const std::string& place) { Walk(file, place).run(); }

}  // namespace kvcc
