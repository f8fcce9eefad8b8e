#include "codegen/build/manifest.h"

#include <array>

#include "codegen/build/arguments.h"
#include "formats/core/error.h"

namespace kvcc::codegen {
namespace {

void add_tensor(const TensorConfiguration& t, int tail, nlohmann::ordered_json& json) {
  json["grid"] = to_text(t.grid);
  if (t.grid == Grid::vector) {
    json["transform"] = t.transform;
    json["head_dim"] = t.head_dim;
    if (t.steps == 0) return;
    json["steps"] = t.steps;
    json["token_bits"] = t.token_bits;
    json["table_kib"] = t.table_kib;
    return;
  }
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

/// What entries of both machines say.
KernelEntry listed_entry(const KernelSpec& spec, const Entry& entry, const CacheShape& shape) {
  KernelEntry listed;
  listed.name = entry.name;
  listed.symbol = entry.symbol;
  listed.family = entry.family;
  listed.spec = spec_json(spec, shape);
  listed.source = source_of(spec);
  const std::array<int, 3> block = {spec.machine == Machine::cpu ? 1 : 128, 1, 1};
  listed.launch = {block, entry.tokens_per_block, entry.splits, entry.grid_rule, -1, entry.stage, entry.when};
  return listed;
}

/// The members of a struct, after an argument of its own.
void add_members(const std::string& argument, const std::string& type, const std::string& headers, KernelEntry& entry) {
  for (KernelArgument& member : members_of(headers, type)) {
    member.name = argument + "." + member.name;
    entry.arguments.push_back(std::move(member));
  }
}

}  // namespace

std::string file_of(const KernelSpec& spec, const Job& job) {
  if (job.arch.empty()) return "";
  return spec.name + "." + job.arch + (job.arch.starts_with("compute_") ? ".ptx" : ".cubin");
}

std::vector<KernelEntry> list_entries(const KernelSpec& spec, const CacheShape& shape, const Job& job,
                                      const std::string& launch_headers) {
  const bool ptx = job.arch.starts_with("compute_"), built = !job.arch.empty();
  std::vector<KernelEntry> entries;
  for (const Entry& entry : entries_of(spec)) {
    KernelEntry listed = listed_entry(spec, entry, shape);
    listed.arch = job.arch;
    (ptx ? listed.ptx : listed.cubin) = file_of(spec, job);
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
    add_members("params", entry.params, launch_headers, listed);
    entries.push_back(std::move(listed));
  }
  return entries;
}

std::vector<KernelEntry> list_cpu_entries(const KernelSpec& spec, const CacheShape& shape, const std::string& file,
                                          const std::vector<std::string>& instruction_sets,
                                          const std::string& headers) {
  std::vector<KernelEntry> entries;
  for (const Entry& entry : entries_of(spec)) {
    KernelEntry listed = listed_entry(spec, entry, shape);
    listed.arch = kCpuArch;
    listed.library = file;
    listed.instruction_sets = instruction_sets;
    listed.arguments.push_back({"params", "const " + entry.params + "*", {}});
    add_members("params", entry.params, headers, listed);
    listed.arguments.push_back({"tables", "const KvccCpuTables*", {}});
    add_members("tables", "KvccCpuTables", headers, listed);
    for (const char* name : {"first", "last"}) listed.arguments.push_back({name, "uint32_t", {}});
    entries.push_back(std::move(listed));
  }
  return entries;
}

KernelVectors vectors_of(const Artifact& artifact, bool keys) {
  const VectorArrays& vectors = keys ? artifact.key_vectors : artifact.value_vectors;
  KernelVectors listed;
  listed.head_dim = keys ? artifact.shape.head_dim : artifact.shape.value_head_dim;
  listed.transform = vectors.transform;
  for (const auto& places : vectors.places) listed.places.emplace_back(places.begin(), places.end());
  return listed;
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

}  // namespace kvcc::codegen
