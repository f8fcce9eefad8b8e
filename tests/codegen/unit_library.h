// Generated units as a test runs them: emitted, compiled as C++ into one shared library, loaded.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "codegen/emit/emit.h"
#include "formats/codec/reference.h"
#include "formats/core/file.h"
#include "formats/core/process.h"
#include "tests/codegen/made.h"

namespace kvcc::made {

/// All units of a plan. Throws std::runtime_error with what the compiler or the loader says.
class UnitLibrary {
 public:
  /// flags: the compiler's beside those that every unit takes.
  UnitLibrary(const codegen::Artifact& artifact, const codegen::Plan& plan, const std::vector<std::string>& flags) {
    codegen::Templates templates;
    const std::string source = KVCC_SOURCE_DIR;
    for (const std::string& name : codegen::template_names()) {
      templates[name] = read_text_file(source + "/codegen/templates/" + name);
    }
    std::vector<std::string> command = {
        "c++",     "-x",      "c++",         "-std=c++20", "-ffp-contract=off", "-shared", "-fPIC", "-Wall",
        "-Wextra", "-Werror", "-I" + source, "-o",         folder_ / "units.so"};
    command.insert(command.end(), flags.begin(), flags.end());
    for (const codegen::KernelSpec& spec : plan.kernels) {
      write_text_file(folder_ / spec.name + ".cu", codegen::emit_unit(artifact, spec, templates, "0.0.0"));
      command.push_back(folder_ / spec.name + ".cu");
    }
    const ProcessResult result = run_process(command);
    if (result.status != 0) throw std::runtime_error(result.output);
    handle_ = dlopen((folder_ / "units.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }
  ~UnitLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  UnitLibrary(const UnitLibrary&) = delete;
  UnitLibrary& operator=(const UnitLibrary&) = delete;

  void* find(const std::string& symbol) const {
    void* found = dlsym(handle_, symbol.c_str());
    if (found == nullptr) throw std::runtime_error("no " + symbol);
    return found;
  }

 private:
  TemporaryFolder folder_;
  void* handle_ = nullptr;
};

/// One layer of an artifact's tables, as quantisers take them.
inline LevelTable layer_table(const codegen::TensorTables& tables, int layer, int heads) {
  LevelTable table;
  table.heads = heads;
  table.stride = tables.codes;
  const auto first = tables.levels.begin() + layer * heads * tables.codes;
  table.levels.assign(first, first + heads * tables.codes);
  table.bits.assign(tables.bits.begin() + layer * heads, tables.bits.begin() + (layer + 1) * heads);
  return table;
}

}  // namespace kvcc::made
