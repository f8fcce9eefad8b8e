#include "kernels/host/runtime_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/text.h"
#include "kernels/host/runtime_metadata.h"
#include "kernels/host/runtime_page_file.h"

namespace kvcc::host {
namespace {

static_assert(std::endian::native == std::endian::little, "files are written as memory has them");

using Metadata = std::map<std::string, std::string>;
using Sink = std::function<void(const void* data, size_t bytes)>;

constexpr const char* kChecksum = "content_sha256";

/// A tensor to write; `write` gives its bytes in order, each time the same.
struct FileTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  std::function<void(const Sink&)> write;
};

std::string tensor_name(int layer, const PagePool& pool, const char* part) {
  return "layers." + std::to_string(layer) + "." + pool.tensor().name() + "." + part;
}

std::string joined(const std::vector<int64_t>& numbers, char separator) {
  std::string text;
  for (const int64_t n : numbers) text += (text.empty() ? "" : std::string(1, separator)) + std::to_string(n);
  return text;
}

/// The byte string that content_sha256 is of: metadata without it, then tensors, each in order of names.
class Checksum {
 public:
  explicit Checksum(const Metadata& metadata) {
    for (const auto& [name, value] : metadata) {
      if (name == kChecksum) continue;
      sha_.update("metadata " + name + " " + std::to_string(value.size()) + "\n" + value + "\n");
    }
  }
  void begin(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape, uint64_t bytes) {
    sha_.update("tensor " + name + " " + dtype + " " + joined(shape, 'x') + " " + std::to_string(bytes) + "\n");
  }
  void update(const void* data, size_t bytes) { sha_.update(data, bytes); }
  void end() { sha_.update("\n"); }
  std::string hex() { return sha_.hex(); }

 private:
  Sha256 sha_;
};

/// Tokens that page i of a cache with `packed` tokens in pages has.
int slots_of(int64_t packed, int64_t i) {
  return static_cast<int>(std::clamp<int64_t>(packed - i * mma::kPageTokens, 0, mma::kPageTokens));
}

int64_t packed_tokens(const RuntimeArtifact& artifact, int64_t tokens) {
  return std::max<int64_t>(0, tokens - artifact.scheme.sink - artifact.scheme.residual);
}

// ---- writing

/// Records that the fullest tile needs, so that the file depends on the content alone.
uint32_t least_capacity(const PagePool& pool) {
  uint32_t most = 0;
  for (int64_t i = 0; i < pool.pages(); ++i) most = std::max(most, most_records(pool.shape(), pool.page(i)));
  return (most + 3) / 4 * 4;
}

FileTensor pages_tensor(const RuntimeSequence& sequence, int layer, const PagePool& pool, uint32_t capacity) {
  const mma::PageShape shape = pool.tensor().page_shape(layer, sequence.artifact().shape.kv_heads, capacity);
  const auto page_bytes = static_cast<int64_t>(mma::page_bytes(shape));
  const int64_t packed = packed_tokens(sequence.artifact(), sequence.length(layer));
  return {tensor_name(layer, pool, "pages"),
          "U8",
          {pool.pages(), page_bytes},
          static_cast<uint64_t>(pool.pages() * page_bytes),
          [&pool, shape, packed](const Sink& sink) {
            std::vector<uint8_t> page(mma::page_bytes(shape));
            for (int64_t i = 0; i < pool.pages(); ++i) {
              copy_page(pool.shape(), pool.page(i), shape, page.data(), slots_of(packed, i));
              sink(page.data(), page.size());
            }
          }};
}

FileTensor exact_tensor(const RuntimeSequence& sequence, int layer, const PagePool& pool) {
  const int64_t rows = sequence.exact_rows_of(sequence.length(layer));
  const auto bytes = static_cast<uint64_t>(rows * pool.exact_row_bytes());
  return {tensor_name(layer, pool, "exact"),
          "F16",
          {rows, sequence.artifact().shape.kv_heads, pool.tensor().head_dim},
          bytes,
          [&pool, bytes](const Sink& sink) {
            if (bytes > 0) sink(pool.exact_row(0), bytes);
          }};
}

/// All tensors in order of names, which is their order in the file.
std::vector<FileTensor> tensors_of(const RuntimeSequence& sequence, std::span<const int32_t> ids, Metadata& metadata) {
  std::vector<FileTensor> tensors;
  for (const mma::Tensor which : {mma::Tensor::key, mma::Tensor::value}) {
    std::vector<int64_t> capacities;
    for (int l = 0; l < sequence.artifact().shape.layers; ++l) {
      const PagePool& pool = sequence.pool(l, which);
      capacities.push_back(least_capacity(pool));
      tensors.push_back(pages_tensor(sequence, l, pool, static_cast<uint32_t>(capacities.back())));
      tensors.push_back(exact_tensor(sequence, l, pool));
    }
    metadata[which == mma::Tensor::key ? "key_capacity" : "value_capacity"] = joined(capacities, ',');
  }
  tensors.push_back({"token_ids", "I32", {static_cast<int64_t>(ids.size())}, ids.size_bytes(), [ids](const Sink& sink) {
                       if (!ids.empty()) sink(ids.data(), ids.size_bytes());
                     }});
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return tensors;
}

/// What the artifact says of a cache file.
Metadata metadata_of(const RuntimeArtifact& artifact) {
  const auto text = [](int64_t n) { return std::to_string(n); };
  return {{"format", kCacheFormat},
          {"format_version", kCacheVersion},
          {"layout", artifact.layout()},
          {"artifact_sha256", artifact.content_sha256},
          {"model", artifact.model},
          {"scheme", to_string(artifact.scheme)},
          {"layers", text(artifact.shape.layers)},
          {"kv_heads", text(artifact.shape.kv_heads)},
          {"head_dim", text(artifact.shape.head_dim)},
          {"value_head_dim", text(artifact.shape.value_head_dim)},
          {"sink", text(artifact.scheme.sink)},
          {"residual", text(artifact.scheme.residual)}};
}

std::string header_text(const Metadata& metadata, const std::vector<FileTensor>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const FileTensor& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize(
      (sizeof(uint64_t) + text.size() + mma::kPageAlign - 1) / mma::kPageAlign * mma::kPageAlign - sizeof(uint64_t),
      ' ');  // so that the data start aligned
  return text;
}

void write_file(const std::string& path, const std::string& header, const std::vector<FileTensor>& tensors) {
  uint64_t needed = sizeof(uint64_t) + header.size();
  for (const FileTensor& tensor : tensors) needed += tensor.bytes;
  AtomicFile target(path);
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(target.temporary().c_str(), "wbe"), &std::fclose);
  if (file == nullptr) throw write_error(path, errno, needed);
  const Sink sink = [&](const void* data, size_t bytes) {
    if (std::fwrite(data, 1, bytes, file.get()) != bytes) throw write_error(path, errno, needed);
  };
  const uint64_t length = header.size();
  sink(&length, sizeof length);
  sink(header.data(), header.size());
  for (const FileTensor& tensor : tensors) tensor.write(sink);
  if (std::fclose(file.release()) != 0) throw write_error(path, errno, needed);
  target.commit();
}

// ---- reading

class CacheReader {
 public:
  CacheReader(const RuntimeArtifact& artifact, const SafetensorsFile& file)
      : artifact_(artifact), file_(file), fields_(file) {}

  void check() {
    if (!file_.metadata().contains("format") || fields_.text("format") != kCacheFormat) {
      throw bad_input(file_.path(), "no packed cache", "a file that kvcc saved");
    }
    fields_.check_version("format_version", kCacheMajor);
    if (fields_.text("layout") != artifact_.layout()) {
      throw fields_.wrong("layout", fields_.text("layout"), artifact_.layout());
    }
    if (fields_.digest("artifact_sha256") != artifact_.content_sha256) {
      throw bad_input(file_.path(), "saved under the artifact " + fields_.text("artifact_sha256"),
                      artifact_.content_sha256 + ", the content_sha256 of " + artifact_.name,
                      "use the artifact that it was saved under");
    }
    check_checksum();
    for (const auto& [name, value] : metadata_of(artifact_)) {
      const bool same = name == "format_version" || fields_.text(name) == value;
      if (!same) throw fields_.wrong(name, fields_.text(name), value + ", as the artifact says");
    }
  }

  void fill(RuntimeSequence& sequence) const {
    const int64_t tokens = fields_.integer("tokens", 0, kMostTokens), layers = artifact_.shape.layers;
    const auto capacities = [&](const char* name, const PackedTensor& tensor) {
      return fields_.integers(name, layers, 0, tensor.sparse ? int64_t{mma::kPageTokens} * tensor.head_dim : 0);
    };
    const auto key = capacities("key_capacity", artifact_.key), value = capacities("value_capacity", artifact_.value);
    for (int l = 0; l < layers; ++l) {
      // Sizes are checked against the file before anything is allocated.
      const Parts of_key = parts(sequence, l, mma::Tensor::key, tokens, key[l]);
      const Parts of_value = parts(sequence, l, mma::Tensor::value, tokens, value[l]);
      sequence.restore_layer(l, tokens, static_cast<uint32_t>(key[l]), static_cast<uint32_t>(value[l]));
      copy(sequence, l, of_key, tokens);
      copy(sequence, l, of_value, tokens);
    }
    const SafeTensor& ids = fields_.tensor("token_ids", "I32", {-1});
    sequence.tokens().resize(ids.bytes.size() / sizeof(int32_t));
    if (!ids.bytes.empty()) std::memcpy(sequence.tokens().data(), ids.bytes.data(), ids.bytes.size());
  }

 private:
  struct Parts {
    const PagePool* pool;
    mma::PageShape shape;
    const SafeTensor *pages, *exact;
  };

  Parts parts(const RuntimeSequence& sequence, int layer, mma::Tensor which, int64_t tokens, int64_t capacity) const {
    const PagePool& pool = sequence.pool(layer, which);
    const std::string at = which == mma::Tensor::key ? "key_capacity" : "value_capacity";
    if (capacity % 4 != 0) throw fields_.wrong(at, std::to_string(capacity), "multiples of 4");
    const int heads = artifact_.shape.kv_heads;
    Parts parts{&pool, pool.tensor().page_shape(layer, heads, static_cast<uint32_t>(capacity)), nullptr, nullptr};
    parts.pages = &fields_.tensor(tensor_name(layer, pool, "pages"), "U8",
                                  {sequence.pages_of(tokens), static_cast<int64_t>(mma::page_bytes(parts.shape))});
    parts.exact = &fields_.tensor(tensor_name(layer, pool, "exact"), "F16",
                                  {sequence.exact_rows_of(tokens), heads, pool.tensor().head_dim});
    return parts;
  }

  void copy(const RuntimeSequence& sequence, int layer, const Parts& parts, int64_t tokens) const {
    const PagePool& pool = *parts.pool;
    const int64_t packed = packed_tokens(artifact_, tokens);
    const auto* const pages = reinterpret_cast<const uint8_t*>(parts.pages->bytes.data());
    for (int64_t i = 0; i < sequence.pages_of(tokens); ++i) {
      const uint8_t* const page = pages + i * mma::page_bytes(parts.shape);
      const std::string place = file_.path() + ": " + parts.pages->name + ", page " + std::to_string(i);
      check_page(pool.tensor(), layer, parts.shape, page, slots_of(packed, i), place);
      copy_page(parts.shape, page, pool.shape(), pool.page(i), slots_of(packed, i));
    }
    if (parts.exact->bytes.empty()) return;
    uint16_t* const rows = pool.exact_row(0);
    std::memcpy(rows, parts.exact->bytes.data(), parts.exact->bytes.size());
    for (size_t i = 0; i < parts.exact->bytes.size() / 2; ++i) {
      if ((rows[i] & 0x7c00u) != 0x7c00u) continue;
      throw fields_.wrong(parts.exact->name, "element " + std::to_string(i) + " is not finite", "finite values");
    }
  }

  void check_checksum() const {
    std::map<std::string, const SafeTensor*> tensors;
    for (const SafeTensor& tensor : file_.tensors()) tensors[tensor.name] = &tensor;
    Checksum checksum(file_.metadata());
    for (const auto& [name, tensor] : tensors) {
      checksum.begin(name, tensor->dtype, tensor->shape, tensor->bytes.size());
      checksum.update(tensor->bytes.data(), tensor->bytes.size());
      checksum.end();
    }
    const std::string found = checksum.hex();
    if (found != fields_.digest(kChecksum)) {
      throw fields_.wrong(kChecksum, fields_.text(kChecksum), found + ", of what the file holds",
                          "the file is damaged: save it again");
    }
  }

  const RuntimeArtifact& artifact_;
  const SafetensorsFile& file_;
  FileFields fields_;
};

}  // namespace

void save_cache(const RuntimeSequence& sequence, const std::string& path, std::span<const int32_t> token_ids) {
  const RuntimeArtifact& artifact = sequence.artifact();
  const int64_t tokens = sequence.length(0);
  for (int l = 1; l < artifact.shape.layers; ++l) {
    if (sequence.length(l) == tokens) continue;
    throw Error(ErrorKind::usage, "cache",
                "layer " + std::to_string(l) + " holds " + std::to_string(sequence.length(l)) + " tokens",
                std::to_string(tokens) + ", as layer 0", "append to all layers before saving");
  }
  Metadata metadata = metadata_of(artifact);
  metadata["tokens"] = std::to_string(tokens);
  const std::vector<FileTensor> tensors = tensors_of(sequence, token_ids, metadata);
  Checksum checksum(metadata);
  for (const FileTensor& tensor : tensors) {
    checksum.begin(tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
    tensor.write([&](const void* data, size_t bytes) { checksum.update(data, bytes); });
    checksum.end();
  }
  metadata[kChecksum] = checksum.hex();
  write_file(path, header_text(metadata, tensors), tensors);
}

std::unique_ptr<RuntimeSequence> load_cache(std::shared_ptr<const RuntimeArtifact> artifact, const std::string& path,
                                            const RuntimeOptions& options) {
  const SafetensorsFile file(path);
  CacheReader reader(*artifact, file);
  reader.check();
  auto sequence = std::make_unique<RuntimeSequence>(std::move(artifact), options);
  reader.fill(*sequence);
  return sequence;
}

}  // namespace kvcc::host
