#include "codegen/build/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "codegen/build/cxx.h"
#include "codegen/build/jobs.h"
#include "codegen/build/manifest.h"
#include "codegen/build/nvcc.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/json.h"
#include "formats/store/folder_lock.h"

namespace kvcc::codegen {
namespace {

/// Files that the folder's earlier manifest lists and the new one does not. Only names inside the folder count, and
/// files that are what the manifest says: another file of the name is not kvcc's.
std::vector<std::string> stale_files(const std::string& folder, const std::map<std::string, std::string>& files) {
  std::vector<std::string> stale;
  if (!std::filesystem::exists(folder + "/kernels.json")) return stale;
  std::map<std::string, std::string> earlier;
  try {
    earlier = read_kernels_manifest(folder).files;
  } catch (const Error&) {
    return stale;  // damaged or newer: nothing is known, so nothing is removed
  }
  for (const auto& [name, sha256] : earlier) {
    const std::filesystem::path path(name);
    const bool inside = path.is_relative() && name.find("..") == std::string::npos;
    std::error_code error;
    const bool there = inside && !files.contains(name) && std::filesystem::is_regular_file(folder + "/" + name, error);
    if (there && sha256_file(folder + "/" + name) == sha256) stale.push_back(name);
  }
  return stale;
}

/// Counts of what was done.
struct Changes {
  int written = 0, removed = 0;
};

/// Writes what differs from what is there. All of it is on disk before the first file gets its name, so that a full
/// disk leaves the folder as it was. The manifest gets its name last, after `stale` files were removed: until then the
/// earlier one lists them, so that the next run removes what a killed one left.
Changes write_files(const std::string& folder, const std::map<std::string, std::string>& files,
                    const std::string& manifest, const std::vector<std::string>& stale) {
  const auto write = [&](const std::string& name, const std::string& content) -> std::unique_ptr<AtomicFile> {
    const std::string path = folder + "/" + name;
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error) && read_text_file(path) == content) return nullptr;
    make_folder(std::filesystem::path(path).parent_path().string());
    auto file = std::make_unique<AtomicFile>(path);
    file->write(content);
    return file;
  };
  std::vector<std::unique_ptr<AtomicFile>> changed;
  for (const auto& [name, content] : files) {
    if (auto file = write(name, content)) changed.push_back(std::move(file));
  }
  const std::unique_ptr<AtomicFile> list = write("kernels.json", manifest);
  for (const std::unique_ptr<AtomicFile>& file : changed) file->commit(false);
  Changes done{static_cast<int>(changed.size()), 0};
  for (const std::string& name : stale) {
    std::error_code ignored;
    done.removed += std::filesystem::remove(folder + "/" + name, ignored);
  }
  if (list) list->commit();
  return done;
}

/// The folder to write, made where it is not there and locked; one that was made is removed when no manifest came into
/// it.
class OutputFolder {
 public:
  explicit OutputFolder(const std::string& path) : path_(path) {
    std::error_code error;
    made_ = !std::filesystem::exists(path, error);
    make_folder(path);
    lock_.emplace(path);
  }
  ~OutputFolder() {
    std::error_code ignored;
    if (made_ && !std::filesystem::exists(path_ + "/kernels.json", ignored)) {
      std::filesystem::remove_all(path_, ignored);
    }
  }
  OutputFolder(const OutputFolder&) = delete;

 private:
  std::string path_;
  bool made_ = false;
  std::optional<FolderLock> lock_;
};

/// What a newer kvcc compile wrote is not replaced unasked.
void check_folder(const CompileOptions& options) {
  const std::string path = options.folder + "/kernels.json";
  std::error_code error;
  if (options.force || !std::filesystem::is_regular_file(path, error)) return;
  const std::string text = read_json_text(path, uint64_t{64} << 20);  // as the manifest's reader
  nlohmann::json document;
  try {
    document = parse_json<nlohmann::json>(text, path);
  } catch (const Error&) {  // whatever it is, no newer kvcc compile wrote it
    return;
  }
  if (!document.contains("schema_version")) return;
  const auto& version = document["schema_version"];
  if (!version.is_number_unsigned() || version.get<uint64_t>() <= kKernelsSchema) return;
  throw bad_input(path, fmt::format("kernels format {}", version.get<uint64_t>()),
                  fmt::format("at most {}, which this build writes", kKernelsSchema),
                  "use another folder, or --force to replace it");
}

}  // namespace

int compilations(const Plan& plan, const CompileOptions& options) {
  if (options.emit_only) return 0;
  size_t gpu = 0, cpu = 0;
  for (const KernelSpec& spec : plan.kernels) (spec.machine == Machine::cpu ? cpu : gpu) += 1;
  if (options.archs.empty()) gpu = 0;
  return static_cast<int>(gpu * (options.archs.size() + 1) + (cpu > 0 ? cpu + 2 : 0));
}

CompileResult compile(const Artifact& artifact, const Plan& plan, const CompileOptions& options) {
  const Templates templates = read_templates();
  Sources sources;
  std::vector<std::string>& units = sources.units;
  bool gpu = false, cpu = false;
  for (const KernelSpec& spec : plan.kernels) {
    units.push_back(emit_unit(artifact, spec, templates, options.tool_version));
    (spec.machine == Machine::cpu ? cpu : gpu) = true;
  }
  const std::string table = cpu ? emit_library(artifact, plan, templates, options.tool_version) : "";
  std::vector<std::string> roots = units;
  roots.push_back(table);
  roots.push_back(emit_header(artifact, plan, templates, options.tool_version));
  sources.headers = header_closure(roots);
  check_folder(options);
  const OutputFolder output(options.folder);

  CompileResult result;
  KernelsManifest& manifest = result.manifest;
  std::vector<Job> jobs;
  Library library;
  if (options.emit_only) {
    for (size_t k = 0; k < plan.kernels.size(); ++k) {
      if (plan.kernels[k].machine == Machine::gpu) jobs.push_back({k, "", {}});
    }
  } else {
    Nvcc nvcc;
    Cxx cxx;
    if (gpu) nvcc = find_nvcc();
    if (gpu) check_archs(nvcc, options.archs);
    if (cpu) cxx = find_cxx();
    manifest.nvcc_version = nvcc.version;
    manifest.cxx_version = cxx.version;
    manifest.highway_version = cxx.highway;
    if (gpu) jobs = build(plan, sources, nvcc, options);
    if (cpu) {
      library = build_library(plan, sources, {library_unit(artifact), table}, library_file(artifact), cxx, options);
    }
    result.compiled = library.compiled;
    result.cached = library.cached;
  }

  std::map<std::string, int> dynamic_shared;
  for (const Job& job : jobs) dynamic_shared.insert(job.result.dynamic_shared.begin(), job.result.dynamic_shared.end());
  const std::string header = emit_header(artifact, plan, templates, options.tool_version, dynamic_shared);
  const std::map<std::string, std::string>& headers = sources.headers;
  std::map<std::string, std::string> files = headers;  // name to content
  files["kvcc_" + identifier(artifact.name) + ".h"] = header;
  for (size_t k = 0; k < units.size(); ++k) files[source_of(plan.kernels[k])] = units[k];
  if (cpu) files[library_unit(artifact) + ".cc"] = table;
  if (!library.binary.empty()) files[library_file(artifact)] = library.binary;
  if (!artifact.vectors.empty()) files[vectors_file(artifact)] = artifact.vectors;
  std::string launch_headers;
  for (const char* path : {"formats/layout/launch.h", "formats/layout/mma_launch.h", "formats/layout/vector_launch.h",
                           "kernels/cpu/units.h"}) {
    if (const auto header_text = headers.find(path); header_text != headers.end())
      launch_headers += header_text->second;
  }
  for (Job& job : jobs) {
    const KernelSpec& spec = plan.kernels[job.kernel];
    for (std::string& line : check_spills(spec.name, job.arch, job.result, is_shipped(spec.configuration))) {
      result.warnings.push_back(std::move(line));
    }
    for (KernelEntry& entry : list_entries(spec, artifact.shape, job, launch_headers)) {
      manifest.kernels.push_back(std::move(entry));
    }
    if (const std::string file = file_of(spec, job); !file.empty()) {
      (job.result.cached ? result.cached : result.compiled) += 1;
      files[file] = std::move(job.result.binary);
    }
  }
  for (const KernelSpec& spec : plan.kernels) {
    if (spec.machine != Machine::cpu) continue;
    const std::string file = library.binary.empty() ? "" : library_file(artifact);
    for (KernelEntry& entry : list_cpu_entries(spec, artifact.shape, file, library.instruction_sets, launch_headers)) {
      manifest.kernels.push_back(std::move(entry));
    }
  }

  manifest.content_sha256 = artifact.content_sha256;
  manifest.artifact = artifact.name;
  manifest.scheme = to_string(artifact.scheme);
  manifest.model = artifact.model;
  manifest.layout = to_text(plan.layout);
  for (const bool keys : {true, false}) {
    PageRule rule = page_rule(artifact, plan.layout, keys);
    if (rule.coded) manifest.pages[keys ? "key" : "value"] = pages_of(std::move(rule));
    if (plan.layout == Layout::vector) {
      manifest.vectors_file = vectors_file(artifact);
      manifest.vectors[keys ? "key" : "value"] = vectors_of(artifact, keys);
    }
  }
  manifest.tool_version = options.tool_version;
  for (const auto& [name, content] : files) manifest.files[name] = sha256_hex(content);
  const std::vector<std::string> stale = stale_files(options.folder, manifest.files);
  const Changes done = write_files(options.folder, files, kernels_manifest_text(manifest), stale);
  result.written = done.written;
  result.removed = done.removed;
  return result;
}

}  // namespace kvcc::codegen
