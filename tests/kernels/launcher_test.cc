// The launcher against a driver of the tests' own (fake/libcuda.cc), and without any.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "formats/core/error.h"
#include "formats/core/process.h"
#include "kernels/host/launcher.h"

namespace kvcc::host {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

template <class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

/// A folder of this process's own, with the fake driver in two builds.
class Fake {
 public:
  static Fake& get() {
    static Fake fake;
    return fake;
  }
  std::string path(const char* name) const { return folder_ / name; }
  template <class Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }
  ~Fake() { fs::remove_all(folder_); }

 private:
  Fake() {
    char name[] = "/tmp/kvcc-launcher-XXXXXX";
    folder_ = mkdtemp(name);
    build("libcuda.so.1", {});
    build("old.so", {"-DFAKE_WITHOUT_LAUNCH"});
    handle_ = dlopen(path("libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }
  void build(const char* name, std::vector<std::string> more) const {
    std::vector<std::string> command = {"c++",     "-std=c++20", "-O0",
                                        "-shared", "-fPIC",      "-Wall",
                                        "-o",      path(name),   KVCC_SOURCE_DIR "/tests/kernels/fake/libcuda.cc"};
    command.insert(command.end(), more.begin(), more.end());
    const ProcessResult result = run_process(command);
    if (result.status != 0) throw std::runtime_error(result.output);
  }
  fs::path folder_;
  void* handle_ = nullptr;
};

class Launcher : public testing::Test {
 protected:
  Launcher() {
    const char* set = std::getenv("KVCC_CUDA_DRIVER");
    if (set != nullptr) before_ = set;
    use(fake_.path("libcuda.so.1"));
    fake_.function<void()>("fake_reset")();
  }
  ~Launcher() override {
    EXPECT_EQ(fake_.function<int()>("fake_held")(), 0) << "contexts or modules were not given back";
    before_ ? setenv("KVCC_CUDA_DRIVER", before_->c_str(), 1) : unsetenv("KVCC_CUDA_DRIVER");
  }
  static void use(const std::string& driver) { setenv("KVCC_CUDA_DRIVER", driver.c_str(), 1); }
  void fail(const char* function, int result) const {
    fake_.function<void(const char*, int)>("fake_fail")(function, result);
  }
  std::string log() const { return fake_.function<const char*()>("fake_log")(); }
  std::string params() const {
    size_t bytes = 0;
    const char* data = fake_.function<const char*(size_t*)>("fake_params")(&bytes);
    return {data, bytes};
  }
  std::string file(const char* name, const std::string& text) const {
    std::ofstream(fake_.path(name)) << text;
    return fake_.path(name);
  }

  Fake& fake_ = Fake::get();
  std::optional<std::string> before_;
};

constexpr KvccGrid kGrid{3, 4, 5};

TEST_F(Launcher, LaunchesOneKernel) {
  EXPECT_TRUE(launcher_available());
  const Module module(file("kernel.cubin", "an image"));
  EXPECT_EQ(module.device().name, "Fake A");
  EXPECT_EQ(module.device().multiprocessors, 84);
  KvccDequantiseParams p{};
  p.count = 77;
  p.cache.page_bytes = 6144;
  module.launch("kvcc_kernel", kGrid, p, reinterpret_cast<void*>(0x50), 1000);
  const std::string seen = params();
  ASSERT_EQ(seen.size(), sizeof p);
  EXPECT_EQ(std::memcmp(seen.data(), &p, sizeof p), 0);
  EXPECT_THAT(log(), HasSubstr("grid 3 4 5 threads 128 shared 1000 stream 0x50 device 0\n"));
}

TEST_F(Launcher, UsesTheDeviceItIsTold) {
  const Module module(file("kernel.cubin", "an image"), 1);
  EXPECT_EQ(module.device().name, "Fake B");
  EXPECT_EQ(module.device().major, 9);
  EXPECT_EQ(module.device().shared_bytes, 232448);
  module.launch("kvcc_kernel", kGrid, nullptr, 0);
  EXPECT_THAT(log(), HasSubstr("device 1\n"));
  EXPECT_EQ(device_facts(1).multiprocessors, 132);
  EXPECT_THAT(refusal([] { device_facts(2); }), HasSubstr("CUDA device 2: not there; wanted 0 to 1"));
  EXPECT_THAT(refusal([] { device_facts(-1); }), HasSubstr("CUDA device -1: not there"));
}

TEST_F(Launcher, AsksForLargeSharedMemoryOnce) {
  const Module module = Module::from_memory("kernel", "an image");
  for (int i = 0; i < 3; ++i) module.launch("kvcc_kernel", kGrid, nullptr, 0, nullptr, 98304);
  const std::string calls = log();
  const size_t first = calls.find("cuFuncSetAttribute");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(calls.find("cuFuncSetAttribute", first + 1), std::string::npos);
  const size_t found = calls.find("cuModuleGetFunction");
  EXPECT_EQ(calls.find("cuModuleGetFunction", found + 1), std::string::npos);
  EXPECT_THAT(calls, HasSubstr("shared 98304"));
}

TEST_F(Launcher, RefusesWhatTheDeviceHasNot) {
  const Module module = Module::from_memory("kernel", "an image");
  EXPECT_THAT(refusal([&] { module.launch("kvcc_other", kGrid, nullptr, 0); }),
              HasSubstr("kernel: no kernel kvcc_other; wanted the symbol that kernels.json names"));
  EXPECT_THAT(
      refusal([&] { module.launch("kvcc_kernel", kGrid, nullptr, 0, nullptr, 101377); }),
      HasSubstr("kernel, kvcc_kernel: 101377 bytes of shared memory; wanted at most 101376, a block's on Fake A"));
  EXPECT_THAT(refusal([&] {
                module.launch("kvcc_kernel", {1, 65536, 1}, nullptr, 0);
              }),
              HasSubstr("a grid of 1 x 65536 x 1 blocks"));
  EXPECT_THAT(refusal([&] { module.launch("kvcc_kernel", {0, 1, 1}, nullptr, 0); }), HasSubstr("a grid of 0 x 1 x 1"));
  module.launch("kvcc_kernel", {1, 65535, 65535}, nullptr, 0, nullptr, 101376);
}

TEST_F(Launcher, SaysWhyAnImageDoesNotLoad) {
  const auto load = [&](const char* text) { return refusal([&] { Module::from_memory("k.cubin", text); }); };
  EXPECT_THAT(load("another device"),
              HasSubstr("k.cubin: CUDA_ERROR_NO_BINARY_FOR_GPU; wanted a cubin or PTX for Fake A (compute capability "
                        "8.6) (kvcc compile with --arch sm_86)"));
  EXPECT_THAT(load("wrong ptx"), HasSubstr("CUDA_ERROR_INVALID_PTX: line 7: unknown opcode frob; wanted"));
  EXPECT_THAT(load("newer ptx"), HasSubstr("wanted PTX that the driver knows, which is of CUDA 13.0 (a newer driver"));
  EXPECT_EQ(load("an image"), "accepted");
  EXPECT_THAT(refusal([&] { Module(fake_.path("absent.cubin")); }), HasSubstr("absent.cubin"));
}

TEST_F(Launcher, PicksTheImageForTheDevice) {
  file("a", "an image");
  file("b", "another device");
  const std::vector<KernelImage> images = {
      {"sm_80", fake_.path("a")}, {"sm_90", fake_.path("b")}, {"compute_90", fake_.path("b")}};
  const Module module("key_scores", images);  // 8.6: the cubin of 8.0
  module.launch("kvcc_kernel", kGrid, nullptr, 0);
  EXPECT_THAT(refusal([&] { Module("key_scores", images, 1); }), HasSubstr("/b: CUDA_ERROR_NO_BINARY_FOR_GPU"));
  EXPECT_THAT(
      refusal([&] { Module("key_scores", std::span(images).subspan(1)); }),
      HasSubstr("key_scores: compiled for compute_90, sm_90; wanted an image for Fake A (compute capability 8.6) "
                "(kvcc compile with --arch sm_86)"));
  EXPECT_THAT(refusal([&] { Module("key_scores", std::span<const KernelImage>()); }),
              HasSubstr("key_scores: no compiled image"));
}

TEST_F(Launcher, ReportsEveryStepThatFails) {
  const std::string path = file("kernel.cubin", "an image");
  for (const char* step : {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
                           "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuModuleLoadDataEx",
                           "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel"}) {
    fake_.function<void()>("fake_reset")();
    fail(step, 2);
    const std::string message = refusal([&] {
      const Module module(path);
      module.launch("kvcc_kernel", kGrid, nullptr, 0, nullptr, 64);
    });
    EXPECT_THAT(message, HasSubstr("CUDA_ERROR_OUT_OF_MEMORY (words)")) << step;
    std::string call = step;
    if (call.ends_with("_v2")) call.resize(call.size() - 3);
    if (call == "cuModuleLoadDataEx") call = "kernel.cubin: CUDA_ERROR";  // the file says enough
    EXPECT_THAT(message, HasSubstr(call)) << step;
    EXPECT_EQ(fake_.function<int()>("fake_held")(), 0) << step;
    fail("cuInit", 999);
    EXPECT_THAT(refusal([] { device_facts(); }), HasSubstr("cuInit: CUDA error 999"));
  }
}

TEST_F(Launcher, SaysThatThereIsNoDevice) {
  fail("cuInit", 100);
  EXPECT_FALSE(launcher_available());
  EXPECT_THAT(refusal([] { Module("x.cubin"); }),
              HasSubstr("no CUDA device; wanted a device that this process may use"));
  fake_.function<void()>("fake_reset")();
  fake_.function<void(int)>("fake_devices")(0);
  EXPECT_FALSE(launcher_available());
  EXPECT_THAT(refusal([] { device_facts(); }), HasSubstr("no CUDA device"));
}

TEST_F(Launcher, SaysThatThereIsNoDriver) {
  use("/nowhere/libcuda.so.1");
  EXPECT_FALSE(launcher_available());
  const std::string message = refusal([] { Module("x.cubin"); });
  EXPECT_THAT(message, HasSubstr("CUDA driver /nowhere/libcuda.so.1: not loaded ("));
  EXPECT_THAT(message, HasSubstr("wanted an NVIDIA driver on this machine (KVCC_CUDA_DRIVER names it"));
  EXPECT_THAT(refusal([] { device_facts(); }), HasSubstr("not loaded"));
  use(fake_.path("old.so"));
  EXPECT_THAT(refusal([] { device_facts(); }), HasSubstr("no function cuLaunchKernel; wanted a driver of CUDA 11.0"));
}

TEST_F(Launcher, LooksForTheSystemsDriver) {
  unsetenv("KVCC_CUDA_DRIVER");
  if (launcher_available()) {
    EXPECT_GT(device_facts().multiprocessors, 0);
  } else {
    EXPECT_THAT(refusal([] { device_facts(); }), HasSubstr("CUDA driver libcuda.so.1: "));
  }
}

/// A toolkit's folder that has `file`, or "".
std::string toolkit_file(const std::string& file) {
  std::vector<fs::path> roots = {"/usr/local/cuda"};
  const fs::path venv = KVCC_SOURCE_DIR "/.venv/lib";
  std::error_code ignored;
  for (const auto& python : fs::directory_iterator(venv, ignored)) {
    roots.push_back(python.path() / "site-packages/nvidia/cu13");
  }
  for (const fs::path& root : roots) {
    if (fs::exists(root / file)) return root / file;
  }
  return "";
}

TEST(Driver, DeclarationsAreThoseOfCudaH) {
  const std::string header = toolkit_file("include/cuda.h");
  if (header.empty()) GTEST_SKIP() << "no CUDA toolkit with cuda.h";
  const ProcessResult result =
      run_process({"c++", "-std=c++20", "-fsyntax-only", "-I" KVCC_SOURCE_DIR,
                   "-I" + fs::path(header).parent_path().string(), KVCC_SOURCE_DIR "/tests/kernels/fake/cuda_h.cc"});
  EXPECT_EQ(result.status, 0) << result.output;
}

TEST(PickImage, PrefersTheClosestThatRuns) {
  const auto pick = [](int capability, std::vector<std::string> archs) -> std::string {
    std::vector<KernelImage> images;
    for (const std::string& arch : archs) images.push_back({arch, arch});
    const DeviceFacts device{"Device", capability / 10, capability % 10, 1, 1, 13000};
    try {
      return pick_image("kernel", images, device).path;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::usage ? error.what() : "none";
    }
  };
  EXPECT_EQ(pick(86, {"sm_80", "sm_86", "sm_89", "compute_80"}), "sm_86");
  EXPECT_EQ(pick(86, {"sm_80", "sm_89", "compute_86"}), "sm_80");
  EXPECT_EQ(pick(89, {"sm_80", "sm_86", "sm_90"}), "sm_86");
  EXPECT_EQ(pick(90, {"sm_80", "sm_89", "compute_80", "compute_89"}), "compute_89");
  EXPECT_EQ(pick(80, {"sm_86", "sm_90", "compute_86"}), "none");
  EXPECT_EQ(pick(103, {"sm_100", "compute_90"}), "sm_100");
  EXPECT_EQ(pick(120, {"sm_100", "compute_100"}), "compute_100");
  EXPECT_EQ(pick(121, {"sm_120"}), "sm_120");
  EXPECT_EQ(pick(90, {"sm_90", "sm_90a"}), "sm_90a");
  EXPECT_EQ(pick(103, {"sm_100a", "sm_100f"}), "sm_100f");
  EXPECT_EQ(pick(103, {"sm_100a", "compute_100a"}), "none");
  EXPECT_EQ(pick(87, {"sm_80", "sm_86", "compute_80"}), "compute_80");
  EXPECT_EQ(pick(89, {"sm_87"}), "none");
  for (const char* bad : {"sm_", "sm90", "gfx90", "sm_90x", "sm_9", ""}) {
    EXPECT_THAT(pick(90, {bad}), HasSubstr("wanted sm_90, compute_90 or the like")) << bad;
  }
}

}  // namespace
}  // namespace kvcc::host
