// The container of cubins.
#pragma once

#include <string>
#include <string_view>

namespace kvcc {

/// What keeps `bytes` from being a whole 64-bit little-endian ELF file: another magic, or a table or section that lies
/// beyond its end; "" when nothing does. Found and wanted, in words.
std::string elf_fault(std::string_view bytes);

}  // namespace kvcc
