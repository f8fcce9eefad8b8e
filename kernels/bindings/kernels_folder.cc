#include "kernels/bindings/kernels_folder.h"

#include <algorithm>

#include "formats/core/error.h"
#include "formats/core/scheme.h"
#include "formats/layout/mma.h"
#include "formats/store/model_json.h"

namespace kvcc::bindings {
namespace {

using nlohmann::ordered_json;

/// Facts of one tensor; `spec` is the entry's, or its "value" for attention's values.
void read_tensor(const ordered_json& spec, const std::string& place, host::KernelFacts& facts) {
  facts.bits = json_member<int>(spec, "bits", place);
  facts.head_dim = json_member<int>(spec, "head_dim", place);
  facts.mixed = json_member<bool>(spec, "mixed", place);
  facts.token_axis = json_member<std::string>(spec, "axis", place) == "token";
  const auto sparse = json_member<std::string>(spec, "sparse", place);
  facts.sparse = sparse == "csr" ? linear::Sparse::csr : sparse == "tail" ? linear::Sparse::tail : linear::Sparse::none;
}

Unit read_unit(const KernelEntry& entry, const std::string& folder) {
  const std::string place = folder + "/kernels.json, " + entry.name;
  Unit unit;
  unit.name = entry.name;
  host::KernelFacts& f = unit.facts;
  f.name = entry.name;
  f.layout = host::Layout::mma;
  if (entry.family == "copy_pages") return unit;
  read_tensor(entry.spec, place, f);
  f.rotary_dim = json_member<int>(entry.spec, "rotary_dim", place);
  f.group = json_member<int>(entry.spec, "group", place);
  f.group_tile = json_member<int>(entry.spec, "group_tile", place);
  f.layers = json_member<int>(entry.spec, "layers", place);
  f.kv_heads = json_member<int>(entry.spec, "kv_heads", place);
  unit.dtype = json_member<std::string>(entry.spec, "dtype", place);
  f.element_bytes = unit.dtype == "f32" ? 4 : 2;
  const bool values = entry.family.find("value") != std::string::npos;
  f.tensor = values ? mma::Tensor::value : mma::Tensor::key;
  if (entry.family == "attention") {
    unit.value = f;
    unit.value.tensor = mma::Tensor::value;
    unit.value.rotary_dim = 0;
    read_tensor(json_member<ordered_json>(entry.spec, "value", place), place, unit.value);
  }
  return unit;
}

}  // namespace

KernelsFolder::KernelsFolder(const std::string& folder) : folder_(folder), manifest_(read_kernels_manifest(folder)) {
  if (manifest_.layout != mma::kLayoutId) {
    throw bad_input(folder, "kernels of layout " + manifest_.layout, mma::kLayoutId,
                    manifest_.layout == "linear-1" ? "kvcc compile with --layout " + std::string(mma::kLayoutId) : "");
  }
  const Scheme scheme = parse_scheme(manifest_.scheme);
  sink_ = scheme.sink;
  residual_ = scheme.residual;
  // Entries of a unit share its source; those of its architectures share their symbol. Order: stages.
  std::vector<KernelEntry> entries = manifest_.kernels;
  std::erase_if(entries, [](const KernelEntry& entry) { return entry.arch == kCpuArch; });
  std::stable_sort(entries.begin(), entries.end(),
                   [](const KernelEntry& a, const KernelEntry& b) { return a.launch.stage < b.launch.stage; });
  std::map<std::string, std::pair<std::string, size_t>> by_source;  // to its family and place there
  const auto is_own = [](const KernelEntry& e) { return e.source == e.name + ".cu"; };
  for (const KernelEntry& entry : entries) {
    if (!is_own(entry) || by_source.contains(entry.source)) continue;
    std::vector<Unit>& units = units_[entry.family];
    by_source[entry.source] = {entry.family, units.size()};
    units.push_back(read_unit(entry, folder));
    const Unit& unit = units.back();
    if (entry.family == "copy_pages") continue;
    kv_heads_ = unit.facts.kv_heads;
    head_dims_[unit.facts.tensor == mma::Tensor::key ? "key" : "value"] = unit.facts.head_dim;
    if (entry.family == "attention") head_dims_["value"] = unit.value.head_dim;
  }
  for (const KernelEntry& entry : entries) {
    const auto found = by_source.find(entry.source);
    if (found == by_source.end()) {
      throw bad_input(folder + "/kernels.json", "entry " + entry.name + " of a source without own entry", "one");
    }
    Unit& unit = units_[found->second.first][found->second.second];
    const std::string& file = entry.cubin.empty() ? entry.ptx : entry.cubin;
    if (is_own(entry) && !file.empty()) unit.images.push_back({entry.arch, folder + "/" + file});
    const bool known = std::any_of(unit.launches.begin(), unit.launches.end(),
                                   [&](const Launch& launch) { return launch.symbol == entry.symbol; });
    if (known) continue;
    unit.launches.push_back({entry.symbol, entry.launch.grid, std::max(0, entry.launch.dynamic_shared_bytes),
                             entry.launch.when == "splits > 1"});
  }
}

const std::vector<Unit>& KernelsFolder::units(const std::string& family) const {
  const auto found = units_.find(family);
  if (found == units_.end()) {
    std::string there;
    for (const auto& [name, units] : units_) there += (there.empty() ? "" : ", ") + name;
    throw Error(ErrorKind::failed, folder_, "no kernel " + family, "one of: " + there,
                "kvcc compile makes it unless --families leaves it out");
  }
  return found->second;
}

const KernelPages& KernelsFolder::pages(const std::string& tensor) const {
  const auto found = manifest_.pages.find(tensor);
  if (found == manifest_.pages.end()) {
    throw Error(ErrorKind::failed, folder_ + ", tensor", "\"" + tensor + "\"", "key or value, where it has codes");
  }
  return found->second;
}

int KernelsFolder::head_dim(const std::string& tensor) const {
  const auto found = head_dims_.find(tensor);
  if (found == head_dims_.end()) {
    throw Error(ErrorKind::failed, folder_ + ", tensor", "\"" + tensor + "\"", "key or value, where it has kernels");
  }
  return found->second;
}

const host::Module& KernelsFolder::module(const Unit& unit, int device) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<host::Module>& module = modules_[{unit.name, device}];
  if (!module) module = std::make_unique<host::Module>(unit.name, unit.images, device);
  return *module;
}

KernelsFolder& open_kernels(const std::string& folder) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<KernelsFolder>> folders;
  const std::lock_guard lock(mutex);
  std::unique_ptr<KernelsFolder>& kernels = folders[folder];
  if (!kernels) kernels = std::make_unique<KernelsFolder>(folder);
  return *kernels;
}

}  // namespace kvcc::bindings
