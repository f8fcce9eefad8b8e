// Which file a data set's name means.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "datasets/datasets.h"
#include "formats/core/error.h"
#include "formats/core/hash.h"

namespace kvcc {
namespace {

namespace fs = std::filesystem;

class Resolve : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("kvcc-resolve-" + std::to_string(getpid()));
    fs::create_directories(root_);
    std::string splits;
    for (const std::string name : {"train", "calibration", "evaluation", "test"}) {
      const std::string text = "text of " + name;
      splits += std::string(splits.empty() ? "" : ",") + R"({"name":")" + name + R"(","file":")" + name +
                R"(.txt","bytes":)" + std::to_string(text.size()) + R"(,"sha256":")" + sha256_hex(text) +
                R"(","flavour":")" + (name == "calibration" ? "tokens" : "raw") + "\"" +
                (name == "evaluation" ? R"(,"otherwise":"test")" : "") + "}";
    }
    put(root_ / "manifest.json",
        R"({"schema_version":1,"datasets":[{"name":"d","folder":"d","licence":"l","title":"t",)"
        R"("default":["train","calibration"],"splits":[)" +
            splits + "]}]}");
    setenv("KVCC_MANIFEST", (root_ / "manifest.json").c_str(), 1);
    setenv("KVCC_DATA", (root_ / "data").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("KVCC_MANIFEST");
    unsetenv("KVCC_DATA");
    fs::remove_all(root_);
  }
  static void put(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  void put_split(const std::string& where, const std::string& name) {
    put(root_ / where / "d" / (name + ".txt"), "text of " + name);
  }
  ResolvedDataset resolve(const std::string& name) { return resolve_dataset(name, (root_ / "cache").string()); }
  fs::path root_;
};

TEST_F(Resolve, BareNameMeansTrainWhereItIsElseCalibration) {
  put_split("data", "calibration");
  EXPECT_EQ(resolve("d").name, "d:calibration");
  EXPECT_EQ(resolve("d").flavour, "tokens");
  put_split("cache", "train");
  EXPECT_EQ(resolve("d").name, "d:train");
  EXPECT_EQ(resolve("d").path, (root_ / "cache/d/train.txt").string());
  EXPECT_EQ(resolve("d").sha256, sha256_hex("text of train"));
}

TEST_F(Resolve, EvaluationFallsBackToTest) {
  put_split("cache", "test");
  EXPECT_EQ(resolve("d:evaluation").name, "d:test");
  put_split("cache", "evaluation");
  EXPECT_EQ(resolve("d:evaluation").path, (root_ / "cache/d/evaluation.txt").string());
  put_split("data", "evaluation");
  EXPECT_EQ(resolve("d:evaluation").path, (root_ / "data/d/evaluation.txt").string());
}

TEST_F(Resolve, AnotherFileUnderTheNameIsNotTaken) {
  put(root_ / "data/d/test.txt", "text of TEST");
  try {
    resolve("d:test");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_THAT(error.what(), testing::HasSubstr((root_ / "data/d/test.txt").string()));
  }
  put_split("cache", "test");
  EXPECT_EQ(resolve("d:test").path, (root_ / "cache/d/test.txt").string());
}

TEST_F(Resolve, AbsentAndUnknown) {
  try {
    resolve("d");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("d/train.txt or d/calibration.txt"));
    EXPECT_THAT(error.hint(), testing::HasSubstr("KVCC_DATA"));
  }
  for (const char* name : {"e", "d:", "d:tset", ""}) {
    try {
      resolve(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << name;
    }
  }
}

}  // namespace
}  // namespace kvcc
