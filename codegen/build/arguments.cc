#include "codegen/build/arguments.h"

#include <regex>
#include <sstream>

#include "formats/core/error.h"

namespace kvcc::codegen {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const size_t first = part.find_first_not_of(' ');
    if (first != std::string::npos) parts.push_back(part.substr(first));
  }
  return parts;
}

}  // namespace

std::vector<KernelArgument> members_of(std::string_view launch_header, const std::string& name) {
  const std::string text(launch_header), open = "typedef struct " + name + " {\n";
  const size_t begin = text.find(open), end = text.find("} " + name + ";", begin);
  if (begin == std::string::npos || end == std::string::npos) {
    throw Error(ErrorKind::failed, "launch.h", "no struct " + name);
  }
  static const std::regex member(R"(\s*((?:const )?\w+\*?) (\w+(?:, \w+)*);(?:\s*/\* (?:\[([^\]]*)\])?.*)?)");
  std::vector<KernelArgument> members;
  bool in_comment = false;
  std::istringstream lines(text.substr(begin + open.size(), end - begin - open.size()));
  for (std::string line; std::getline(lines, line);) {
    const bool continues = in_comment;
    const size_t opened = line.rfind("/*"), closed = line.rfind("*/");
    if (opened != std::string::npos && (closed == std::string::npos || closed < opened)) in_comment = true;
    if (closed != std::string::npos && (opened == std::string::npos || closed > opened)) in_comment = false;
    if (continues || line.find_first_not_of(' ') == opened) continue;
    std::smatch match;
    if (!std::regex_match(line, match, member)) {
      throw Error(ErrorKind::failed, "launch.h, struct " + name, "\"" + line + "\"", "a member with its shape");
    }
    for (const std::string& one : split(match[2])) {
      if (match[1].str().starts_with("Kvcc")) {
        for (KernelArgument& inner : members_of(launch_header, match[1])) {
          inner.name = one + "." + inner.name;
          members.push_back(std::move(inner));
        }
      } else {
        members.push_back({one, match[1], split(match[3])});
      }
    }
  }
  return members;
}

}  // namespace kvcc::codegen
