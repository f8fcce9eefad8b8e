// Reads the #include lines of every source and fails on one that allowed.txt does not permit, so that the star
// (formats is the contract; calib, codegen and kernels do not know each other) stays one.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace {
namespace fs = std::filesystem;

struct Rule {
  std::set<std::string> folders, libraries;
};

std::set<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::set<std::string> result;
  for (std::string word; in >> word;) result.insert(word);
  return result;
}

std::map<std::string, Rule> read_rules() {
  std::ifstream in(KVCC_SOURCE_DIR "/tests/structure/allowed.txt");
  std::map<std::string, Rule> rules;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> parts;
    std::istringstream fields(line + ":");
    for (std::string part; std::getline(fields, part, ':');) parts.push_back(part);
    rules[*words(parts.at(0)).begin()] = {words(parts.at(1)), words(parts.at(2))};
  }
  return rules;
}

/// Why `include` is not allowed in a file of `folder`; "" when it is.
std::string objection(const std::map<std::string, Rule>& rules, const std::string& folder, const std::string& include,
                      bool quoted) {
  const auto rule = rules.find(folder);
  if (rule == rules.end()) return "folder " + folder + " has no row in allowed.txt";
  const size_t slash = include.rfind('/');
  if (quoted) {
    const std::string from = slash == std::string::npos ? "" : include.substr(0, slash);
    if (from == folder || rule->second.folders.contains(from)) return "";
    return folder + " may not use \"" + include + "\"";
  }
  static const std::regex standard("[a-z0-9_]+|std[a-z]+\\.h|string\\.h|immintrin\\.h");
  const std::string first = include.substr(0, include.find('/'));
  if (rule->second.libraries.contains(first)) return "";
  if (include.find('/') == std::string::npos && std::regex_match(include, standard)) return "";
  return folder + " may not use <" + include + ">";
}

TEST(Includes, EverySourceKeepsToTheTable) {
  const auto rules = read_rules();
  ASSERT_GE(rules.size(), 15u);
  const std::regex line_pattern("^\\s*#\\s*include\\s*([<\"])([^>\"]+)[>\"].*");
  int files = 0;
  for (const char* top : {"formats", "calib", "codegen", "kernels", "datasets"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(KVCC_SOURCE_DIR) / top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h" && extension != ".cuh" && extension != ".inc") continue;
      const std::string folder = fs::relative(entry.path().parent_path(), KVCC_SOURCE_DIR);
      if (folder.ends_with("/cli")) continue;  // programs may link any folder
      ++files;
      std::ifstream in(entry.path());
      int number = 0;
      for (std::string line; std::getline(in, line);) {
        ++number;
        std::smatch match;
        if (!std::regex_match(line, match, line_pattern)) continue;
        const std::string why = objection(rules, folder, match[2], match[1] == "\"");
        EXPECT_EQ(why, "") << entry.path().string() << ":" << number;
      }
    }
  }
  EXPECT_GE(files, 30);
}

/// Numbers are written and read as in the C locale, whatever the user's is: so equal content gives equal bytes.
TEST(Structure, NothingTakesUpTheUsersLocale) {
  const std::regex locale("setlocale|std::locale|\\bimbue\\b|newlocale|uselocale");
  int files = 0;
  for (const char* top : {"formats", "calib", "codegen", "kernels", "datasets"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(KVCC_SOURCE_DIR) / top)) {
      if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
      std::stringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      EXPECT_FALSE(std::regex_search(text.str(), locale)) << entry.path();
      ++files;
    }
  }
  EXPECT_GE(files, 100);
}

TEST(Includes, TheRulesObject) {
  const auto rules = read_rules();
  EXPECT_NE(objection(rules, "formats/core", "formats/store/codebook.h", true), "");
  EXPECT_NE(objection(rules, "codegen/plan", "calib/fit/fit.h", true), "");
  EXPECT_NE(objection(rules, "kernels/device", "codegen/plan/plan.h", true), "");
  EXPECT_NE(objection(rules, "formats/store", "torch/torch.h", false), "");
  EXPECT_NE(objection(rules, "calib/fit", "hdf5.h", false), "");
  EXPECT_NE(objection(rules, "calib/newcomer", "formats/core/error.h", true), "");
  EXPECT_EQ(objection(rules, "calib/fit", "formats/codec/reference.h", true), "");
  EXPECT_EQ(objection(rules, "calib/fit", "vector", false), "");
}

}  // namespace
