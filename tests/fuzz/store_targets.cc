// kvcc's own files: artifacts and their exports, activations, kernels.json, schemes.
#include <filesystem>
#include <stdexcept>

#include "formats/core/json.h"
#include "formats/core/scheme.h"
#include "formats/export/export.h"
#include "formats/store/activations.h"
#include "formats/store/activations_manifest.h"
#include "formats/store/activations_shard.h"
#include "formats/store/codebook.h"
#include "formats/store/elf.h"
#include "formats/store/kernels_manifest.h"
#include "formats/store/tree.h"
#include "formats/store/weights_file.h"
#include "tests/formats/store/made.h"
#include "tests/fuzz/targets.h"

using namespace kvcc;
using namespace kvcc::fuzz;

namespace {

void need(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

}  // namespace

/// Any HDF5 file, and the artifact in it. What is accepted can be written, and then again with the same content.
KVCC_FUZZ(codebook) {
  const std::string path = put_file("fuzz.kvcb", input);
  const std::vector<std::string> problems = validate_codebook(path);
  if (problems.empty()) {
    Codebook codebook = read_codebook(path);  // perhaps of an earlier minor version: written, it is of this one
    const std::string again = put_file("again.kvcb", "");
    write_codebook(again, codebook);
    const std::string content = codebook.content_sha256;
    codebook = read_codebook(again);
    write_codebook(again, codebook);
    need(codebook.content_sha256 == content, "an accepted artifact changes when it is written again");
    return;
  }
  const Tree tree = hdf5_to_tree(std::as_bytes(std::span(input)), "fuzz");
  const std::string image = tree_to_hdf5(tree);
  need(hdf5_to_tree(std::as_bytes(std::span(image)), "again") == tree, "a tree changes on its way");
}

/// Quantised weights: what is accepted can be written, and is then the same.
KVCC_FUZZ(weights) {
  const std::string path = put_file("fuzz.kvcw", input);
  if (!validate_weights(path).empty()) return;
  QuantisedWeights weights = read_weights(path);
  const std::string again = put_file("again.kvcw", "");
  AtomicFile file(again);
  write_weights(file, again, weights);
  need(read_weights(again).matrices == weights.matrices, "accepted weights change when they are written again");
}

KVCC_FUZZ(shard) {
  static const ActivationsSettings settings = made::settings();
  shard_of_image(settings, 0, 0, std::as_bytes(std::span(input)), "fuzz.h5");
}

/// manifest.json, then, after a line of four dashes, the journal.
KVCC_FUZZ(manifest) {
  constexpr std::string_view kCut = "\n----\n";
  const size_t cut = input.find(kCut);
  const std::string folder = scratch_folder() + "/acts";
  put_file("acts/manifest.json", input.substr(0, cut));
  put_file("acts/manifest.journal", cut == std::string_view::npos ? "" : input.substr(cut + kCut.size()));
  const ActivationsManifest manifest = read_activations_manifest(folder);
  need(!validate_activations(folder).empty(), "sound without its shards");
  try {
    const ActivationsReader reader(folder);
  } catch (const Error&) {
    return;  // its shards are missing
  }
  need(false, "read without its shards");
}

KVCC_FUZZ(kernels_json) {
  put_file("kernels/kernels.json", input);
  const std::string folder = scratch_folder() + "/kernels";
  const KernelsManifest manifest = read_kernels_manifest(folder);
  need(to_json(kernels_from_json(to_json(manifest), "again")) == to_json(manifest), "a manifest changes on its way");
  validate_kernels(folder);
}

KVCC_FUZZ(cubin) { elf_fault(input); }

KVCC_FUZZ(scheme) {
  const Scheme scheme = parse_scheme(input);
  need(to_string(parse_scheme(to_string(scheme))) == to_string(scheme), "a scheme changes on its way");
  parse_json<nlohmann::json>(scheme_json(scheme), "scheme_json");
}

KVCC_FUZZ(npz) { check_npz(put_file("fuzz.npz", input)); }
