// Units of the CPU as a test runs them: made up or of a plan, compiled into a library as kvcc compile does it, loaded.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "codegen/build/jobs.h"
#include "codegen/emit/emit.h"
#include "formats/core/file.h"
#include "kernels/cpu/library.h"
#include "tests/codegen/made.h"

namespace kvcc::made {

using namespace codegen;

/// Throws Error with what the compiler says, std::runtime_error with what the loader says.
class CpuLibrary {
 public:
  CpuLibrary(const Artifact& artifact, const Plan& plan) {
    setenv("KVCC_SHARE", KVCC_SOURCE_DIR, 0);
    const Templates templates = read_templates();
    Sources sources;
    for (const KernelSpec& spec : plan.kernels) sources.units.push_back(emit_unit(artifact, spec, templates, "0.0.0"));
    const std::string table = emit_library(artifact, plan, templates, "0.0.0");
    std::vector<std::string> roots = sources.units;
    roots.push_back(table);
    sources.headers = header_closure(roots);
    CompileOptions options;
    options.threads = 2;
    options.cache_folder = std::string(KVCC_BUILD_DIR) + "/tests/cpu_units";
    const std::string file = library_file(artifact);
    binary_ = build_library(plan, sources, {library_unit(artifact), table}, file, find_cxx(), options);
    const std::string path = folder_ / file;
    write_text_file(path, binary_.binary);
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
    table_ = reinterpret_cast<KvccCpuLibraryFunction>(symbol(KVCC_CPU_LIBRARY_SYMBOL))();
    choose(plan);
  }
  ~CpuLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  CpuLibrary(const CpuLibrary&) = delete;
  CpuLibrary& operator=(const CpuLibrary&) = delete;

  const KvccCpuLibrary& table() const { return *table_; }
  const Library& built() const { return binary_; }
  void* symbol(const std::string& name) const {
    void* found = dlsym(handle_, name.c_str());
    if (found == nullptr) throw std::runtime_error("no " + name);
    return found;
  }
  /// From now on run() is of these units alone.
  void choose(const Plan& plan) {
    chosen_.clear();
    for (const KernelSpec& spec : plan.kernels) {
      for (const Entry& entry : entries_of(spec)) chosen_.insert(entry.name);
    }
  }
  /// All blocks of a grid, in two parts, for every unit of the family that is chosen. Throws where there is none.
  template <class Params>
  void run(int32_t family, const Params& params, const KvccCpuTables& tables, KvccGrid grid) const {
    const uint32_t blocks = grid.x * grid.y * grid.z, middle = blocks / 3;
    int count = 0;
    for (int32_t i = 0; i < table_->count; ++i) {
      if (table_->units[i].family != family || !chosen_.contains(table_->units[i].name)) continue;
      table_->units[i].run(&params, &tables, middle, blocks);
      table_->units[i].run(&params, &tables, 0, middle);
      ++count;
    }
    if (count == 0) throw std::runtime_error("no unit of family " + std::to_string(family));
  }

 private:
  TemporaryFolder folder_;
  Library binary_;
  void* handle_ = nullptr;
  const KvccCpuLibrary* table_ = nullptr;
  std::set<std::string> chosen_;
};

constexpr int kMadeLayers = 2, kMadeHeads = 2;

/// Random tables of one tensor, every row its own. Where it is mixed, heads have its width and another: in the first
/// layer the first head has the other, in the second the second.
inline TensorTables made_tables(const TensorConfiguration& t, std::mt19937& random) {
  TensorTables tables;
  const int other = t.mixed ? (t.bits == 4 ? 2 : 4) : t.bits;
  tables.codes = 1 << std::max(t.bits, other);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int row = 0; row < kMadeLayers * kMadeHeads; ++row) {
    tables.bits.push_back(static_cast<uint8_t>(row == 0 || row == 3 ? other : t.bits));
    std::vector<float> levels(tables.codes);
    for (float& level : levels) level = uniform(random);
    std::sort(levels.begin(), levels.begin() + (1 << tables.bits.back()));
    tables.levels.insert(tables.levels.end(), levels.begin(), levels.end());
  }
  return tables;
}

/// One configuration as an artifact and the plan of its units: one, or one for each width.
struct MadeUnits {
  Artifact artifact;
  Plan plan;

  MadeUnits(const Configuration& c, std::mt19937& random) {
    artifact.name = "made";
    artifact.content_sha256 = std::string(64, 'c');
    artifact.shape.layers = kMadeLayers;
    artifact.shape.kv_heads = kMadeHeads;
    plan.layout = Layout::mma;
    if (c.family == Family::copy_pages) {
      add(c, {}, {});
      return;
    }
    TensorTables& first = of_keys(c.family) ? artifact.key : artifact.value;
    first = made_tables(c, random);
    if (c.family == Family::attention) artifact.value = made_tables(c.value, random);
    const bool mixed = c.mixed || (c.family == Family::attention && c.value.mixed);
    for (const int row : mixed ? std::vector<int>{0, 1} : std::vector<int>{0}) {
      Configuration one = c;
      one.bits = first.bits[row];
      TensorSpec second;
      if (c.family == Family::attention) {
        one.value.bits = artifact.value.bits[row];
        second = tensor(artifact.value, one.value);
      }
      add(one, tensor(first, one), second);
    }
  }

 private:
  static TensorSpec tensor(const TensorTables& tables, const TensorConfiguration& t) {
    TensorSpec spec;
    const size_t codes = size_t{1} << t.bits;
    spec.levels.assign(tables.bits.size() * codes, 0.0f);
    for (size_t row = 0; row < tables.bits.size(); ++row) {
      if (tables.bits[row] != t.bits) continue;
      std::copy_n(tables.levels.begin() + row * tables.codes, codes, spec.levels.begin() + row * codes);
    }
    if (t.mixed) spec.bits = tables.bits;
    return spec;
  }
  void add(const Configuration& c, TensorSpec first, TensorSpec second) {
    KernelSpec spec;
    static_cast<TensorSpec&>(spec) = std::move(first);
    spec.value = std::move(second);
    spec.configuration = c;
    spec.machine = Machine::cpu;
    spec.name = name(c);
    spec.symbol = "kvcc_" + spec.name;
    spec.layers = kMadeLayers;
    spec.heads = kMadeHeads;
    plan.kernels.push_back(std::move(spec));
  }
};

}  // namespace kvcc::made
