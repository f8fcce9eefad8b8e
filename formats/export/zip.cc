#include "formats/export/zip.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <set>

#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22;
constexpr uint16_t kVersion = 20, kUtf8 = 1 << 11;
constexpr uint16_t kFirstDay = 1 << 5 | 1;  // 1980-01-01: no time of the making

void put(std::string& to, uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>(number >> 8 * i & 0xff);
}

/// `bytes` bytes at `at`, little-endian. The caller has checked the bounds.
uint64_t number_at(std::string_view file, size_t at, int bytes) {
  uint64_t number = 0;
  for (int i = 0; i < bytes; ++i) number |= uint64_t{static_cast<uint8_t>(file[at + i])} << 8 * i;
  return number;
}

constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
    table[i] = value;
  }
  return table;
}();

/// What local and central headers have in common.
void put_common(std::string& to, uint32_t crc, size_t size, size_t name) {
  put(to, kUtf8, 2);
  put(to, 0, 2);  // stored
  put(to, 0, 2);
  put(to, kFirstDay, 2);
  put(to, crc, 4);
  put(to, size, 4);
  put(to, size, 4);
  put(to, name, 2);
  put(to, 0, 2);  // no extra field
}

}  // namespace

uint32_t crc32(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ crc >> 8;
  return ~crc;
}

void ZipWriter::add(const std::string& name, const std::string& bytes) {
  const size_t offset = file_.size();
  const size_t whole =
      offset + kLocalBytes + directory_.size() + kCentralBytes + kEndBytes + 2 * name.size() + bytes.size();
  if (whole > UINT32_MAX || entries_ == UINT16_MAX || name.size() > UINT16_MAX) {
    throw Error(ErrorKind::failed, "npz", fmt::format("{} bytes, {} arrays", whole, entries_ + 1),
                "at most 4 GiB and 65535 arrays", "--to safetensors has no such limit");
  }
  const uint32_t crc = crc32(bytes);
  put(file_, kLocal, 4);
  put(file_, kVersion, 2);
  put_common(file_, crc, bytes.size(), name.size());
  file_ += name;
  file_ += bytes;
  put(directory_, kCentral, 4);
  put(directory_, kVersion, 2);
  put(directory_, kVersion, 2);
  put_common(directory_, crc, bytes.size(), name.size());
  put(directory_, 0, 2);  // no comment
  put(directory_, 0, 2);  // one disk
  put(directory_, 0, 2);
  put(directory_, 0, 4);
  put(directory_, offset, 4);
  directory_ += name;
  ++entries_;
}

std::string ZipWriter::finish() {
  const size_t offset = file_.size();
  file_ += directory_;
  put(file_, kEnd, 4);
  put(file_, 0, 4);
  put(file_, entries_, 2);
  put(file_, entries_, 2);
  put(file_, directory_.size(), 4);
  put(file_, offset, 4);
  put(file_, 0, 2);
  return std::move(file_);
}

std::vector<ZipEntry> read_zip(std::string_view file, const std::string& place) {
  // Without a comment the end record is the file's last bytes: what follows it would be no part of the archive.
  if (file.size() < kEndBytes || number_at(file, file.size() - kEndBytes, 4) != kEnd) {
    throw bad_input(place, "no end record of a ZIP archive in its last bytes", "a whole .npz file without comment");
  }
  const size_t end = file.size() - kEndBytes;
  const size_t count = number_at(file, end + 10, 2), start = number_at(file, end + 16, 4);
  if (start > end || start + number_at(file, end + 12, 4) != end) {
    throw bad_input(place, fmt::format("a directory of {} bytes at {}", number_at(file, end + 12, 4), start),
                    fmt::format("one that ends at {}", end));
  }
  std::vector<ZipEntry> entries;
  std::set<std::string> names;
  size_t at = start, data = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::string entry = fmt::format("{}: entry {}", place, i);
    if (end - at < kCentralBytes || number_at(file, at, 4) != kCentral) throw bad_input(entry, "no directory entry");
    const size_t name = number_at(file, at + 28, 2), extra = number_at(file, at + 30, 2) + number_at(file, at + 32, 2);
    if (end - at - kCentralBytes < name + extra) throw bad_input(entry, "its name leaves the directory");
    ZipEntry found{std::string(file.substr(at + kCentralBytes, name)), {}};
    const std::string where = fmt::format("{}: {}", place, found.name);
    if (!names.insert(found.name).second) throw bad_input(where, "appears twice");
    if (number_at(file, at + 10, 2) != 0) throw bad_input(where, "compressed", "stored (numpy.savez)");
    const size_t size = number_at(file, at + 24, 4), local = number_at(file, at + 42, 4);
    if (number_at(file, at + 20, 4) != size) throw bad_input(where, "two sizes of a stored entry");
    if (local != data || start - data < kLocalBytes || number_at(file, local, 4) != kLocal) {
      throw bad_input(where, fmt::format("no entry at {}", local), fmt::format("one at {}", data));
    }
    const size_t skip = kLocalBytes + number_at(file, local + 26, 2) + number_at(file, local + 28, 2);
    if (start - local < skip || start - local - skip < size) {
      throw bad_input(where, fmt::format("{} bytes at {}", size, local), "bytes before the directory");
    }
    if (file.substr(local + kLocalBytes, number_at(file, local + 26, 2)) != found.name) {
      throw bad_input(where, "has another name at its bytes");
    }
    found.bytes = file.substr(local + skip, size);
    if (crc32(found.bytes) != number_at(file, at + 16, 4)) throw bad_input(where, "its bytes don't match its CRC-32");
    data = local + skip + size;
    at += kCentralBytes + name + extra;
    entries.push_back(std::move(found));
  }
  if (at != end || data != start) throw bad_input(place, "bytes that belong to no entry");
  return entries;
}

}  // namespace kvcc
