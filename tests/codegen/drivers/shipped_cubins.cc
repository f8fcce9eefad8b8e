// shipped_cubins CACHE FOLDER ARCH,ARCH… [PART…]: the shipped rows of kernels/list whose names contain every PART, as
// units of made-up levels: FOLDER/NAME.ptx once, and FOLDER/NAME.ARCH.cubin from it. Prints a JSON line for each row:
// {name, registers, shared_bytes: its bars; symbols: of its entries; dynamic: bytes by symbol; cubins: {ARCH: {SYMBOL:
// {registers, spill, stack, shared}}}}. Fails with the compiler's words where one does not compile or spills.
#include <atomic>
#include <cstdio>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "codegen/build/compile.h"
#include "codegen/build/nvcc.h"
#include "formats/core/file.h"

namespace {

using namespace kvcc;
using namespace kvcc::codegen;

constexpr int kLayers = 2, kHeads = 2;

TensorSpec made_up(const TensorConfiguration& c) {
  TensorSpec spec;
  spec.tail = c.sparse == Sparse::tail ? 1 : 0;
  const int codes = 1 << c.bits;
  for (int i = 0; i < kLayers * kHeads * codes; ++i) {
    spec.levels.push_back(-1.0f + 2.0f * static_cast<float>(i % codes) / static_cast<float>(codes));
  }
  return spec;
}

KernelSpec made_up(const Configuration& c) {
  KernelSpec spec;
  spec.configuration = c;
  spec.name = name(c);
  spec.symbol = "kvcc_" + spec.name;
  if (c.family == Family::copy_pages) return spec;
  static_cast<TensorSpec&>(spec) = made_up(static_cast<const TensorConfiguration&>(c));
  spec.layers = kLayers;
  spec.heads = kHeads;
  if (c.family == Family::attention) spec.value = made_up(c.value);
  return spec;
}

nlohmann::json compile(const Nvcc& nvcc, const Shipped& row, const Templates& templates,
                       const std::vector<std::string>& archs, const std::string& cache, const std::string& folder) {
  const KernelSpec spec = made_up(row.configuration);
  const std::string unit = emit_unit({}, spec, templates, "bars");
  const Compiled ptx = compile_ptx(nvcc, spec.name, unit, header_closure({unit}), ptx_arch(archs), cache);
  write_text_file(folder + "/" + spec.name + ".ptx", ptx.binary);
  nlohmann::json out = {{"name", spec.name},
                        {"registers", row.registers},
                        {"shared_bytes", row.shared_bytes},
                        {"dynamic", ptx.dynamic_shared},
                        {"cubins", nlohmann::json::object()}};
  for (const Entry& entry : entries_of(spec)) out["symbols"].push_back(entry.symbol);
  for (const std::string& arch : archs) {
    const Compiled cubin = assemble(nvcc, spec.name, ptx.binary, arch, cache);
    write_text_file(folder + "/" + spec.name + "." + arch + ".cubin", cubin.binary);
    for (const auto& [symbol, usage] : cubin.usage) {
      out["cubins"][arch][symbol] = {{"registers", usage.registers},
                                     {"spill", usage.spill_bytes},
                                     {"stack", usage.stack_bytes},
                                     {"shared", usage.shared_bytes}};
    }
  }
  return out;
}

bool contains_all(const std::string& text, char** begin, char** end) {
  for (; begin != end; ++begin) {
    if (text.find(*begin) == std::string::npos) return false;
  }
  return true;
}

int run(int argc, char** argv) {
  const std::string cache = argv[1], folder = argv[2];
  const std::vector<std::string> archs = parse_archs(argv[3]);
  const Nvcc nvcc = find_nvcc();
  check_archs(nvcc, archs);
  const Templates templates = read_templates();
  std::vector<Shipped> rows;
  for (const Shipped& row : shipped()) {
    if (contains_all(name(row.configuration), argv + 4, argv + argc)) rows.push_back(row);
  }
  std::atomic<size_t> next{0};
  std::atomic<int> failed{0};
  std::mutex output;
  const auto worker = [&] {
    for (size_t i = next++; i < rows.size(); i = next++) {
      try {
        const std::string line = compile(nvcc, rows[i], templates, archs, cache, folder).dump();
        const std::lock_guard lock(output);
        std::printf("%s\n", line.c_str());
      } catch (const std::exception& error) {
        const std::lock_guard lock(output);
        std::fprintf(stderr, "%s\n", error.what());
        ++failed;
      }
    }
  };
  std::thread second(worker);
  worker();
  second.join();
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("shipped_cubins CACHE FOLDER ARCH,ARCH… [PART…]\n", stderr);
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shipped_cubins: %s\n", error.what());
    return 1;
  }
}
