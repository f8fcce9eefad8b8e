#include "formats/cli/output.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "formats/core/error.h"

namespace kvcc::cli {

void check_replaced(const std::string& path, std::initializer_list<std::string_view> marks, const std::string& option) {
  constexpr size_t kStart = 64 << 10;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;  // AtomicFile says what is wrong with it
  std::string start(kStart, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), kStart);
  start.resize(static_cast<size_t>(file.gcount()));
  if (start.empty() && file.eof()) return;
  if (std::all_of(marks.begin(), marks.end(), [&](std::string_view mark) { return start.find(mark) != start.npos; })) {
    return;
  }
  throw bad_input(path, "is there and no earlier result of " + option, "such a result, or a name that is free",
                  "give another name, or remove the file");
}

}  // namespace kvcc::cli
