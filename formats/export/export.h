// A codebook artifact in the formats of others. Each has a page, formats/spec/export-NAME.md. Equal artifacts give
// equal bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/store/codebook.h"
#include "formats/store/tree.h"

namespace kvcc {

struct ExportedTensor {
  std::string name;   ///< dataset's path without the leading slash, "key/codebook"
  std::string dtype;  ///< as the format calls it: "F32" in safetensors, "<f4" in npz
  std::vector<int64_t> shape;
  uint64_t offset = 0;  ///< of its bytes in the file, where the format is binary
};

/// The artifact's tree with a group /export whose attributes spell out what a reader without kvcc has to know: channel
/// layout, where keys are taken, biases, and what scales mean. What the artifact doesn't say is "unknown".
Tree describe_export(Tree tree, const Codebook& codebook);

/// An attribute as text, for formats whose metadata know nothing else: lists joined by commas.
std::string attribute_text(const TreeValue& value);

/// Attributes of groups by dotted name: "scheme", "model.name", "export.channel_layout".
std::vector<std::pair<std::string, const TreeValue*>> named_attributes(const Tree& tree);

/// The safetensors file of an artifact's tree: every dataset as a tensor; every attribute of the root, the model and
/// the provenance as text in __metadata__ ("scheme", "model.name", "provenance.seed"). Tensors lie in order of
/// descending element size, then name, so that each is aligned. Equal trees give equal bytes.
std::string tree_to_safetensors(const Tree& tree);

/// The artifact as one JSON document: attributes by object, and each dataset with type, shape, axes, unit and its
/// values in one flat list (padding and other NaN as null).
std::string tree_to_json(const Tree& tree);

/// NumPy's .npz: every dataset as an array under its path, stored; "metadata" is the attributes as JSON bytes. Throws
/// Error(failed) beyond 4 GiB.
std::string tree_to_npz(const Tree& tree);

/// Whether GGUF files of the architecture hold the rows of q and k of each head interleaved. Throws Error(bad_input)
/// for architectures of which this is not known here.
bool gguf_interleaves_keys(const std::string& architecture);
/// The tree with everything per channel of keys in the order that the architecture's GGUF files have, and saying so.
Tree keys_as_in_gguf(Tree tree, const Codebook& codebook);
/// A GGUF file (version 3) of the tree: numbers as F32 tensors, attributes as typed metadata under "kvcc.". Throws
/// Error(failed) for numbers that F32 cannot hold exactly.
std::string tree_to_gguf(const Tree& tree);

/// A C99 header, which C++ and CUDA take too: geometry and identity as macros, codebooks, scales, zeros and thresholds
/// as const arrays. `prefix` begins every name. Throws Error(usage) when it is no identifier. Adds the arrays to
/// `listing`.
std::string codebook_to_header(const Codebook& codebook, const std::string& prefix,
                               std::vector<ExportedTensor>& listing);

/// The safetensors file of the FP8 scales that vLLM maps: model.layers.N.self_attn.{k,v}_scale, dequantisation
/// multipliers, [1] or with `per_head` [H]. `codebook`, read from `artifact`, has to hold ranges (stats/min,
/// stats/max). Throws Error(bad_input) for a scale that FP8 can't use, naming layer and head.
std::string codebook_to_vllm(const Tree& artifact, const Codebook& codebook, bool per_head);
/// What config.json needs for them: an object with quantization_config.kv_cache_scheme.
std::string vllm_cache_scheme(bool per_head);
/// Least multiplier for FP8 (e4m3, at most 448) that holds -range to range. Throws Error(bad_input) at `place` when it
/// is zero, negative, not finite or too small to divide by.
float fp8_scale(double range, const std::string& place);

/// Names and shapes that a safetensors file states, in order of their bytes. Throws Error(bad_input) naming `place` and
/// tensor when the header is truncated, no JSON, or its offsets don't fit shapes and file, or when an FP8 scale
/// (…k_scale, …v_scale) is not above 0 and finite.
std::vector<ExportedTensor> check_safetensors(const std::string& path);
/// Arrays of an .npz file, in order of its directory. Throws Error(bad_input) naming file and array for what is no such
/// file, is compressed, or whose sizes, offsets or checksums disagree.
std::vector<ExportedTensor> check_npz(const std::string& path);

}  // namespace kvcc
