// Which parts the decoders of each architecture have, under which names and in which shapes, and what their
// configuration says. Data: a new architecture is a new row of the table in architectures.cc (calib/model/README.md).
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "formats/weights/model_files.h"

namespace kvcc {

/// What a tensor does in the decoder. A layer runs the parts that it has.
enum class Part : uint8_t {
  embedding,
  final_norm,
  head,
  attention_norm,       ///< before attention
  attention_post_norm,  ///< of what attention adds
  mlp_norm,
  mlp_post_norm,
  query,
  key,
  value,
  query_key_value,  ///< the three as rows of one matrix
  query_norm,       ///< of each head, or of all of them together: by its shape
  key_norm,
  output,
  query_down,  ///< latent attention: to the query's latent and up from it
  query_down_norm,
  query_up,
  latent_down,  ///< to the latent and the rotary key
  latent_norm,
  latent_up,  ///< to the heads' keys and values
  convolution_in,
  convolution,
  convolution_out,
  gate,
  up,
  gate_up,  ///< the two as rows of one matrix
  down,
  router,
  router_bias,  ///< is added to the scores by which experts are chosen
  expert_gate,
  expert_up,
  expert_down,
  shared_gate,
  shared_up,
  shared_down,
  count
};

/// Extents that shapes are made of.
enum class Extent : uint8_t {
  none,
  one,
  hidden,
  vocab,
  query_rows,
  kv_rows,
  query_key_value_rows,
  attention_columns,  ///< what the output projection takes
  head_dim,
  feed_forward,
  gate_up_rows,
  experts,
  expert_feed_forward,
  shared_feed_forward,
  query_rank,
  latent,
  latent_down_rows,
  latent_up_rows,
  convolution,
  convolution_in_rows,
};

/// When a tensor is there.
enum class Presence : uint8_t { always, untied, attention, no_attention, dense, experts, sigmoid, compressed, plain };

/// Which of the configuration's biases goes with a matrix.
enum class Bias : uint8_t { none, attention, mlp };

struct TensorRule {
  Part part;
  const char* hf;    ///< the first "{}" stands for the layer, the second for the expert; without it there is one
  const char* gguf;  ///< likewise; experts are the slices of one tensor
  std::array<Extent, 3> shape;
  Presence presence = Presence::always;
  Bias bias = Bias::none;
};

/// How layers differ.
enum class Layers : uint8_t {
  alike,
  sliding,          ///< all have the window
  sliding_after,    ///< those from max_window_layers on, where use_sliding_window says so
  sliding_but_nth,  ///< all but every sliding_window_pattern-th
  rope_but_nth,     ///< no rotation in every no_rope_layer_interval-th
  convolutions,     ///< those that full_attn_idxs or layer_types do not name
};

enum class Biases : uint8_t { configured, always, never };  ///< of queries, keys and values

enum class Router : uint8_t {
  none,
  softmax_normalised,  ///< weights of the chosen experts sum to one
  softmax,             ///< where norm_topk_prob says so
  sigmoid
};

inline constexpr const char* kVerifyingTest = "tests/calib/model/test_architectures.py";
inline constexpr const char* kVerified =
    "logits, keys, values and Fisher within 1e-4 of transformers 5.24.0's autograd, tiny random models";
inline constexpr const char* kVerifiedGguf = "the same, from files by PyPI gguf 0.19.0";

struct Architecture {
  const char* name;    ///< model_type of config.json
  const char* gguf;    ///< general.architecture
  const char* models;  ///< for people
  std::array<std::span<const TensorRule>, 7> rules;
  const char* defaults = "{}";         ///< JSON: what config.json may leave out
  const char* nested_defaults = "{}";  ///< likewise a text_config, of what config.json always has
  bool gguf_interleaves = false;  ///< GGUF has the two halves of each head's q and k rows interleaved (METHODS.md, 10)
  Biases biases = Biases::configured;
  Layers layers = Layers::alike;
  Router router = Router::none;
  bool norm_adds_one = false;        ///< config: x * (1 + w); GGUF files hold 1 + w
  bool scales_embedding = false;     ///< by the square root of the hidden size
  bool multipliers = false;          ///< embedding, residual, attention multipliers and logits_scaling
  bool softcaps = false;             ///< attn_logit_softcapping; final_logit_softcapping
  bool query_scalar = false;         ///< scores are scaled by query_pre_attn_scalar^-1/2
  int gguf_wide_layers = 0;          ///< GGUF models of that many layers: query_pre_attn_scalar is hidden / heads
  bool rope_interleaves = false;     ///< rotary pairs are neighbours
  bool two_ropes = false;            ///< sliding layers have a rotation of their own
  bool latent = false;               ///< latent attention
  const char* verified = kVerified;  ///< how, from safetensors
  const char* verified_gguf = kVerifiedGguf;  ///< how, from GGUF

  /// Whether keys are normed before the rotation.
  bool qk_norm() const;
};

/// All of them, for listings.
std::span<const Architecture> architectures();

/// By model_type. Throws Error(bad_input) at `place` that names the unknown architecture and lists the known ones.
const Architecture& find_architecture(const std::string& name, const std::string& place);
/// By general.architecture; several may share it, which the experts (`router`) then tell apart.
const Architecture& find_gguf_architecture(const std::string& name, Router router, const std::string& place);

/// One tensor that the model must have.
struct ExpectedTensor {
  std::string hf, gguf;
  std::vector<int64_t> shape;
  int64_t interleaved_heads = 0;  ///< in GGUF: heads whose rows are interleaved; 0: plain order
  Part part = Part::embedding;
  int64_t layer = -1;                       ///< -1: of no layer
  int64_t expert = -1;                      ///< in GGUF: which slice of the tensor; -1: all of it
  bool is_bias = false;                     ///< of the part's matrix
  std::vector<int64_t> gguf_shape() const;  ///< without extents of one
};

/// All of them, layers in numeric order. `config` is complete and checked.
std::vector<ExpectedTensor> expected_tensors(const Architecture& architecture, const DecoderConfig& config);

/// A tensor of a file, for the comparison with what the architecture needs.
struct FoundTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string bad_type;  ///< "" when kvcc reads the type, else its name
};

/// Throws one Error(bad_input) that lists every tensor that is missing, has the wrong shape or an unreadable type, and
/// every one in the file that the architecture doesn't use (its effect would be lost silently).
void check_tensors(const std::string& place, const Architecture& architecture, const DecoderConfig& config,
                   const std::vector<ExpectedTensor>& expected, bool gguf_names, const std::vector<FoundTensor>& found);

/// Throws Error(bad_input) naming the field when the numbers don't make a decoder.
void check_config(const std::string& place, const DecoderConfig& config);

/// Orders names with their numbers as numbers: layers.2 before layers.10.
bool name_less(const std::string& a, const std::string& b);

}  // namespace kvcc
