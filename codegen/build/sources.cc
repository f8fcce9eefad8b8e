// Templates and headers, from the folder of read-only data.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <regex>
#include <sstream>

#include "codegen/build/compile.h"
#include "formats/core/error.h"
#include "formats/core/file.h"

namespace kvcc::codegen {
namespace {

std::vector<std::string> includes_of(const std::string& text) {
  static const std::regex line("\\s*#\\s*include\\s+\"([^\"]+)\".*");
  std::vector<std::string> paths;
  std::istringstream lines(text);
  for (std::string one; std::getline(lines, one);) {
    std::smatch match;
    // Highway is the machine's, as the standard library is.
    if (std::regex_match(one, match, line) && !match[1].str().starts_with("hwy/")) paths.push_back(match[1]);
  }
  return paths;
}

std::string read_shared(const std::string& path) {
  const std::string full = share_folder() + "/" + path;
  if (!std::filesystem::is_regular_file(full)) {
    throw bad_input(full, "no such file", "the data installed with kvcc", "set KVCC_SHARE to its share/kvcc folder");
  }
  return read_text_file(full);
}

/// Includes of the units and theirs, by path, each text by read(path).
std::map<std::string, std::string> closure(const std::vector<std::string>& units,
                                           const std::function<std::string(const std::string&)>& read) {
  std::map<std::string, std::string> headers;
  std::vector<std::string> pending;
  for (const std::string& unit : units) {
    for (std::string& path : includes_of(unit)) pending.push_back(std::move(path));
  }
  while (!pending.empty()) {
    const std::string path = std::move(pending.back());
    pending.pop_back();
    if (headers.contains(path)) continue;
    headers[path] = read(path);
    for (std::string& next : includes_of(headers[path])) pending.push_back(std::move(next));
  }
  return headers;
}

}  // namespace

Templates read_templates() {
  Templates templates;
  for (const std::string& name : template_names()) templates[name] = read_shared("codegen/templates/" + name);
  return templates;
}

std::map<std::string, std::string> header_closure(const std::vector<std::string>& units) {
  return closure(units, read_shared);
}

std::map<std::string, std::string> header_closure(const std::string& unit,
                                                  const std::map<std::string, std::string>& all) {
  return closure({unit}, [&](const std::string& path) {
    const auto found = all.find(path);
    if (found == all.end()) throw Error(ErrorKind::failed, path, "no such header among those read");
    return found->second;
  });
}

}  // namespace kvcc::codegen
