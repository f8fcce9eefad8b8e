#include "formats/store/hdf5_header.h"

#include <deque>

namespace kvcc::hdf5 {
namespace {

constexpr size_t kMostAttributes = 8192, kMostLinks = 1024, kMostAttributesEach = 256;

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

/// One object's header: its parts, and the messages in them.
class Messages {
 public:
  Messages(const Bytes& bytes, GlobalHeaps& heaps, size_t& attributes, Extents& extents)
      : bytes_(bytes), heaps_(heaps), attributes_(attributes), extents_(extents) {}

  void read(const std::string& path, uint64_t at, ObjectHeader& object) {
    bytes_.need(at, 16, path, "an object");
    bytes_.text(at, 4) == "OHDR" ? read_header(path, at, object) : read_old_header(path, at, object);
  }

 private:
  struct Chunk {
    uint64_t at, size;
  };

  void claim(uint64_t at, uint64_t size) {
    if (size > 0) extents_.emplace_back(at, size);
  }

  /// Object header version 2 (signature OHDR, continued in OCHK): each part ends in a checksum.
  void read_header(const std::string& path, uint64_t at, ObjectHeader& object) {
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
  void read_old_header(const std::string& path, uint64_t at, ObjectHeader& object) {
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
  Chunk read_message(const std::string& path, uint64_t kind, uint64_t marks, Cursor in, ObjectHeader& object) {
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

  void read_layout(const std::string& path, Cursor& in, ObjectHeader& object) {
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

  void read_link(const std::string& path, Cursor& in, ObjectHeader& object) {
    in.need(in.number(1) == 1, "version of a link");
    const uint64_t flags = in.number(1), kind = flags & 8 ? in.number(1) : 0;
    // Where it refuses a link, libhdf5 1.10 frees what it has not set yet (H5G__link_release_table).
    in.need((flags & ~uint64_t{0x1f}) == 0, "flags of a link");
    in.skip(flags & 4 ? 8 : 0);
    in.need(!(flags & 0x10) || in.number(1) <= 1, "character set of a link");
    const std::string name(in.text(in.number(1 << (flags & 3))));
    if (kind != 0) throw bytes_.refuse(path + "/" + name, "a soft or external link", "groups and datasets");
    add_link(bytes_, path, name, in.number(8), object.links);
  }

  void read_attribute(const std::string& path, Cursor& in, ObjectHeader& object) {
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

  const Bytes& bytes_;
  GlobalHeaps& heaps_;
  size_t& attributes_;
  Extents& extents_;
};

}  // namespace

ObjectHeader HeaderReader::read(const std::string& path, uint64_t at, Extents& extents) {
  ObjectHeader object;
  Messages(bytes_, heaps_, attributes_, extents).read(path, at, object);
  return object;
}

void add_link(const Bytes& bytes, const std::string& path, const std::string& name, uint64_t address,
              std::map<std::string, uint64_t>& links) {
  const bool plain =
      !name.empty() && name != "." && name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
  if (!plain) throw bytes.damaged(path, "a link's name");
  if (!links.emplace(name, address).second) throw bytes.refuse(path, fmt::format("two links '{}'", name));
  if (links.size() > kMostLinks) throw bytes.refuse(path, "too many objects");
}

}  // namespace kvcc::hdf5
