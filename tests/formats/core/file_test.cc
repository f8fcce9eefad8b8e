#include "formats/core/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "formats/core/error.h"
#include "formats/core/hash.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class File : public ::testing::Test {
 protected:
  File() : folder_(fs::temp_directory_path() / ("kvcc файл é " + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~File() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  size_t files() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

 private:
  fs::path folder_;
};

TEST_F(File, F51TextRoundTripUnderANameBeyondAscii) {
  const std::string text = std::string("a\0b\r\n", 5) + "é";
  write_text_file(at("имя 名.txt"), text);
  EXPECT_EQ(read_text_file(at("имя 名.txt")), text);
  EXPECT_EQ(files(), 1u);
  const MappedFile mapped(at("имя 名.txt"));
  EXPECT_EQ(mapped.bytes().size(), text.size());
  EXPECT_EQ(std::memcmp(mapped.bytes().data(), text.data(), text.size()), 0);
}

TEST_F(File, MappedFileRefusesWhatIsNoFile) {
  EXPECT_THROW(MappedFile{at("none")}, Error);
  EXPECT_THROW(MappedFile{at("")}, Error);
  EXPECT_THROW(MappedFile{"/dev/null"}, Error);
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  EXPECT_THROW(MappedFile{at("fifo")}, Error);  // a blocking open would never return
  write_text_file(at("empty"), "");
  EXPECT_THROW(MappedFile{at("empty")}, Error);
  EXPECT_EQ(MappedFile(at("empty"), true).bytes().size(), 0u);
}

TEST_F(File, AtomicFileLeavesNothingWithoutCommit) {
  write_text_file(at("a"), "old");
  {
    const AtomicFile file(at("a"));
    std::FILE* out = std::fopen(file.temporary().c_str(), "w");
    ASSERT_NE(out, nullptr);
    std::fputs("new", out);
    std::fclose(out);
    EXPECT_EQ(files(), 2u);
  }
  EXPECT_EQ(read_text_file(at("a")), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(File, ASecondWriterIsRefusedAndWhatAKilledOneLeftIsTakenOver) {
  std::FILE* left = std::fopen(at("a.partial").c_str(), "w");  // longer than what is written now
  std::fputs("half of something long", left);
  std::fclose(left);
  {
    AtomicFile file(at("a"));
    EXPECT_EQ(file.temporary(), at("a.partial"));
    try {
      write_text_file(at("a"), "other");
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      EXPECT_THAT(error.what(), HasSubstr("another process is writing it"));
    }
    file.write("mine");
    file.commit();
    write_text_file(at("b"), "another name is free");
  }
  EXPECT_EQ(read_text_file(at("a")), "mine");
  EXPECT_EQ(files(), 2u);
}

/// Many threads replace one file; each waits for its turn. Nobody may take the finished file for its own.
TEST_F(File, WritersThatWaitFollowOneAnother) {
  std::vector<std::thread> writers;
  for (char name = 'a'; name < 'i'; ++name) {
    writers.emplace_back([this, name] {
      for (int i = 0; i < 20; ++i) {
        write_text_file(at("x"), std::string(1000 * static_cast<size_t>(name - 'a' + 1), name), false,
                        AtomicFile::Busy::wait);
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    std::error_code error;
    if (!fs::exists(at("x"), error)) continue;
    const std::string text = read_text_file(at("x"));
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(text, std::string(1000 * static_cast<size_t>(text[0] - 'a' + 1), text[0]));
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(files(), 1u);
}

TEST_F(File, DevicesWithoutEndAreRefused) {
  try {
    read_text_file("/dev/zero");
    ADD_FAILURE() << "read to the end";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_NE(std::string(error.what()).find("/dev/zero: more than 256.0 MiB from a pipe or device"),
              std::string::npos);
  }
  EXPECT_EQ(read_text_file("/dev/null"), "");
}

TEST_F(File, WhatIsInTheWayIsNamed) {
  fs::create_directory(at("a.partial"));
  EXPECT_THROW(write_text_file(at("a"), "x"), Error);
  fs::create_symlink(at("elsewhere"), at("b.partial"));  // not followed
  EXPECT_THROW(write_text_file(at("b"), "x"), Error);
  EXPECT_FALSE(fs::exists(at("elsewhere")));
}

TEST_F(File, RoomIsAskedForBeforehand) {
  AtomicFile file(at("a"));
  file.check_room(1 << 20);
  EXPECT_EQ(fs::file_size(file.temporary()), 0u);
  try {
    file.check_room(uint64_t{1} << 50);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    EXPECT_THAT(error.what(), HasSubstr("1024.0 TiB needed"));
  }
}

TEST_F(File, AMapTellsWhatHappenedToItsFile) {
  write_text_file(at("a"), std::string(10000, 'x'));
  const MappedFile map(at("a"));
  map.check_unchanged();
  map.check_same_file();
  write_text_file(at("a"), std::string(10000, 'y'));  // another file of the name
  map.check_unchanged();
  EXPECT_THROW(map.check_same_file(), Error);
  EXPECT_EQ(map.bytes()[9999], std::byte{'x'});
  const MappedFile second(at("a"));
  std::FILE* file = std::fopen(at("a").c_str(), "r+");
  std::fputs("z", file);
  std::fclose(file);
  fs::last_write_time(at("a"), fs::file_time_type::clock::now() + std::chrono::seconds(5));  // clocks may be coarse
  try {
    second.check_unchanged();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("changed while it was read"));
  }
}

TEST_F(File, AMapThatIsTruncatedEndsTheProgramByName) {
  write_text_file(at("\"q\" é"), std::string(100000, 'x'));
  const auto read_after_truncation = [&](bool json) {
    catch_truncated_maps("kvcc test", json);
    if (json) ::dup2(STDERR_FILENO, STDOUT_FILENO);
    const MappedFile other(at("\"q\" é"));
    const MappedFile map(at("\"q\" é"));
    fs::resize_file(map.path(), 4096);
    volatile std::byte sum = map.bytes()[4095];
    sum = map.bytes()[90000];
    std::_Exit(0);
  };
  EXPECT_EXIT(read_after_truncation(false), ::testing::ExitedWithCode(3),
              "kvcc test: error: .*\"q\" é: truncated, or not readable any more, while it was read");
  write_text_file(at("\"q\" é"), std::string(100000, 'x'));
  EXPECT_EXIT(read_after_truncation(true), ::testing::ExitedWithCode(3),
              "\"schema_version\": 1, \"error\": ..code\": 3, \"message\": \".*q.\" é: truncated");
}

TEST_F(File, AtomicFileReplacesNoDevice) {
  ASSERT_EQ(mkfifo(at("fifo").c_str(), 0600), 0);
  try {
    write_text_file(at("fifo"), "x");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_THAT(error.what(), HasSubstr("not a regular file"));
  }
}

TEST_F(File, AtomicFileNamesAMissingFolder) {
  try {
    write_text_file(at("none/a"), "x");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_THAT(error.what(), HasSubstr("does not exist"));
  }
}

TEST_F(File, F43FullDiskIsNamedAndLeavesNoFile) {
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit tight = {1000, before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &tight);
  std::string message;
  ErrorKind kind = ErrorKind::failed;
  try {
    write_text_file(at("a"), std::string(5000, 'x'));
  } catch (const Error& error) {
    message = error.what();
    kind = error.kind();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(kind, ErrorKind::resource);
  EXPECT_THAT(message, HasSubstr("4.9 KiB needed"));
  EXPECT_THAT(message, HasSubstr("free"));
  EXPECT_EQ(files(), 0u);
}

TEST_F(File, WriteIfDifferentKeepsTheTimeStamp) {
  EXPECT_TRUE(write_if_different(at("a"), "one"));
  const auto old = fs::last_write_time(at("a")) - std::chrono::hours(1);
  fs::last_write_time(at("a"), old);
  EXPECT_FALSE(write_if_different(at("a"), "one"));
  EXPECT_EQ(fs::last_write_time(at("a")), old);
  EXPECT_TRUE(write_if_different(at("a"), "two"));
  EXPECT_EQ(read_text_file(at("a")), "two");
}

TEST_F(File, MakeFolderWithParents) {
  make_folder(at("x/y/z"));
  make_folder(at("x/y/z"));
  EXPECT_TRUE(fs::is_directory(at("x/y/z")));
  write_text_file(at("f"), "");
  EXPECT_THROW(make_folder(at("f")), Error);
  EXPECT_THROW(make_folder(at("f/g")), Error);
}

TEST_F(File, ShareFolderFollowsTheEnvironmentOrTheTree) {
  EXPECT_TRUE(fs::is_directory(share_folder() + "/formats")) << "of the build tree";
  EXPECT_TRUE(fs::is_directory(program_folder()));
  setenv("KVCC_SHARE", "/elsewhere", 1);
  EXPECT_EQ(share_folder(), "/elsewhere");
  unsetenv("KVCC_SHARE");
}

TEST_F(File, AnUnwritablePlaceIsAFailureNotABadInput) {
  for (const int code : {EACCES, EIO, EROFS}) EXPECT_EQ(write_error("a", code).kind(), ErrorKind::failed);
  for (const int code : {ENOSPC, EDQUOT, EFBIG}) EXPECT_EQ(write_error("a", code).kind(), ErrorKind::resource);
  try {
    write_text_file("/proc/kvcc", "x");  // refused to root, too
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failed);
    EXPECT_THAT(error.what(), HasSubstr("/proc/kvcc: cannot be written"));
  }
}

TEST(CacheFolder, RelativeXdgIsIgnored) {
  setenv("HOME", "/h", 1);
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(default_cache_folder(), "/x/kvcc");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(default_cache_folder(), "/h/.cache/kvcc");
  unsetenv("XDG_CACHE_HOME");
}

TEST_F(File, Sha256OfKnownTexts) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string million(1'000'000, 'a');
  write_text_file(at("a"), million);
  EXPECT_EQ(sha256_file(at("a")), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(Sha256().update(million.substr(0, 7)).update(million.substr(7)).hex(), sha256_hex(million));
  EXPECT_THROW(sha256_file(at("none")), Error);
}

TEST(Text, NearestNames) {
  const std::vector<std::string> verbs = {"inspect", "fit", "eval"};
  EXPECT_EQ(nearest("inspct", verbs), "inspect");
  EXPECT_EQ(nearest("fti", verbs), "fit") << "a swap is one edit";
  EXPECT_EQ(nearest("evaluate", verbs), "");
  EXPECT_EQ(nearest("xyz", verbs), "");
  EXPECT_EQ(nearest("", verbs), "");
}

TEST(Text, InsideOfAJsonString) {
  EXPECT_EQ(json_text("a \"b\" \\ é 名 😀\n"), "a \\\"b\\\" \\\\ é 名 😀\\u000a");
  EXPECT_EQ(json_text("\xff x\xc3"), "\\ufffd x\\ufffd");
}

TEST(Text, Bytes) {
  EXPECT_EQ(human_bytes(312), "312 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(3ull << 29), "1.5 GiB");
  EXPECT_EQ(parse_bytes("1000"), 1000u);
  EXPECT_EQ(parse_bytes("8GiB"), 8ull << 30);
  EXPECT_EQ(parse_bytes("512 MiB"), 512ull << 20);
  EXPECT_EQ(parse_bytes("1.5kib"), 1536u);
  EXPECT_EQ(parse_bytes("2GB"), 2'000'000'000u);
  for (const char* bad : {"", "GiB", "-1", "8XB", "1e30", "99999999TiB", "nan", "inf"}) {
    EXPECT_THROW(parse_bytes(bad), Error) << bad;
  }
}

TEST(ErrorText, LeavesEmptyPartsOut) {
  EXPECT_STREQ(Error(ErrorKind::failed, "a", "b", "c", "d").what(), "a: b; wanted c (d)");
  EXPECT_STREQ(Error(ErrorKind::failed, "a", "b").what(), "a: b");
  EXPECT_STREQ(Error(ErrorKind::failed, "", "b", "", "d").what(), "b (d)");
  EXPECT_EQ(Error(ErrorKind::resource, "", "").exit_code(), 4);
}

TEST(Interrupt, FirstSignalIsKeptUntilAskedFor) {
  EXPECT_EXIT(
      {
        install_interrupt_handlers();
        check_interrupt();
        std::raise(SIGTERM);
        try {
          check_interrupt();
        } catch (const Interrupted& interrupted) {
          std::_Exit(interrupted.exit_code());
        }
      },
      ::testing::ExitedWithCode(143), "");
  EXPECT_EXIT(
      {
        install_interrupt_handlers();
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      ::testing::ExitedWithCode(130), "");
}

}  // namespace
}  // namespace kvcc
