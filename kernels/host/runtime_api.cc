// The C functions of kvcc_runtime.h: arguments are checked, exceptions become codes and a message of the thread.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>

#include "formats/core/error.h"
#include "kernels/host/kvcc_runtime.h"
#include "kernels/host/runtime_file.h"
#include "kernels/host/runtime_sequence.h"

struct KvccArtifact {
  std::shared_ptr<const kvcc::host::RuntimeArtifact> artifact;
};
struct KvccSequence {
  std::unique_ptr<kvcc::host::RuntimeSequence> sequence;
};

namespace {

using kvcc::Error;
using kvcc::ErrorKind;
using kvcc::host::RuntimeOptions;

constexpr int kMostThreads = 1024;

/// Not a std::string: a message must not need memory when there is none.
struct Message {
  char text[2048] = "";
  void set(const char* from) {
    size_t size = std::min(std::strlen(from), sizeof text - 1);
    if (from[size] != '\0') {  // cut before the character that does not fit
      while (size > 0 && (static_cast<unsigned char>(from[size]) & 0xc0) == 0x80) --size;
    }
    std::memcpy(text, from, size);
    text[size] = '\0';
  }
};
thread_local Message message;

int code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return KVCC_USAGE;
    case ErrorKind::bad_input:
      return KVCC_BAD_INPUT;
    case ErrorKind::resource:
      return KVCC_NO_MEMORY;
    default:
      return KVCC_FAILED;
  }
}

/// Runs `body` and turns what it throws into a code.
template <class Body>
int guarded(const Body& body) noexcept {
  try {
    body();
    return KVCC_OK;
  } catch (const Error& error) {
    message.set(error.what());
    return code_of(error.kind());
  } catch (const std::bad_alloc&) {
    message.set("memory ran out");
    return KVCC_NO_MEMORY;
  } catch (const std::exception& error) {
    message.set(error.what());
    return KVCC_FAILED;
  } catch (...) {
    message.set("an unknown failure");
    return KVCC_FAILED;
  }
}

void want(const void* pointer, const char* argument) {
  if (pointer == nullptr) throw Error(ErrorKind::usage, argument, "null", "a pointer");
}
/// Arrays of `count` items may be null when there are none.
void want(const void* pointer, int64_t count, const char* argument) {
  if (count != 0) want(pointer, argument);
}

RuntimeOptions options_of(const KvccOptions* given) {
  const auto refuse = [](const char* member, const std::string& found, const std::string& wanted) {
    throw Error(ErrorKind::usage, std::string("options.") + member, found, wanted);
  };
  RuntimeOptions options;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (given == nullptr) return options;
  if (given->size < sizeof(KvccOptions)) {
    refuse("size", std::to_string(given->size), std::to_string(sizeof(KvccOptions)) + ", sizeof(KvccOptions)");
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(KvccOptions); i < given->size; ++i) {
    if (bytes[i] != 0) refuse("size", std::to_string(given->size), "members that this release knows, or zeros");
  }
  if (given->threads < 0 || given->threads > kMostThreads) {
    refuse("threads", std::to_string(given->threads), "0 to " + std::to_string(kMostThreads));
  }
  if (given->max_tokens < 0 || given->max_tokens > kvcc::host::kMostTokens) {
    refuse("max_tokens", std::to_string(given->max_tokens), "0 to " + std::to_string(kvcc::host::kMostTokens));
  }
  if (given->arithmetic < KVCC_ARITHMETIC_F32 || given->arithmetic > KVCC_ARITHMETIC_F64) {
    refuse("arithmetic", std::to_string(given->arithmetic), "0 (f32), 1 (16-bit fixed point) or 2 (f64)");
  }
  if (given->reserved != 0) refuse("reserved", std::to_string(given->reserved), "0");
  if (given->threads > 0) options.threads = given->threads;
  options.max_tokens = given->max_tokens;
  options.arithmetic = given->arithmetic;
  if (given->units != nullptr) {
    options.units = given->units;
    if (options.units.empty()) refuse("units", "empty", "the path of a library, or null");
  }
  return options;
}

kvcc::host::RuntimeSequence& of(KvccSequence* sequence) {
  want(sequence, "sequence");
  return *sequence->sequence;
}
const kvcc::host::RuntimeSequence& of(const KvccSequence* sequence) {
  want(sequence, "sequence");
  return *sequence->sequence;
}

}  // namespace

const char* kvcc_error_message(void) { return message.text; }

const char* kvcc_version(void) { return KVCC_VERSION; }

int kvcc_artifact_open(const char* path, KvccArtifact** artifact) {
  return guarded([&] {
    want(artifact, "artifact");
    *artifact = nullptr;
    want(path, "path");
    *artifact = new KvccArtifact{kvcc::host::open_artifact(path)};
  });
}

int kvcc_artifact_open_memory(const void* bytes, uint64_t size, const char* name, KvccArtifact** artifact) {
  return guarded([&] {
    want(artifact, "artifact");
    *artifact = nullptr;
    want(bytes, "bytes");
    want(name, "name");
    *artifact = new KvccArtifact{kvcc::host::open_artifact(name, {static_cast<const std::byte*>(bytes), size})};
  });
}

int kvcc_artifact_shape(const KvccArtifact* artifact, KvccShape* shape) {
  return guarded([&] {
    want(artifact, "artifact");
    want(shape, "shape");
    const kvcc::host::RuntimeArtifact& a = *artifact->artifact;
    *shape = {a.shape.layers,         a.shape.query_heads, a.shape.kv_heads, a.shape.head_dim,
              a.shape.value_head_dim, a.rotary_dim,        a.scheme.sink,    a.scheme.residual};
  });
}

void kvcc_artifact_free(KvccArtifact* artifact) { delete artifact; }

int kvcc_create(const KvccArtifact* artifact, const KvccOptions* options, KvccSequence** sequence) {
  return guarded([&] {
    want(sequence, "sequence");
    *sequence = nullptr;
    want(artifact, "artifact");
    auto made = std::make_unique<kvcc::host::RuntimeSequence>(artifact->artifact, options_of(options));
    *sequence = new KvccSequence{std::move(made)};
  });
}

void kvcc_free(KvccSequence* sequence) { delete sequence; }

int kvcc_append(KvccSequence* sequence, int32_t layer, const float* key, const float* value, int64_t count) {
  return guarded([&] {
    auto& s = of(sequence);
    want(key, count, "key");
    want(value, count, "value");
    s.append(layer, key, value, count);
  });
}

int kvcc_attend(KvccSequence* sequence, int32_t layer, const float* query, float multiplier, int64_t window,
                float* out) {
  return guarded([&] {
    auto& s = of(sequence);
    want(query, "query");
    want(out, "out");
    s.attend(layer, query, multiplier, window, out);
  });
}

int kvcc_append_attend(KvccSequence* sequence, int32_t layer, const float* key, const float* value, const float* query,
                       int64_t count, float multiplier, int64_t window, float* out) {
  return guarded([&] {
    auto& s = of(sequence);
    want(key, count, "key");
    want(value, count, "value");
    want(query, count, "query");
    want(out, count, "out");
    s.append_attend(layer, key, value, query, count, multiplier, window, out);
  });
}

int kvcc_rotate(const KvccSequence* sequence, float* query, int64_t first, int64_t count) {
  return guarded([&] {
    const auto& s = of(sequence);
    want(query, count, "query");
    s.rotate(-1, query, first, count);
  });
}

int kvcc_rotate_layer(const KvccSequence* sequence, int32_t layer, float* query, int64_t first, int64_t count) {
  return guarded([&] {
    const auto& s = of(sequence);
    want(query, count, "query");
    if (layer < 0) throw Error(ErrorKind::usage, "layer", std::to_string(layer), "0 or above");
    s.rotate(layer, query, first, count);
  });
}

int kvcc_read(const KvccSequence* sequence, int32_t layer, int64_t first, int64_t count, float* key, float* value) {
  return guarded([&] {
    want(sequence, "sequence");
    sequence->sequence->read(layer, first, count, key, value);
  });
}

int64_t kvcc_length(const KvccSequence* sequence, int32_t layer) {
  if (sequence == nullptr || !sequence->sequence->has_layer(layer)) return -1;
  return sequence->sequence->length(layer);
}

int kvcc_usage(const KvccSequence* sequence, KvccUsage* usage) {
  return guarded([&] {
    const auto& s = of(sequence);
    want(usage, "usage");
    *usage = s.usage();
  });
}

int kvcc_save(const KvccSequence* sequence, const char* path, const int32_t* tokens, int64_t count) {
  return guarded([&] {
    const auto& s = of(sequence);
    want(path, "path");
    if (count < 0) throw Error(ErrorKind::usage, "count", std::to_string(count), "0 or more");
    want(tokens, count, "tokens");
    kvcc::host::save_cache(s, path, {tokens, static_cast<size_t>(count)});
  });
}

int kvcc_load(const KvccArtifact* artifact, const char* path, const KvccOptions* options, KvccSequence** sequence) {
  return guarded([&] {
    want(sequence, "sequence");
    *sequence = nullptr;
    want(artifact, "artifact");
    want(path, "path");
    auto made = kvcc::host::load_cache(artifact->artifact, path, options_of(options));
    *sequence = new KvccSequence{std::move(made)};
  });
}

int kvcc_tokens(const KvccSequence* sequence, const int32_t** tokens, int64_t* count) {
  return guarded([&] {
    const auto& s = of(sequence);
    want(tokens, "tokens");
    want(count, "count");
    *count = static_cast<int64_t>(s.tokens().size());
    *tokens = *count > 0 ? s.tokens().data() : nullptr;
  });
}
