// Emitted text that is kept in git, so that a change of the generator shows what it does.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>

#include "codegen/emit/emit.h"
#include "formats/core/file.h"

namespace kvcc::codegen {

inline Templates templates() {
  Templates result;
  for (const std::string& name : template_names()) {
    result[name] = read_text_file(std::string(KVCC_SOURCE_DIR) + "/codegen/templates/" + name);
  }
  return result;
}

/// First line that differs, with its neighbours: what a reviewer wants to see.
inline std::string difference(const std::string& wanted, const std::string& found) {
  std::istringstream a(wanted), b(found);
  std::string left, right, out;
  for (int line = 1; out.size() < 2000; ++line) {
    const bool more_a = static_cast<bool>(std::getline(a, left)), more_b = static_cast<bool>(std::getline(b, right));
    if (!more_a && !more_b) break;
    if (more_a != more_b || left != right) {
      out +=
          std::to_string(line) + ":\n  - " + (more_a ? left : "(end)") + "\n  + " + (more_b ? right : "(end)") + "\n";
    }
  }
  return out;
}

inline void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(KVCC_SOURCE_DIR) + "/tests/golden/codegen/" + name;
  if (std::getenv("KVCC_UPDATE_GOLDEN") != nullptr) {
    make_folder(std::filesystem::path(path).parent_path().string());
    write_if_different(path, text);
  }
  ASSERT_TRUE(std::filesystem::exists(path)) << path << " is missing: make golden";
  const std::string kept = read_text_file(path);
  EXPECT_TRUE(kept == text) << name << " differs; if that is meant: make golden\n" << difference(kept, text);
}

}  // namespace kvcc::codegen
