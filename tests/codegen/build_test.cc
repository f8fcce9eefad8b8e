#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

#include "codegen/build/arguments.h"
#include "codegen/build/nvcc.h"
#include "codegen/build/ptxas_report.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "tests/formats/store/made.h"

namespace kvcc::codegen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Ptxas, ReportIsParsed) {
  const char* log =
      "ptxas info    : 192 bytes gmem, 8 bytes cmem[4]\n"
      "ptxas info    : Compiling entry function 'a' for 'sm_80'\n"
      "ptxas info    : Function properties for a\n"
      "    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
      "ptxas info    : Used 56 registers, used 1 barriers, 24 bytes cumulative stack size, 6684 bytes smem, 512 bytes "
      "cmem[0]\n"
      "ptxas info    : Compile time = 121.789 ms\n"
      "ptxas info    : Compiling entry function 'b_merge' for 'sm_80'\n"
      "ptxas info    : Function properties for b_merge\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 32 registers, used 0 barriers, 520 bytes cmem[0]\n";
  const auto usage = parse_ptxas(log);
  ASSERT_EQ(usage.size(), 2u);
  EXPECT_EQ(usage.at("a").registers, 56);
  EXPECT_EQ(usage.at("a").spill_bytes, 28);
  EXPECT_EQ(usage.at("a").stack_bytes, 24);
  EXPECT_EQ(usage.at("a").shared_bytes, 6684);
  EXPECT_EQ(usage.at("b_merge").registers, 32);
  EXPECT_EQ(usage.at("b_merge").shared_bytes, 0);
  EXPECT_THROW(parse_ptxas("ptxas info : Compiling entry function 'a' for 'sm_80'\n"), Error);
}

TEST(F63_Archs, ListIsParsedSortedAndChecked) {
  const Archs archs = parse_archs("sm_100,sm_80,cpu,sm_90a,sm_80");
  EXPECT_THAT(archs.gpu, ElementsAre("sm_80", "sm_90a", "sm_100"));
  EXPECT_TRUE(archs.cpu);
  EXPECT_TRUE(parse_archs("cpu").gpu.empty());
  EXPECT_FALSE(parse_archs("sm_80").cpu);
  EXPECT_EQ(arch_number("sm_90a"), 90);
  for (const char* wrong : {"", "80", "sm_", "sm_8x", "compute_80", "sm_80;sm_90", "sm_80 ", "CPU", "cpu,"}) {
    EXPECT_THROW(parse_archs(wrong), Error) << wrong;
  }
  const Nvcc nvcc{"nvcc", "13.0.88", {"compute_75", "compute_80", "compute_103", "compute_90"}};
  EXPECT_NO_THROW(check_archs(nvcc, {"sm_75", "sm_90a", "sm_103"}));
  try {
    check_archs(nvcc, {"sm_70", "sm_80", "sm_99"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), HasSubstr("sm_70, sm_99, which nvcc 13.0.88"));
    EXPECT_THAT(error.what(), HasSubstr("sm_75, sm_80, sm_90, sm_103"));
  }
}

TEST(Nvcc, FirstPlaceThatRunsIsAsked) {
  const made::TemporaryFolder folder;
  const std::string program = folder / "nvcc";
  write_text_file(
      program,
      "#!/bin/sh\ncase $1 in --version) echo 'release 13.0, V13.0.88';; *) echo compute_75; echo compute_90;; "
      "esac\n");
  EXPECT_THROW(find_nvcc({folder / "nothing", program}), Error);  // not executable
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const Nvcc nvcc = find_nvcc({folder / "nothing", program, "/bin/false"});
  EXPECT_EQ(nvcc.path, program);
  EXPECT_EQ(nvcc.version, "13.0.88");
  EXPECT_THAT(nvcc.virtual_archs, ElementsAre("compute_75", "compute_90"));
}

TEST(Nvcc, TheOneThatTheEnvironmentNamesIsTheOnlyOne) {
  setenv("KVCC_NVCC", "/nowhere/nvcc", 1);
  EXPECT_THAT(nvcc_places(), ElementsAre("/nowhere/nvcc"));
  try {
    find_nvcc();
    ADD_FAILURE();
  } catch (const NoNvcc& error) {
    EXPECT_THAT(error.found(), HasSubstr("KVCC_NVCC"));
  }
  unsetenv("KVCC_NVCC");
  EXPECT_GT(nvcc_places().size(), 1u);
}

TEST(Nvcc, TooOldOnesArePassedOverAndNamed) {
  const made::TemporaryFolder folder;
  const auto make = [&](const std::string& name, const std::string& version) {
    write_text_file(folder / name,
                    "#!/bin/sh\ncase $1 in --version) echo 'release, V" + version + "';; *) echo compute_90;; esac\n");
    std::filesystem::permissions(folder / name, std::filesystem::perms::owner_all);
    return folder / name;
  };
  const std::string old = make("old", "11.8.89"), good = make("good", "12.0.1");
  EXPECT_EQ(find_nvcc({old, good}).path, good);
  try {
    find_nvcc({old});
    FAIL();
  } catch (const NoNvcc& error) {
    EXPECT_THAT(error.what(), HasSubstr("old is of version 11.8.89"));
    EXPECT_THAT(error.what(), HasSubstr("version 12 or newer"));
  }
}

TEST(Nvcc, WithoutOneSaysWhatToInstall) {
  try {
    find_nvcc({"/nowhere/nvcc", "/"});
    FAIL();
  } catch (const NoNvcc& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_THAT(error.hint(), HasSubstr("pip install 'nvidia-cuda-nvcc==13.0.*'"));
    EXPECT_THAT(error.hint(), HasSubstr("--emit-only"));
  }
  EXPECT_THROW(find_nvcc({"/bin/false"}), Error);  // runs, but is no nvcc
}

TEST(CompileUnit, EveryCubinComesFromOnePtx) {
  EXPECT_EQ(ptx_arch({"sm_90", "sm_120a"}), "compute_80");
  EXPECT_EQ(ptx_arch({"sm_75", "sm_90"}), "compute_75");
  EXPECT_EQ(ptx_arch({}), "compute_80");
  // An nvcc that says what it was given.
  const made::TemporaryFolder folder;
  write_text_file(folder / "nvcc",
                  "#!/bin/sh\nfor out; do [ \"$before\" = -o ] && break; before=$out; done\ncase $out in\n"
                  "*.ptx) printf '.global .align 4 .u32 a_shared_bytes = 4096;\\n.global .u32 b_shared_bytes;\\n';;\n"
                  "*) cat k.ptx; echo \"$@\" ;; esac > $out\n");
  std::filesystem::permissions(folder / "nvcc", std::filesystem::perms::owner_all);
  const Nvcc nvcc{folder / "nvcc", "13.0.88", {}};
  const std::string unit = folder / "unit";
  const Compiled cubin = compile_unit(nvcc, "k", unit, {}, "sm_90", folder / "cache");
  EXPECT_EQ(cubin.dynamic_shared, (std::map<std::string, int>{{"a", 4096}, {"b", 0}}));
  EXPECT_THAT(cubin.binary, HasSubstr("a_shared_bytes = 4096"));
  EXPECT_THAT(cubin.binary, HasSubstr("-cubin -arch=sm_90"));
  EXPECT_THAT(cubin.binary, HasSubstr("-Xptxas -v,--warning-as-error"));
  EXPECT_TRUE(compile_ptx(nvcc, "k", unit, {}, "compute_80", folder / "cache").cached);
  EXPECT_FALSE(compile_unit(nvcc, "k", unit, {}, "sm_100", folder / "cache").cached);
  EXPECT_TRUE(compile_unit(nvcc, "k", unit, {}, "sm_90", folder / "cache").cached);
}

TEST(CompileUnit, FolderFollowsFromTheKeyAlone) {
  // Line information and internal names hold the folder's path: another folder would be other bytes.
  const made::TemporaryFolder folder;
  write_text_file(folder / "nvcc",
                  "#!/bin/sh\n[ -e left ] && exit 1\n[ -e slow.cuh ] && sleep 0.4\n"
                  "while [ $# -gt 1 ]; do [ \"$1\" = -o ] && pwd > \"$2\"; shift; done; echo built >> \"$COUNT\"\n");
  std::filesystem::permissions(folder / "nvcc", std::filesystem::perms::owner_all);
  setenv("COUNT", (folder / "count").c_str(), 1);
  const Nvcc nvcc{folder / "nvcc", "13.0.88", {}};
  const std::string unit = folder / "unit";  // text that no other run of the test has
  const auto compile = [&](const std::string& cache, bool slow = false) {
    std::map<std::string, std::string> headers{{"a.cuh", "x"}};
    if (slow) headers["slow.cuh"] = "x";
    return compile_ptx(nvcc, "k", unit, headers, "compute_80", folder / cache).binary;
  };
  const std::string first = compile("c1"), place = first.substr(0, first.size() - 1);
  EXPECT_FALSE(std::filesystem::exists(place));
  setenv("TMPDIR", (folder / "").c_str(), 1);
  EXPECT_EQ(compile("c2"), first);
  unsetenv("TMPDIR");
  make_folder(place + "/left");  // by a killed process
  EXPECT_EQ(compile("c3"), first);
  EXPECT_FALSE(std::filesystem::exists(place));
  // Two at once: the same folder, one after the other; with one cache the second takes what the first has made.
  std::string one, two;
  std::thread other([&] { one = compile("c4", true); });
  two = compile("c5", true);
  other.join();
  EXPECT_EQ(one, two);
  std::filesystem::remove(folder / "count");
  std::thread third([&] { one = compile("c6", true); });
  two = compile("c6", true);
  third.join();
  EXPECT_EQ(one, two);
  EXPECT_EQ(read_text_file(folder / "count"), "built\n");
}

/// A compiler of one line of shell that gets the output's path as $out.
Nvcc shell_compiler(const made::TemporaryFolder& folder, const std::string& line) {
  write_text_file(folder / "nvcc", "#!/bin/sh\nfor out; do [ \"$before\" = -o ] && break; before=$out; done\n" + line);
  std::filesystem::permissions(folder / "nvcc", std::filesystem::perms::owner_all);
  return {folder / "nvcc", "13.0.88", {}};
}

TEST(CompileUnit, DamagedEntriesOfTheCacheAreMadeAnew) {
  const made::TemporaryFolder folder;
  const Nvcc nvcc = shell_compiler(folder, "echo binary > $out; echo log; echo \"'nvcc'\" >&2\n");
  const auto compile = [&] { return compile_ptx(nvcc, "k", folder / "unit", {}, "compute_80", folder / "cache"); };
  EXPECT_FALSE(compile().cached);
  std::vector<std::string> entries;
  for (const auto& one : std::filesystem::recursive_directory_iterator(folder / "cache")) {
    if (one.is_regular_file()) entries.push_back(one.path().string());
  }
  ASSERT_EQ(entries.size(), 1u);
  const std::string whole = read_text_file(entries[0]);
  EXPECT_TRUE(compile().cached);
  for (size_t i = 0; i < whole.size(); i += 12) {
    std::string flipped = whole;
    flipped[i] ^= 4;
    for (const std::string& damaged : {whole.substr(0, i), flipped}) {
      write_text_file(entries[0], damaged);
      const Compiled again = compile();
      EXPECT_FALSE(again.cached) << i;
      EXPECT_EQ(again.binary, "binary\n");
      EXPECT_EQ(read_text_file(entries[0]), whole);
    }
  }
}

TEST(CompileUnit, LineInformationHasNoTimesOfFiles) {
  const made::TemporaryFolder folder;
  const Nvcc nvcc =
      shell_compiler(folder, "printf '\\t.file\\t1 \"%s/k.cu\"\\n.file 2 \"a b\", 7, 8\\n// .file\\n' $PWD > $out\n");
  const std::string ptx = compile_ptx(nvcc, "k", folder / "unit", {}, "compute_80", folder / "cache").binary;
  EXPECT_THAT(ptx, HasSubstr("/k.cu\", 1, 1\n.file 2 \"a b\", 7, 8\n// .file\n"));
  EXPECT_EQ(compile_ptx(nvcc, "k", folder / "unit", {}, "compute_80", folder / "cache").binary, ptx);
}

TEST(CompileUnit, AnUnfitTmpdirDoesNotMatter) {
  const made::TemporaryFolder folder;
  const Nvcc nvcc = shell_compiler(folder, "[ -d \"$TMPDIR\" ] && echo $TMPDIR > $out\n");
  for (const char* unfit : {"", "/nonexistent"}) {
    setenv("TMPDIR", unfit, 1);
    EXPECT_THAT(compile_ptx(nvcc, "k", folder.path() + unfit, {}, "compute_80", folder.path() + "/cache").binary,
                HasSubstr("/tmp/kvcc-"));
    unsetenv("TMPDIR");
  }
}

TEST(CompileUnit, ACompilerThatWritesNothingIsNamed) {
  const made::TemporaryFolder folder;
  const Nvcc nvcc = shell_compiler(folder, "exit 0\n");
  try {
    compile_ptx(nvcc, "k", folder / "unit", {}, "compute_80", folder / "cache");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_THAT(error.what(), HasSubstr("the compiler wrote no output"));
  }
}

TEST(Arguments, AreThoseOfTheLaunchHeader) {
  const std::string text = read_text_file(std::string(KVCC_SOURCE_DIR) + "/formats/layout/launch.h");
  const auto members = members_of(text, "KvccKeyScoresParams");
  const auto find = [&](const std::string& name) {
    for (const KernelArgument& member : members) {
      if (member.name == name) return member;
    }
    ADD_FAILURE() << name;
    return KernelArgument{};
  };
  EXPECT_EQ(find("cache.pages").type, "uint8_t*");
  EXPECT_THAT(find("cache.exact").shape, ElementsAre("S", "sink + residual", "H", "D"));
  EXPECT_EQ(find("cache.residual").type, "int32_t");  // declared beside sink
  EXPECT_TRUE(find("cache.sink").shape.empty());
  EXPECT_EQ(find("query").type, "const void*");
  EXPECT_THAT(find("cosine").shape, ElementsAre("positions", "rotary_dim / 2"));
  EXPECT_EQ(find("multiplier").type, "float");
  EXPECT_EQ(members.front().name, "cache.pages");
  EXPECT_EQ(members.back().name, "max_length");
  for (const char* name : {"KvccPackParams", "KvccValueMixParams", "KvccDequantiseParams"}) {
    EXPECT_GT(members_of(text, name).size(), 20u);
  }
  const std::string both = text + read_text_file(std::string(KVCC_SOURCE_DIR) + "/formats/layout/mma_launch.h");
  std::set<std::string> attention;
  for (const KernelArgument& member : members_of(both, "KvccAttentionParams")) attention.insert(member.name);
  for (const char* name : {"key.pages", "value.pages", "rope.base_cosine", "partial", "window"}) {
    EXPECT_TRUE(attention.contains(name)) << name;
  }
  EXPECT_EQ(members_of(both, "KvccCopyPagesParams").size(), 10u);
  EXPECT_THROW(members_of(text, "KvccNothing"), Error);
}

}  // namespace
}  // namespace kvcc::codegen
