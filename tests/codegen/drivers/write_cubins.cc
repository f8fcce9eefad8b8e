// write_cubins CACHE FOLDER ARCH,ARCH… CONFIGURATION…: the made-up unit of each configuration (as made_units.h reads
// them) as FOLDER/NAME.ptx, and FOLDER/NAME.ARCH.cubin from it, as kvcc compile makes them. Prints a JSON line for
// each: {name, registers, shared_bytes: of a shipped row, else 0; symbols: of its entries; dynamic: bytes of shared
// memory by symbol; lowered: architectures for which it was given fewer blocks, as it would have spilled}. Fails with
// the compiler's words where one does not compile.
#include <atomic>
#include <cstdio>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "codegen/build/compile.h"
#include "codegen/build/nvcc.h"
#include "formats/core/file.h"
#include "tests/codegen/made_units.h"

namespace {

using namespace kvcc;
using namespace kvcc::codegen;

nlohmann::json compile(const Nvcc& nvcc, const Configuration& configuration, const Templates& templates,
                       const std::vector<std::string>& archs, const std::string& cache, const std::string& folder) {
  const KernelSpec spec = made::kernel_spec(configuration);
  const std::string unit = emit_unit({}, spec, templates, "proof");
  const Compiled ptx = compile_ptx(nvcc, spec.name, unit, header_closure({unit}), ptx_arch(archs), cache);
  write_text_file(folder + "/" + spec.name + ".ptx", ptx.binary);
  std::vector<std::string> lowered;
  for (const std::string& arch : archs) {
    const Compiled cubin = assemble(nvcc, spec.name, ptx.binary, arch, cache);
    check_spills(spec.name, arch, cubin, is_shipped(configuration));
    if (cubin.lowered) lowered.push_back(arch);
    write_text_file(folder + "/" + spec.name + "." + arch + ".cubin", cubin.binary);
  }
  nlohmann::json out = {{"name", spec.name},
                        {"registers", 0},
                        {"shared_bytes", 0},
                        {"dynamic", ptx.dynamic_shared},
                        {"lowered", lowered}};
  for (const Entry& entry : entries_of(spec)) out["symbols"].push_back(entry.symbol);
  for (const Shipped& row : shipped()) {
    if (row.configuration == configuration)
      out.update({{"registers", row.registers}, {"shared_bytes", row.shared_bytes}});
  }
  return out;
}

int run(int argc, char** argv) {
  const std::string cache = argv[1], folder = argv[2];
  const std::vector<std::string> archs = parse_archs(argv[3]).gpu;
  const Nvcc nvcc = find_nvcc();
  check_archs(nvcc, archs);
  const Templates templates = read_templates();
  std::vector<Configuration> all;
  for (int i = 4; i < argc; ++i) {
    for (const Configuration& c : made::configurations(argv[i])) all.push_back(c);
  }
  std::atomic<size_t> next{0};
  std::atomic<int> failed{0};
  std::mutex output;
  const auto worker = [&] {
    for (size_t i = next++; i < all.size(); i = next++) {
      try {
        const std::string line = compile(nvcc, all[i], templates, archs, cache, folder).dump();
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
  if (argc < 5) {
    std::fputs("write_cubins CACHE FOLDER ARCH,ARCH… CONFIGURATION…\n", stderr);
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_cubins: %s\n", error.what());
    return 1;
  }
}
