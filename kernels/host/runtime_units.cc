#include "kernels/host/runtime_units.h"

#include <dlfcn.h>

#include <algorithm>
#include <set>
#include <utility>

#include "formats/core/error.h"
#include "kernels/cpu/vector_units.h"

namespace kvcc::host {
namespace {

constexpr int kFamilies = KVCC_CPU_COPY_PAGES + 1;
constexpr const char* kNames[kFamilies] = {"pack_key select", "pack_key",       "pack_value select", "pack_value",
                                           "key_scores",      "value_mix",      "value_mix merge",   "attention",
                                           "attention merge", "dequantise_key", "dequantise_value",  "copy_pages"};

KvccCpuTensor tensor_of(const PackedTensor& tensor) {
  return {tensor.head_dim, tensor.token_axis ? KVCC_AXIS_TOKEN : KVCC_AXIS_CHANNEL,
          tensor.sparse ? KVCC_SPARSE_LISTED : KVCC_SPARSE_NONE};
}

/// Widths that a family's units must serve: of the keys, the values, both, or none (0).
std::set<std::pair<int, int>> widths_of(const RuntimeArtifact& artifact, int family) {
  std::set<std::pair<int, int>> widths;
  for (size_t i = 0; i < artifact.key.bits.size(); ++i) {
    const int key = artifact.key.bits[i], value = artifact.value.bits[i];
    switch (family) {
      case KVCC_CPU_PACK_KEY_SELECT:
      case KVCC_CPU_PACK_KEY:
      case KVCC_CPU_DEQUANTISE_KEY:
        widths.insert({key, 0});
        break;
      case KVCC_CPU_PACK_VALUE_SELECT:
      case KVCC_CPU_PACK_VALUE:
      case KVCC_CPU_DEQUANTISE_VALUE:
        widths.insert({0, value});
        break;
      case KVCC_CPU_ATTENTION:
      case KVCC_CPU_ATTENTION_MERGE:
        widths.insert({key, value});
        break;
      default:
        widths.insert({0, 0});
    }
  }
  return widths;
}

/// Families that the runtime calls for this artifact.
std::vector<int> families_of(const RuntimeArtifact& artifact) {
  std::vector<int> families = {KVCC_CPU_PACK_KEY,        KVCC_CPU_PACK_VALUE,     KVCC_CPU_ATTENTION,
                               KVCC_CPU_ATTENTION_MERGE, KVCC_CPU_DEQUANTISE_KEY, KVCC_CPU_DEQUANTISE_VALUE,
                               KVCC_CPU_COPY_PAGES};
  if (artifact.key.token_axis) families.push_back(KVCC_CPU_PACK_KEY_SELECT);
  if (artifact.value.token_axis) families.push_back(KVCC_CPU_PACK_VALUE_SELECT);
  return families;
}

/// Layer of a family's parameters; 0 for copy_pages, which knows none.
int layer_of(int family, const void* params) {
  switch (family) {
    case KVCC_CPU_KEY_SCORES:
      return static_cast<const KvccMmaKeyScoresParams*>(params)->cache.layer;
    case KVCC_CPU_VALUE_MIX:
    case KVCC_CPU_VALUE_MERGE:
      return static_cast<const KvccValueMixParams*>(params)->cache.layer;
    case KVCC_CPU_ATTENTION:
    case KVCC_CPU_ATTENTION_MERGE:
      return static_cast<const KvccAttentionParams*>(params)->key.layer;
    case KVCC_CPU_DEQUANTISE_KEY:
    case KVCC_CPU_DEQUANTISE_VALUE:
      return static_cast<const KvccDequantiseParams*>(params)->cache.layer;
    case KVCC_CPU_COPY_PAGES:
      return 0;
    default:
      return static_cast<const KvccPackParams*>(params)->cache.layer;
  }
}

std::string width_text(std::pair<int, int> widths) {
  std::string text;
  if (widths.first > 0) text += " keys of " + std::to_string(widths.first) + " bits";
  if (widths.second > 0)
    text += (text.empty() ? " values of " : " and values of ") + std::to_string(widths.second) + " bits";
  return text.empty() ? "" : " for" + text;
}

}  // namespace

RuntimeUnits::RuntimeUnits(const RuntimeArtifact& artifact, const std::string& library, int arithmetic)
    : artifact_(artifact) {
  const int rope = artifact.rotary_dim == 0             ? KVCC_ROPE_NONE
                   : artifact.rope.kind == "half-split" ? KVCC_ROPE_HALF
                                                        : KVCC_ROPE_INTERLEAVED;
  config_ = {tensor_of(artifact.key), tensor_of(artifact.value), rope, artifact.rotary_dim, KVCC_DTYPE_F32};
  tables_.key_levels = artifact.key.levels.data();
  tables_.value_levels = artifact.value.levels.data();
  tables_.key_bits = artifact.key.bits.data();
  tables_.value_bits = artifact.value.bits.data();
  tables_.key_codes = artifact.key.codes;
  tables_.value_codes = artifact.value.codes;
  tables_.arithmetic = arithmetic;
  if (artifact.key.is_vector() && !library.empty()) {
    throw Error(ErrorKind::usage, library, "a library of units for scheme " + short_name(artifact.scheme),
                "the built-in units: those of vector codebooks are not compiled apart", "leave the library out");
  }
  if (artifact.key.is_vector() && arithmetic != KVCC_ARITHMETIC_F32) {
    throw Error(
        ErrorKind::usage, "arithmetic",
        std::string(arithmetic == KVCC_ARITHMETIC_F64 ? "f64" : "i16") + " for scheme " + short_name(artifact.scheme),
        "f32, which alone units of vector codebooks have");
  }
  if (!library.empty()) load(artifact, library);
}

void RuntimeUnits::load(const RuntimeArtifact& artifact, const std::string& path) {
  // A name without a slash would be looked for in the system's folders.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  handle_ = {::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL), [](void* handle) {
               if (handle != nullptr) ::dlclose(handle);
             }};
  const char* const cure = "kvcc compile ARTIFACT --arch cpu makes one";
  if (handle_ == nullptr) {
    const char* why = ::dlerror();
    throw bad_input(path, why != nullptr ? why : "can't be loaded", "a library of CPU units", cure);
  }
  const auto function = reinterpret_cast<KvccCpuLibraryFunction>(::dlsym(handle_.get(), KVCC_CPU_LIBRARY_SYMBOL));
  const KvccCpuLibrary* const library = function != nullptr ? function() : nullptr;
  if (library == nullptr) {
    throw bad_input(path, "no " KVCC_CPU_LIBRARY_SYMBOL " in it", "a library of CPU units", cure);
  }
  if (library->size < sizeof(KvccCpuLibrary) || library->contract != KVCC_CPU_CONTRACT) {
    throw bad_input(path, "of contract " + std::to_string(library->contract), std::to_string(KVCC_CPU_CONTRACT),
                    "compile it again with this release");
  }
  if (library->content_sha256 == nullptr || artifact.content_sha256 != library->content_sha256) {
    throw Error(
        ErrorKind::usage, path,
        "made of the artifact " + std::string(library->content_sha256 != nullptr ? library->content_sha256 : "?"),
        artifact.content_sha256 + ", the content_sha256 of " + artifact.name, "compile that one");
  }
  if (library->layers != artifact.shape.layers || library->heads != artifact.shape.kv_heads) {
    throw bad_input(path, std::to_string(library->layers) + " layers of " + std::to_string(library->heads) + " heads",
                    std::to_string(artifact.shape.layers) + " of " + std::to_string(artifact.shape.kv_heads));
  }
  find(artifact, path, *library);
}

void RuntimeUnits::find(const RuntimeArtifact& artifact, const std::string& path, const KvccCpuLibrary& library) {
  units_.resize(kFamilies);
  for (const int family : families_of(artifact)) {
    for (const auto& widths : widths_of(artifact, family)) {
      // copy_pages depends on no choice; all others read or write f32 here.
      const bool any_dtype = family == KVCC_CPU_COPY_PAGES;
      KvccCpuUnit found = nullptr;
      bool other_dtype = false;
      for (int32_t i = 0; i < library.count && found == nullptr; ++i) {
        const KvccCpuLibraryUnit& unit = library.units[i];
        const auto serves = [](int32_t bits, int wanted) { return bits == wanted || bits == 0; };
        if (unit.family != family || !serves(unit.key_bits, widths.first)) continue;
        if (!serves(unit.value_bits, widths.second)) continue;
        if (any_dtype || unit.dtype == KVCC_DTYPE_F32) {
          found = unit.run;
        } else {
          other_dtype = true;
        }
      }
      if (found == nullptr) {
        throw Error(
            ErrorKind::usage, path,
            "no unit of " + std::string(kNames[family]) + width_text(widths) + (other_dtype ? " that takes f32" : ""),
            "all families, with --dtype f32", "compile it without --families");
      }
      std::vector<KvccCpuUnit>& units = units_[family];
      if (std::find(units.begin(), units.end(), found) == units.end()) units.push_back(found);
    }
  }
}

void RuntimeUnits::run(int family, const void* params, uint32_t first, uint32_t last,
                       const BlockRopeTables* rope) const {
  if (first >= last) return;
  if (artifact_.key.is_vector()) return run_vector(family, params, first, last, rope);
  KvccCpuTables tables = tables_;
  if (rope != nullptr) {
    tables.relative_cosine = rope->relative_cosine_f32.data();
    tables.relative_sine = rope->relative_sine_f32.data();
  }
  // Only the built-in units have attention in double.
  if (handle_ == nullptr || (family == KVCC_CPU_ATTENTION && tables_.arithmetic == KVCC_ARITHMETIC_F64)) {
    kvcc_cpu_run(family, &config_, params, &tables, first, last);
    return;
  }
  for (const KvccCpuUnit unit : units_[family]) unit(params, &tables, first, last);
}

void RuntimeUnits::run_vector(int family, const void* params, uint32_t first, uint32_t last,
                              const BlockRopeTables* rope) const {
  const int layer = layer_of(family, params);
  KvccVectorTables tables{};
  tables.key = &artifact_.key.vectors[layer].tensor();
  tables.value = &artifact_.value.vectors[layer].tensor();
  tables.rope = config_.rope;
  tables.rotary_dim = config_.rotary_dim;
  tables.dtype = config_.dtype;
  if (rope != nullptr) {
    tables.relative_cosine = rope->relative_cosine_f32.data();
    tables.relative_sine = rope->relative_sine_f32.data();
  }
  kvcc_cpu_run_vector(family, params, &tables, first, last);
}

}  // namespace kvcc::host
