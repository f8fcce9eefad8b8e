// kvcc compile: from a codebook to a folder of kernels.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "codegen/build/compile.h"
#include "codegen/build/nvcc.h"
#include "formats/cli/program.h"
#include "formats/core/error.h"
#include "formats/store/codebook.h"
#include "formats/store/shard.h"

namespace {

namespace cg = kvcc::codegen;
using nlohmann::ordered_json;

struct Options {
  std::string artifact, folder, shard;
  std::string archs = "sm_80,sm_90";
  std::string dtype;  ///< "": f16 for GPUs, f32 for the CPU
  std::string layout = "auto";
  std::string families;
  bool families_given = false;
  bool emit_only = false;
  bool force = false;
};

/// Nothing for "auto".
std::optional<cg::Layout> parse_layout(const std::string& text) {
  for (const cg::Layout layout : {cg::Layout::mma, cg::Layout::linear, cg::Layout::vector}) {
    if (cg::to_text(layout) == text) return layout;
  }
  if (text == "auto") return std::nullopt;
  throw kvcc::Error(kvcc::ErrorKind::usage, "--layout", fmt::format("\"{}\"", text),
                    "auto, mma-1, linear-1 or vector-1");
}

ordered_json skipped_json(const cg::Plan& plan) {
  ordered_json skipped = ordered_json::array();
  if (!plan.layout_reason.empty()) {
    spdlog::info("layout {}: {}", cg::to_text(plan.layout), plan.layout_reason);
  }
  for (const cg::Skipped& one : plan.skipped) {
    skipped.push_back({{"family", cg::to_text(one.family)}, {"reason", one.reason}});
  }
  return skipped;
}

/// As --arch lists them.
std::vector<std::string> archs_of(const cg::Plan& plan, const cg::CompileOptions& compile) {
  std::vector<std::string> archs = compile.archs;
  const auto of_cpu = [](const cg::KernelSpec& spec) { return spec.machine == cg::Machine::cpu; };
  if (std::any_of(plan.kernels.begin(), plan.kernels.end(), of_cpu)) archs.emplace_back(kvcc::kCpuArch);
  return archs;
}

void print_plan(const Options& options, const cg::Plan& plan, const cg::CompileOptions& compile, bool json) {
  const int runs = cg::compilations(plan, compile);
  if (json) {
    ordered_json document{{"folder", options.folder}, {"archs", archs_of(plan, compile)}, {"compilations", runs}};
    document["layout"] = cg::to_text(plan.layout);
    document["layout_reason"] = plan.layout_reason;
    document["kernels"] = ordered_json::array();
    for (const cg::KernelSpec& spec : plan.kernels) {
      for (const cg::Entry& entry : cg::entries_of(spec)) {
        document["kernels"].push_back(
            {{"name", entry.name}, {"family", entry.family}, {"source", cg::source_of(spec)}});
      }
    }
    document["skipped"] = skipped_json(plan);
    kvcc::cli::print_json(document);
    return;
  }
  for (const cg::KernelSpec& spec : plan.kernels) fmt::print("{}\n", cg::source_of(spec));
  fmt::print("{} units of layout {}, {} runs of compilers, into {}\n", plan.kernels.size(), cg::to_text(plan.layout),
             runs, options.folder);
}

void print_result(const Options& options, const cg::CompileResult& result, const cg::Plan& plan, bool json) {
  if (json) {
    ordered_json document = kvcc::to_json(result.manifest);
    document["folder"] = options.folder;
    document["compiled"] = result.compiled;
    document["cached"] = result.cached;
    document["written"] = result.written;
    document["removed"] = result.removed;
    document["layout_reason"] = plan.layout_reason;
    document["skipped"] = skipped_json(plan);
    kvcc::cli::print_json(document);
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"kernel", "arch", "registers", "shared bytes", "spill bytes"}};
  for (const kvcc::KernelEntry& entry : result.manifest.kernels) {
    if (entry.cubin.empty()) continue;
    rows.push_back({entry.name, entry.arch, std::to_string(entry.registers),
                    std::to_string(entry.shared_bytes + entry.launch.dynamic_shared_bytes),
                    std::to_string(entry.spill_bytes)});
  }
  if (rows.size() > 1) fmt::print("{}", kvcc::cli::table(rows));
  for (const kvcc::KernelEntry& entry : result.manifest.kernels) {
    if (entry.library.empty()) continue;
    fmt::print("{}: instruction sets {}\n", entry.library, fmt::join(entry.instruction_sets, ", "));
    break;  // one library has them all
  }
  fmt::print("{}: {} units, {} compiled, {} from the cache, {} files written, {} files removed\n", options.folder,
             plan.kernels.size(), result.compiled, result.cached, result.written, result.removed);
}

/// Of runs that need no nvcc: a word too many is told where one is at hand.
void check_archs_if_possible(const std::vector<std::string>& archs) {
  cg::Nvcc nvcc;
  try {
    nvcc = cg::find_nvcc();
  } catch (const kvcc::Error&) {
    return;
  }
  cg::check_archs(nvcc, archs);
}

int body(const Options& options, const kvcc::cli::Common& common) {
  if (options.folder.empty()) throw kvcc::Error(kvcc::ErrorKind::usage, "-o", "nothing", "a folder to write to");
  cg::CompileOptions compile;
  compile.folder = options.folder;
  const cg::Archs archs = cg::parse_archs(options.archs);
  compile.archs = archs.gpu;
  compile.emit_only = options.emit_only;
  compile.force = options.force;
  compile.threads = common.threads;
  compile.cache_folder = common.cache_dir;
  compile.tool_version = KVCC_VERSION;
  cg::Targets targets;
  targets.archs = archs.gpu;
  targets.cpu = archs.cpu;
  if (!options.dtype.empty()) targets.dtype = targets.cpu_dtype = cg::parse_dtype(options.dtype);
  targets.layout = parse_layout(options.layout);
  if (options.families_given) targets.families = cg::parse_families(options.families);

  std::string name = std::filesystem::path(options.artifact).stem().string();
  kvcc::Codebook codebook = kvcc::read_codebook(options.artifact);
  if (!options.shard.empty()) {
    const kvcc::RankShard shard = kvcc::parse_rank_shard(options.shard, "--shard");
    codebook = kvcc::shard_codebook(codebook, shard, options.artifact);
    name += fmt::format("_{}of{}", shard.rank, shard.count);
  }
  const cg::Artifact artifact = cg::describe(codebook, name);
  const cg::Plan plan = cg::plan(artifact, targets);
  if (!plan.layout_reason.empty()) {
    spdlog::info("layout {}: {}", cg::to_text(plan.layout), plan.layout_reason);
  }
  for (const cg::Skipped& one : plan.skipped) {
    spdlog::info("no {}: {}", cg::to_text(one.family), one.reason);
  }
  if ((common.dry_run || options.emit_only) && !archs.gpu.empty()) check_archs_if_possible(archs.gpu);
  if (common.dry_run) {
    print_plan(options, plan, compile, common.json);
    return 0;
  }
  std::unique_ptr<kvcc::cli::Progress> bar;
  if (const int runs = cg::compilations(plan, compile); runs > 0) {
    bar = std::make_unique<kvcc::cli::Progress>("compile", runs, common.quiet);
    compile.progress = [&bar] { bar->advance(); };
  }
  cg::CompileResult result;
  try {
    result = cg::compile(artifact, plan, compile);
  } catch (const kvcc::Interrupted&) {
    bar.reset();
    if (!options.emit_only) spdlog::info("the same command again takes what is compiled from the cache");
    throw;
  }
  bar.reset();
  for (const std::string& line : result.warnings) spdlog::warn("{}", line);
  print_result(options, result, plan, common.json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return kvcc::cli::run(
      argc, argv, "compile", "generate and compile the kernels of a codebook, for GPUs and for the CPU",
      kvcc::cli::kJson | kvcc::cli::kThreads | kvcc::cli::kDryRun | kvcc::cli::kCacheDir,
      [&](CLI::App& app) {
        app.add_option("codebook", options.artifact, "the artifact, NAME.kvcb")->required();
        app.add_option("--arch", options.archs,
                       "GPU architectures, of which PTX that newer ones can take is made too, and cpu: a shared "
                       "library with code "
                       "for each instruction set")
            ->capture_default_str();
        app.add_option("-o,--output", options.folder,
                       "folder for sources, cubins, PTX, library, C header, kernels.json and the arrays of vector "
                       "codebooks")
            ->required();
        app.add_option(
            "--dtype", options.dtype,
            "of keys, values, queries and weights that kernels read: f16, bf16, f32; where left out f16 on GPUs "
            "and f32 on the CPU, whose units differ in nothing else");
        app.add_option(
               "--layout", options.layout,
               "of the packed cache: mma-1 (tensor cores, CPU), linear-1, vector-1 (vector codebooks, which have no "
               "other), or auto: mma-1 where it has all that the codebook needs; cpu needs mma-1")
            ->capture_default_str();
        app.add_option("--families", options.families,
                       "kernels to make, e.g. attention,pack_key,pack_value; all of the layout where left out")
            ->each([&options](const std::string&) { options.families_given = true; });
        app.footer(
            "nvcc is the one that $KVCC_NVCC names, else the first of version 12 or newer in PATH, CUDA_HOME, "
            "/usr/local/cuda and the virtual environment. The C++ compiler is the one that $CXX names, else c++, g++ "
            "or "
            "clang++ in PATH; it needs Highway (libhwy-dev).");
        app.add_option("--shard", options.shard,
                       "RANK/RANKS, from 0: kernels of one tensor-parallel rank's key/value heads, as 0/2 and 1/2");
        app.add_flag("--emit-only", options.emit_only, "write the sources alone; needs no compiler");
        app.add_flag("--force", options.force, "write into the folder even if its kernels.json is of a newer kvcc");
      },
      [&](const kvcc::cli::Common& common) { return body(options, common); });
}
