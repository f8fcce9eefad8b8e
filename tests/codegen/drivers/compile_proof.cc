// compile_proof CACHE ARCH BATCH CONFIGURATION…: compiles a made-up unit of each configuration (as made_units.h reads
// them), BATCH of them in one translation unit, and prints "NAME SYMBOL registers spill shared min_blocks stated" a
// line for each entry: static and dynamic shared memory together; blocks on a multiprocessor, as assembled and as its
// body states (less: it would have spilled). Fails, with the compiler's words, on a warning, a shipped row's spill, or
// symbols that are not the list's.
// compile_proof CACHE ARCH --unit FILE.cu [--shipped]: compiles that unit as kvcc compile would, and prints "SYMBOL
// registers spill min_blocks"; warnings of spills to stderr.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "codegen/build/compile.h"
#include "codegen/build/nvcc.h"
#include "formats/core/file.h"
#include "tests/codegen/made_units.h"

namespace {

using namespace kvcc;
using namespace kvcc::codegen;

struct Batch {
  std::vector<KernelSpec> specs;
  std::string unit;
};

void compile_batch(const Nvcc& nvcc, const Batch& batch, const std::string& arch, const std::string& cache,
                   std::mutex& output) {
  const std::string stem = batch.specs.size() == 1 ? batch.specs[0].name : "batch_" + batch.specs[0].name;
  const Compiled ptx = compile_ptx(nvcc, stem, batch.unit, header_closure({batch.unit}), ptx_arch({arch}), cache);
  const std::map<std::string, int> stated = min_blocks_of(ptx.binary);
  const Compiled compiled = assemble(nvcc, stem, ptx.binary, arch, cache);
  const bool shipped = std::any_of(batch.specs.begin(), batch.specs.end(),
                                   [](const KernelSpec& spec) { return is_shipped(spec.configuration); });
  check_spills(stem, arch, compiled, shipped);
  std::set<std::string> symbols;
  const std::lock_guard lock(output);
  for (const KernelSpec& spec : batch.specs) {
    for (const Entry& entry : entries_of(spec)) {
      const KernelUsage& usage = compiled.usage.at(entry.symbol);
      std::printf("%s %s %d %d %d %d %d\n", spec.name.c_str(), entry.symbol.c_str(), usage.registers, usage.spill_bytes,
                  usage.shared_bytes + ptx.dynamic_shared.at(entry.symbol), compiled.min_blocks.at(entry.symbol),
                  stated.at(entry.symbol));
      symbols.insert(entry.symbol);
    }
  }
  if (symbols.size() != compiled.usage.size()) throw std::runtime_error(stem + ": symbols that no list names");
}

int compile_file(const std::string& cache, const std::string& arch, const std::string& path, bool shipped) {
  const std::string unit = read_text_file(path), name = std::filesystem::path(path).stem().string();
  const Compiled compiled = compile_unit(find_nvcc(), name, unit, {}, arch, cache);
  for (const std::string& line : check_spills(name, arch, compiled, shipped))
    std::fprintf(stderr, "%s\n", line.c_str());
  for (const auto& [symbol, usage] : compiled.usage) {
    std::printf("%s %d %d %d\n", symbol.c_str(), usage.registers, usage.spill_bytes, compiled.min_blocks.at(symbol));
  }
  return 0;
}

int run(int argc, char** argv) {
  if (std::strcmp(argv[3], "--unit") == 0) return compile_file(argv[1], argv[2], argv[4], argc > 5);
  const std::string cache = argv[1], arch = argv[2];
  const size_t per_batch = std::strtoul(argv[3], nullptr, 10);
  std::vector<Configuration> configurations;
  for (int i = 4; i < argc; ++i) {
    for (Configuration& c : made::configurations(argv[i])) configurations.push_back(std::move(c));
  }
  const Nvcc nvcc = find_nvcc();
  check_archs(nvcc, {arch});
  const Templates templates = read_templates();
  std::vector<Batch> batches;
  for (const Configuration& c : configurations) {
    if (batches.empty() || batches.back().specs.size() == per_batch) batches.emplace_back();
    batches.back().specs.push_back(made::kernel_spec(c));
    batches.back().unit += emit_unit({}, batches.back().specs.back(), templates, "proof");
  }
  std::atomic<size_t> next{0};
  std::mutex output;
  std::vector<std::string> errors(batches.size());
  const auto worker = [&] {
    for (size_t i = next++; i < batches.size(); i = next++) {
      try {
        compile_batch(nvcc, batches[i], arch, cache, output);
      } catch (const std::exception& error) {
        errors[i] = error.what();
      }
    }
  };
  std::thread second(worker);
  worker();
  second.join();
  int failed = 0;
  for (const std::string& error : errors) {
    if (error.empty()) continue;
    std::fprintf(stderr, "%s\n", error.c_str());
    ++failed;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fputs("compile_proof CACHE ARCH BATCH CONFIGURATION… | CACHE ARCH --unit FILE.cu [--shipped]\n", stderr);
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "compile_proof: %s\n", error.what());
    return 1;
  }
}
