// A model on disk: one GGUF file, or a Hugging Face directory. Both give the same names, shapes and layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/core/model_info.h"
#include "formats/weights/decoder_config.h"

namespace kvcc {

/// The last ones are not GGUF's: FP8 with a scale a block, and 4-bit integers with scale and zero-point a group.
enum class WeightType : uint8_t {
  f32,
  f16,
  bf16,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q1_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  tq1_0,
  tq2_0,
  iq1_s,
  iq1_m,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  iq4_nl,
  iq4_xs,
  mxfp4,
  nvfp4,
  fp8_block,
  gptq,
  awq
};
const char* weight_type_name(WeightType type);  ///< "F32", "Q4_1", …

struct TensorInfo {
  std::string name;            ///< Hugging Face name, e.g. "model.layers.3.self_attn.k_proj.weight"
  std::vector<int64_t> shape;  ///< outermost first, as in safetensors
  WeightType type = WeightType::f32;
  int64_t elements() const;
};

/// Tensors by name. Weights are mapped; only what is asked for is converted. Rows of q and k are in half-split order
/// (GGUF's permutation for Llama is undone here). Not copied: raw() points into the map.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const std::vector<TensorInfo>& tensors() const = 0;  ///< ascending names
  const TensorInfo* find(const std::string& name) const;       ///< nullptr when absent
  /// Dequantises to float32. out has elements() values. Throws Error(bad_input) that names file and tensor.
  virtual void read(const std::string& name, std::span<float> out) const = 0;
  /// The mapped bytes when they can be used as they are (f32, f16, bf16, no permutation); else an empty span.
  virtual std::span<const std::byte> raw(const std::string& name) const = 0;
  /// The process no longer holds the pages that it read of the files; they come back when they are read again. From
  /// any thread.
  virtual void release() const = 0;
  /// Throws Error(bad_input) when a file was written to since it was opened or, with `name_too`, another took its name.
  virtual void check_unchanged(bool name_too) const = 0;
};

/// What a tokenizer is made from: the files of a directory, or GGUF metadata. Of two files tokenizer.json counts.
struct TokenizerSource {
  std::string json_path;           ///< tokenizer.json of a Hugging Face directory, may be ""
  std::string sentencepiece_path;  ///< tokenizer.model, may be ""
  std::string config_json_path;    ///< tokenizer_config.json, may be ""
  std::string added_json_path;     ///< added_tokens.json, may be ""
  // GGUF metadata
  std::string gguf_model, gguf_pre;  ///< tokenizer.ggml.model ("gpt2"), tokenizer.ggml.pre ("smollm")
  std::vector<std::string> gguf_tokens, gguf_merges;
  std::vector<int32_t> gguf_token_types;
  std::vector<double> gguf_scores;                           ///< tokenizer.ggml.scores
  std::string gguf_charsmap;                                 ///< tokenizer.ggml.precompiled_charsmap
  int64_t gguf_space_prefix = -1, gguf_removes_spaces = -1;  ///< add_space_prefix, remove_extra_whitespaces: as below
  int64_t gguf_add_bos = -1;                                 ///< tokenizer.ggml.add_bos_token: 0, 1, or -1 absent
  int64_t bos_id = -1, eos_id = -1;
  std::string place;  ///< for errors: the file
};

struct ModelFiles {
  std::string path;
  DecoderConfig config;
  std::unique_ptr<TensorSource> tensors;
  TokenizerSource tokenizer;
  std::string dtype;  ///< most frequent weight type by elements, e.g. "Q4_1"
  std::vector<std::string> weight_files;
  std::string left_out;  ///< what of the files is not used, for people; "" when all is
};

/// Opens `path` (a .gguf file or a directory). Checks every tensor's bounds against its file, and that the tensors the
/// architecture needs are there with the right shapes (all missing ones are listed). Throws Error(bad_input).
ModelFiles open_model(const std::string& path);

/// What of `config` ModelInfo does not say, as a JSON object with members in a fixed order: with ModelInfo it is all
/// that decides what the decoder computes. A Hugging Face directory has it in config.json, which no hash of weights
/// covers.
std::string decoder_json(const DecoderConfig& config);

/// The description stored in artifacts. Hashes the weight files (a few hundred MB a second). Throws Error(bad_input)
/// when one is not the file that was opened any more.
ModelInfo model_info(const ModelFiles& files);

}  // namespace kvcc
