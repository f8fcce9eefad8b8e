#include "formats/store/elf.h"

#include <fmt/format.h>

#include <cstdint>

namespace kvcc {
namespace {

// Offsets of the ELF-64 header and of a section's header.
constexpr size_t kHeaderBytes = 64, kSectionOffset = 40, kSectionBytes = 58, kSectionCount = 60;
constexpr size_t kSegmentOffset = 32, kSegmentBytes = 54, kSegmentCount = 56;
constexpr size_t kEntryBytes = 64, kEntryType = 4, kEntryOffset = 24, kEntrySize = 32;
constexpr uint64_t kNoBits = 8;  ///< a section type: nothing of it is in the file

uint64_t number(std::string_view bytes, size_t at, size_t width) {
  uint64_t value = 0;
  for (size_t i = 0; i < width; ++i) value |= uint64_t{static_cast<unsigned char>(bytes[at + i])} << 8 * i;
  return value;
}

bool lies_within(uint64_t offset, uint64_t length, size_t size) { return offset <= size && length <= size - offset; }

}  // namespace

std::string elf_fault(std::string_view bytes) {
  constexpr std::string_view kMagic =
      "\x7f"
      "ELF\x02\x01";  // 64 bits, little-endian
  if (!bytes.starts_with(kMagic)) return "does not begin as a 64-bit ELF file; wanted a cubin or a library";
  if (bytes.size() < kHeaderBytes) {
    return fmt::format("truncated: {} bytes; wanted {} of an ELF header", bytes.size(), kHeaderBytes);
  }
  const uint64_t table = number(bytes, kSectionOffset, 8), count = number(bytes, kSectionCount, 2);
  const uint64_t each = number(bytes, kSectionBytes, 2);
  if (count == 0 || each != kEntryBytes) {
    return fmt::format("{} section headers of {} bytes; wanted some of {}", count, each, kEntryBytes);
  }
  if (!lies_within(table, count * each, bytes.size())) {
    return fmt::format("truncated: {} bytes; wanted {} section headers from byte {}", bytes.size(), count, table);
  }
  const uint64_t segments = number(bytes, kSegmentCount, 2) * number(bytes, kSegmentBytes, 2);
  const uint64_t segment_table = number(bytes, kSegmentOffset, 8);
  if (segments > 0 && !lies_within(segment_table, segments, bytes.size())) {
    return fmt::format("truncated: {} bytes; wanted {} of program headers from byte {}", bytes.size(), segments,
                       segment_table);
  }
  for (uint64_t i = 0; i < count; ++i) {
    const size_t entry = static_cast<size_t>(table + i * each);
    const uint64_t offset = number(bytes, entry + kEntryOffset, 8), length = number(bytes, entry + kEntrySize, 8);
    if (number(bytes, entry + kEntryType, 4) == kNoBits || lies_within(offset, length, bytes.size())) continue;
    return fmt::format("truncated: {} bytes; wanted {} of section {} from byte {}", bytes.size(), length, i, offset);
  }
  return "";
}

}  // namespace kvcc
