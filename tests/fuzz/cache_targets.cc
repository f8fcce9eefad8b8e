// What the runtime reads: its artifact, which is the safetensors export, and cache files.
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "formats/core/error.h"
#include "formats/core/json.h"
#include "formats/export/export.h"
#include "tests/fuzz/targets.h"
#include "tests/kernels/runtime/files.h"

using namespace kvcc;
using namespace kvcc::fuzz;

namespace {

void need(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// The C interface must say why it refuses, and what it takes must be usable.
void load_cache(const test::Example& example, const std::string& file) {
  const test::Sequence sequence = test::load(example.artifact(), file);
  if (sequence == nullptr) {
    need(*kvcc_error_message() != '\0', "refused without a message");
    return;
  }
  std::vector<float> query(16, 1.0f), out(16);
  const int code = kvcc_attend(sequence.get(), 0, query.data(), 0, 0, out.data());
  for (const float x : out) need(code != KVCC_OK || std::isfinite(x), "attention of an accepted file is not finite");
}

}  // namespace

/// A cache file as it is, and with the checksum of what it holds.
KVCC_FUZZ(cache_file) {
  static const test::Example example;
  const std::string file(input);
  load_cache(example, file);
  uint64_t length = 0;
  if (file.size() < 8) throw bad_input("cache", "too short");
  std::memcpy(&length, file.data(), sizeof length);
  if (length > file.size() - 8) throw bad_input("cache", "truncated");
  nlohmann::ordered_json header = parse_json<nlohmann::ordered_json>(std::string_view(file).substr(8, length), "cache");
  const std::string data = file.substr(8 + length);
  std::string sealed;
  try {
    sealed = test::file_of(header, data);
  } catch (const std::exception&) {
    throw bad_input("cache", "no header of a cache file");
  }
  load_cache(example, sealed);
}

/// The runtime's artifact: the safetensors export.
KVCC_FUZZ(artifact) {
  check_safetensors(put_file("fuzz.safetensors", input));
  KvccArtifact* artifact = nullptr;
  const int code = kvcc_artifact_open((scratch_folder() + "/fuzz.safetensors").c_str(), &artifact);
  const test::Artifact owned(artifact);
  if (code != KVCC_OK) throw bad_input("artifact", kvcc_error_message());
}
