#include "codegen/build/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "codegen/build/arguments.h"
#include "codegen/build/jobs.h"
#include "codegen/build/nvcc.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"

namespace kvcc::codegen {
namespace {

void add_tensor(const TensorConfiguration& t, int tail, nlohmann::ordered_json& json) {
  json["grid"] = to_text(t.grid);
  json["bits"] = t.bits;
  json["mixed"] = t.mixed;
  json["axis"] = to_text(t.axis);
  json["head_dim"] = t.head_dim;
  json["sparse"] = to_text(t.sparse);
  json["tail"] = tail;
}

nlohmann::ordered_json spec_json(const KernelSpec& spec, const CacheShape& shape) {
  const Configuration& c = spec.configuration;
  nlohmann::ordered_json json;
  if (c.family == Family::copy_pages) return {{"layout", to_text(c.layout)}};
  add_tensor(c, spec.tail, json);
  if (c.family == Family::attention) add_tensor(c.value, spec.value.tail, json["value"]);
  json["rope"] = to_text(c.rope);
  json["rotary_dim"] = c.rotary_dim;
  json["group"] = shape.group();
  json["group_tile"] = c.group_tile;
  json["dtype"] = to_text(c.dtype);
  json["layout"] = to_text(c.layout);
  json["layers"] = spec.layers;
  json["kv_heads"] = spec.heads;
  return json;
}

KernelPages pages_of(PageRule rule) {
  return {std::move(rule.function),
          std::move(rule.code_words),
          std::move(rule.head_words),
          rule.ranges,
          rule.csr,
          rule.classes,
          rule.tail,
          rule.default_capacity};
}

/// Files that the folder's earlier manifest lists and the new one does not. Only names inside the folder count.
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
    if (inside && !files.contains(name)) stale.push_back(name);
  }
  return stale;
}

/// What a newer kvcc compile wrote is not replaced unasked.
void check_folder(const CompileOptions& options) {
  const std::string path = options.folder + "/kernels.json";
  std::error_code error;
  if (options.force || !std::filesystem::is_regular_file(path, error)) return;
  const auto document = nlohmann::json::parse(read_text_file(path), nullptr, false);
  if (!document.is_object() || !document.contains("schema_version")) return;
  const auto& version = document["schema_version"];
  if (!version.is_number_integer() || version.get<int64_t>() <= kKernelsSchema) return;
  throw bad_input(path, fmt::format("kernels format {}", version.get<int64_t>()),
                  fmt::format("at most {}, which this build writes", kKernelsSchema),
                  "use another folder, or --force to replace it");
}

}  // namespace

int compilations(const Plan& plan, const CompileOptions& options) {
  if (options.emit_only || options.archs.empty()) return 0;
  return static_cast<int>(plan.kernels.size() * (options.archs.size() + 1));
}

CompileResult compile(const Artifact& artifact, const Plan& plan, const CompileOptions& options) {
  const Templates templates = read_templates();
  std::vector<std::string> units;
  for (const KernelSpec& spec : plan.kernels) {
    units.push_back(emit_unit(artifact, spec, templates, options.tool_version));
  }
  check_folder(options);

  CompileResult result;
  std::vector<Job> jobs;
  if (!options.emit_only) {
    const Nvcc nvcc = find_nvcc();
    check_archs(nvcc, options.archs);
    result.manifest.nvcc_version = nvcc.version;
    jobs = build(plan, units, nvcc, options);
  } else {
    for (size_t k = 0; k < plan.kernels.size(); ++k) jobs.push_back({k, "", {}});
  }

  std::map<std::string, int> dynamic_shared;
  for (const Job& job : jobs) dynamic_shared.insert(job.result.dynamic_shared.begin(), job.result.dynamic_shared.end());
  const std::string header = emit_header(artifact, plan, templates, options.tool_version, dynamic_shared);
  std::vector<std::string> roots = units;
  roots.push_back(header);
  const std::map<std::string, std::string> headers = header_closure(roots);
  std::map<std::string, std::string> files = headers;  // name to content
  files["kvcc_" + identifier(artifact.name) + ".h"] = header;
  for (size_t k = 0; k < units.size(); ++k) files[plan.kernels[k].name + ".cu"] = units[k];
  std::string launch_headers;
  for (const char* path : {"formats/layout/launch.h", "formats/layout/mma_launch.h"}) {
    if (const auto header_text = headers.find(path); header_text != headers.end())
      launch_headers += header_text->second;
  }
  for (Job& job : jobs) {
    const KernelSpec& spec = plan.kernels[job.kernel];
    const bool ptx = job.arch.starts_with("compute_"), built = !job.arch.empty();
    for (std::string& line : check_spills(spec.name, job.arch, job.result, is_shipped(spec.configuration))) {
      result.warnings.push_back(std::move(line));
    }
    const std::string binary = built ? spec.name + "." + job.arch + (ptx ? ".ptx" : ".cubin") : "";
    for (const Entry& entry : entries_of(spec)) {
      KernelEntry listed;
      listed.name = entry.name;
      listed.symbol = entry.symbol;
      listed.family = entry.family;
      listed.spec = spec_json(spec, artifact.shape);
      listed.arch = job.arch;
      listed.source = spec.name + ".cu";
      (ptx ? listed.ptx : listed.cubin) = binary;
      listed.launch = {{128, 1, 1}, entry.tokens_per_block, entry.splits, entry.grid_rule, -1, entry.stage, entry.when};
      if (built) {
        const auto shared = job.result.dynamic_shared.find(entry.symbol);
        if (shared == job.result.dynamic_shared.end()) {
          throw Error(ErrorKind::failed, spec.name + ".ptx", "no " + entry.symbol + "_shared_bytes");
        }
        listed.launch.dynamic_shared_bytes = shared->second;
      }
      if (built && !ptx) {
        const auto usage = job.result.usage.find(entry.symbol);
        if (usage == job.result.usage.end()) {
          throw Error(ErrorKind::failed, spec.name + " for " + job.arch, "the cubin has no entry " + entry.symbol);
        }
        listed.registers = usage->second.registers;
        listed.spill_bytes = usage->second.spill_bytes;
        listed.min_blocks = job.result.min_blocks.at(entry.symbol);
        listed.shared_bytes = usage->second.shared_bytes;
      }
      listed.arguments.push_back({"params", entry.params, {}});
      for (KernelArgument& member : members_of(launch_headers, entry.params)) {
        member.name = "params." + member.name;
        listed.arguments.push_back(std::move(member));
      }
      result.manifest.kernels.push_back(std::move(listed));
    }
    if (built) {
      (job.result.cached ? result.cached : result.compiled) += 1;
      files[binary] = std::move(job.result.binary);
    }
  }

  KernelsManifest& manifest = result.manifest;
  manifest.content_sha256 = artifact.content_sha256;
  manifest.artifact = artifact.name;
  manifest.scheme = to_string(artifact.scheme);
  manifest.model = artifact.model;
  manifest.layout = to_text(plan.layout);
  for (const bool keys : {true, false}) {
    PageRule rule = page_rule(artifact, plan.layout, keys);
    if (rule.coded) manifest.pages[keys ? "key" : "value"] = pages_of(std::move(rule));
  }
  manifest.tool_version = options.tool_version;
  make_folder(options.folder);
  for (const auto& [name, content] : files) {
    manifest.files[name] = sha256_hex(content);
    const std::string path = options.folder + "/" + name;
    make_folder(std::filesystem::path(path).parent_path().string());
    result.written += write_if_different(path, content);
  }
  const std::vector<std::string> stale = stale_files(options.folder, manifest.files);
  write_kernels_manifest(options.folder, manifest);
  for (const std::string& name : stale) {
    std::error_code ignored;
    result.removed += std::filesystem::remove(options.folder + "/" + name, ignored);
  }
  return result;
}

}  // namespace kvcc::codegen
