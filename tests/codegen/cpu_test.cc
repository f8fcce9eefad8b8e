// Units of the CPU: what is planned, what is emitted, and the compiler that builds them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "codegen/build/cxx.h"
#include "tests/codegen/golden.h"
#include "tests/codegen/made.h"

namespace kvcc::codegen {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

Targets cpu_targets(std::vector<std::string> archs = {}) {
  Targets targets;
  targets.archs = std::move(archs);
  targets.cpu = true;
  return targets;
}

std::string refusal(const Artifact& artifact, const Targets& targets) {
  try {
    plan(artifact, targets);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "planned";
}

TEST(CpuPlan, IsThatOfTheGpuInAnotherDtype) {
  const Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  const Plan both = plan(artifact, cpu_targets({"sm_90"})), alone = plan(artifact, cpu_targets());
  ASSERT_EQ(both.kernels.size(), 16u);
  ASSERT_EQ(alone.kernels.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    const KernelSpec &gpu = both.kernels[i], &cpu = both.kernels[8 + i];
    EXPECT_EQ(gpu.machine, Machine::gpu);
    EXPECT_EQ(cpu.machine, Machine::cpu);
    EXPECT_EQ(cpu.name, alone.kernels[i].name);
    Configuration c = gpu.configuration;
    c.dtype = cpu.configuration.dtype;
    EXPECT_EQ(c, cpu.configuration);
    EXPECT_EQ(source_of(cpu), cpu.name + ".cc");
    const std::vector<Entry> a = entries_of(gpu), b = entries_of(cpu);
    ASSERT_EQ(a.size(), b.size());
    for (size_t k = 0; k < a.size(); ++k) {
      EXPECT_EQ(a[k].grid_rule, b[k].grid_rule);
      EXPECT_EQ(a[k].params, b[k].params);
    }
  }
  EXPECT_EQ(alone.kernels[2].name, "attention_nuq3_channel_d64_csr_half64_v_nuq3_token_d64_tail_g8_f32__mma1");
  Targets halves = cpu_targets({"sm_90"});
  halves.cpu_dtype = Dtype::f16;
  const Plan same = plan(artifact, halves);
  EXPECT_EQ(same.kernels[2].name, same.kernels[10].name);
}

TEST(CpuPlan, NeedsLayoutMma) {
  const Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  Targets targets = cpu_targets({"sm_90"});
  targets.layout = Layout::linear;
  EXPECT_THAT(refusal(artifact, targets), AllOf(HasSubstr("linear-1 for the CPU"), HasSubstr("mma-1")));
  const Artifact five = made::kernel_artifact("kvcc-nuq5-1%-sink1", 2, 2, 3, 64, 64);
  EXPECT_THAT(refusal(five, cpu_targets()),
              AllOf(HasSubstr("layout mma-1"), HasSubstr("has no 5 bits"), HasSubstr("without cpu in --arch")));
  EXPECT_EQ(refusal(artifact, cpu_targets({"sm_90"})), "planned");
  EXPECT_THAT(refusal(artifact, cpu_targets({"sm_75"})), HasSubstr("sm_75"));
}

TEST(CpuPlan, TakesNumbersThatFp16CannotHold) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.key.zero[17] = 1e5f;
  EXPECT_EQ(refusal(artifact, cpu_targets()), "planned");
  EXPECT_THAT(refusal(artifact, cpu_targets({"sm_90"})), HasSubstr("channel 17 reaches"));
}

TEST(CpuPlan, OfMixedWidthsHasAUnitForEach) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  artifact.key.bits = {3, 2, 2, 3};
  const Plan p = plan(artifact, cpu_targets());
  EXPECT_EQ(std::count_if(p.kernels.begin(), p.kernels.end(),
                          [](const KernelSpec& spec) { return spec.configuration.family == Family::attention; }),
            2);
}

TEST(Golden, CpuUnits) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64);
  const Plan p = plan(artifact, cpu_targets({"sm_90"}));
  for (const KernelSpec& spec : p.kernels) {
    const Family family = spec.configuration.family;
    if (spec.machine == Machine::gpu || (family != Family::attention && family != Family::pack_value &&
                                         family != Family::dequantise_key && family != Family::copy_pages)) {
      continue;
    }
    expect_golden("cpu_uniform/" + source_of(spec), emit_unit(artifact, spec, templates(), "0.0.0"));
  }
  expect_golden("cpu_uniform/kvcc_tiny_3_cpu.cc", emit_library(artifact, p, templates(), "0.0.0"));
  expect_golden("cpu_uniform/kvcc_tiny_3.h", emit_header(artifact, p, templates(), "0.0.0"));

  artifact.key.bits = {3, 2, 2, 3};
  const Plan mixed = plan(artifact, cpu_targets());
  for (const KernelSpec& spec : mixed.kernels) {
    if (spec.configuration.family != Family::key_scores || spec.configuration.bits != 2) continue;
    expect_golden("cpu_mixed/" + source_of(spec), emit_unit(artifact, spec, templates(), "0.0.0"));
  }
  expect_golden("cpu_mixed/kvcc_tiny_3_cpu.cc", emit_library(artifact, mixed, templates(), "0.0.0"));
}

TEST(CpuUnit, NamesFromElsewhereStayInTheirLiteral) {
  Artifact artifact = made::kernel_artifact("kvcc-nuq3-1%-sink1", 1, 1, 1, 64, 64);
  artifact.name = "a\", \"\\";
  const std::string text = emit_library(artifact, plan(artifact, cpu_targets()), templates(), "0.0.0");
  EXPECT_THAT(text, HasSubstr("\"a\\\", \\\"?\""));
}

TEST(Cxx, PlacesAreThoseOfTheEnvironment) {
  const char* kept = std::getenv("CXX");
  const std::string before = kept == nullptr ? "" : kept;
  setenv("CXX", "/opt/my/c++ -stdlib=libc++", 1);
  EXPECT_THAT(cxx_places(), ElementsAre(ElementsAre("/opt/my/c++", "-stdlib=libc++")));
  setenv("CXX", "nowhere-c++", 1);
  for (const auto& place : cxx_places()) EXPECT_THAT(place[0], HasSubstr("/nowhere-c++"));
  try {
    find_cxx();
    ADD_FAILURE();
  } catch (const NoCxx& error) {
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_THAT(error.what(), HasSubstr("nowhere-c++, which CXX names, is no program"));
    EXPECT_THAT(error.hint(), AllOf(HasSubstr("apt-get install g++ libhwy-dev"), HasSubstr("--emit-only")));
  }
  setenv("CXX", before.c_str(), 1);
  EXPECT_THROW(find_cxx({}), NoCxx);
}

/// A program of one line of shell, as a compiler.
Cxx shell_compiler(const made::TemporaryFolder& folder, const std::string& line) {
  write_text_file(folder / "c++", "#!/bin/sh\nfor out; do [ \"$before\" = -o ] && break; before=$out; done\n" + line);
  std::filesystem::permissions(folder / "c++", std::filesystem::perms::owner_all);
  return {{folder / "c++"}, "c++ 1", "1.0.3"};
}

TEST(Cxx, IsAskedForItsVersionAndForHighway) {
  const made::TemporaryFolder folder;
  const std::string version = "case \"$*\" in *--version*) echo 'c++ 12.2'; echo more; exit;; esac\n";
  const auto found = [&](const std::string& line) {
    return find_cxx({shell_compiler(folder, version + line).command});
  };
  const Cxx cxx = found("printf '#define HWY_MAJOR 1\\n#define HWY_MINOR 2\\n#define HWY_PATCH 0\\n'\n");
  EXPECT_EQ(cxx.version, "c++ 12.2");
  EXPECT_EQ(cxx.highway, "1.2.0");
  const auto complaint = [&](const std::string& line) -> std::string {
    try {
      found(line);
    } catch (const NoCxx& error) {
      return error.what();
    }
    return "found";
  };
  EXPECT_THAT(complaint("echo 'fatal error: hwy/highway.h: No such file'; exit 1\n"),
              AllOf(HasSubstr("does not find hwy/highway.h"), HasSubstr("apt-get install g++ libhwy-dev")));
  EXPECT_THAT(complaint("echo 'unrecognized option -std=c++20'; exit 1\n"),
              AllOf(HasSubstr("unrecognized option -std=c++20"), HasSubstr("C++20")));
  EXPECT_THAT(complaint("echo '#define HWY_MAJOR 0'\n"), HasSubstr("no HWY_MINOR"));
}

TEST(Cxx, ObjectsAreKeptAndDamagedOnesMadeAnew) {
  const made::TemporaryFolder folder;
  const Cxx cxx =
      shell_compiler(folder, "[ -e h.h ] || exit 1; echo \"$@\" > $out; echo run >> '" + (folder / "runs") + "'\n");
  const auto compile = [&](const std::string& unit) {
    return compile_object(cxx, "k", unit, {{"h.h", "x"}}, folder / "cache");
  };
  const Built first = compile("unit");
  EXPECT_FALSE(first.cached);
  EXPECT_EQ(first.binary,
            "-std=c++20 -O2 -fPIC -ffp-contract=off -fvisibility=hidden -fvisibility-inlines-hidden -c -I. "
            "-o out.o k.cc\n");
  EXPECT_TRUE(compile("unit").cached);
  EXPECT_FALSE(compile("another").cached);
  for (const auto& one : std::filesystem::recursive_directory_iterator(folder / "cache")) {
    if (one.is_regular_file()) std::filesystem::resize_file(one.path(), 90);
  }
  const Built again = compile("unit");
  EXPECT_FALSE(again.cached);
  EXPECT_EQ(again.binary, first.binary);
  EXPECT_EQ(read_text_file(folder / "runs"), "run\nrun\nrun\n");
}

TEST(Cxx, OtherCompilersAndWordsAreOtherObjects) {
  const made::TemporaryFolder folder;
  Cxx cxx = shell_compiler(folder, "echo \"$@\" > $out\n");
  const auto cached = [&](const Cxx& one) { return compile_object(one, "k", "unit", {}, folder / "cache").cached; };
  EXPECT_FALSE(cached(cxx));
  EXPECT_TRUE(cached(cxx));
  cxx.version = "c++ 2";
  EXPECT_FALSE(cached(cxx));
  cxx.highway = "1.1.0";
  EXPECT_FALSE(cached(cxx));
  cxx.command.push_back("-m32");
  EXPECT_FALSE(cached(cxx));
}

TEST(Cxx, AMissingLibraryIsNamed) {
  const made::TemporaryFolder folder;
  const Cxx cxx = shell_compiler(folder, "cat a.o b.o > $out; echo '/usr/bin/ld: error: cannot find -lhwy'; exit 1\n");
  try {
    link_library(cxx, "k.so", {{"a.o", "a"}, {"b.o", "b"}}, folder / "cache");
    ADD_FAILURE();
  } catch (const NoCxx& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cannot find -lhwy"), HasSubstr("apt-get install libhwy-dev")));
  }
  EXPECT_THROW(link_library(shell_compiler(folder, "echo 'error: other'; exit 1\n"), "k.so", {}, folder / "cache"),
               Error);
}

TEST(Cxx, InstructionSetsAreReadFromTheLibrary) {
  const std::string mark = "kvcc instruction set N_";
  const std::string bytes = "..." + mark + "SSE4" + std::string(1, '\0') + mark + "AVX3_DL" + std::string(3, '\0') +
                            mark + "SSE4" + std::string(1, '\0');
  EXPECT_THAT(instruction_sets(bytes, "k.so"), ElementsAre("AVX3_DL", "SSE4"));
  EXPECT_THROW(instruction_sets("nothing", "k.so"), Error);
}

}  // namespace
}  // namespace kvcc::codegen
