// The kept corpus of the fuzz targets: good files to start from, and everything that was found once.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "formats/core/error.h"
#include "tests/fuzz/targets.h"

/// libhdf5 1.10.8 itself does not free everything when it refuses a damaged file. LeakSanitizer calls this.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

namespace kvcc::fuzz {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(FuzzCorpus, NoInputDoesMoreThanBeRefused) {
  ASSERT_GE(targets().size(), 25u);
  for (const auto& [name, target] : targets()) {
    const fs::path folder = fs::path(KVCC_SOURCE_DIR) / "tests/corpus" / name;
    ASSERT_TRUE(fs::is_directory(folder)) << folder;
    int accepted = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string good = bytes_of(entry.path());
      try {
        target(good);
        ++accepted;
      } catch (const Error&) {
        EXPECT_FALSE(entry.path().filename().string().starts_with("good")) << entry.path();
      }
      // Cut at a few places, and with a few bytes changed: what a crash, a hang or a sanitizer says is the test.
      for (size_t i = 1; i < 8; ++i) {
        std::string cut = good.substr(0, good.size() * i / 8), spoilt = good;
        if (!spoilt.empty()) spoilt[spoilt.size() * i / 8] ^= static_cast<char>(1 << i);
        for (const std::string& bytes : {cut, spoilt}) {
          try {
            target(bytes);
          } catch (const Error&) {
          }
        }
      }
    }
    EXPECT_GE(accepted, 1) << name << ": no good input, so that nothing behind the first check is reached";
  }
}

TEST(FuzzCorpus, EveryFolderHasATarget) {
  for (const auto& entry : fs::directory_iterator(fs::path(KVCC_SOURCE_DIR) / "tests/corpus")) {
    EXPECT_TRUE(targets().contains(entry.path().filename().string())) << entry.path();
  }
}

}  // namespace
}  // namespace kvcc::fuzz
