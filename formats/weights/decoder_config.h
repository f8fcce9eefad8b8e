// The hyper-parameters of a decoder, independent of the file they came from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/core/model_info.h"

namespace kvcc {

enum class Activation : uint8_t { silu, gelu_tanh };  ///< gelu_tanh: the tanh approximation of GELU

/// What one layer is, where layers of a model differ.
struct LayerKind {
  bool attends = true;   ///< false: a short convolution in place of attention, and nothing is cached
  bool sliding = false;  ///< sees DecoderConfig::sliding_window tokens
  bool experts = false;  ///< a mixture of experts in place of the MLP
  bool operator==(const LayerKind&) const = default;
};

/// A mixture of experts: each token takes `used` of `count` networks, and one that all tokens share.
struct ExpertsConfig {
  int64_t count = 0, used = 0;          ///< 0: no experts
  int64_t feed_forward = 0;             ///< of one expert
  int64_t shared_feed_forward = 0;      ///< 0: no shared network
  bool sigmoid = false;                 ///< scores are sigmoids, chosen with a bias of each expert; else a softmax
  bool normalise = false;               ///< weights of the chosen ones sum to one
  double scale = 1;                     ///< of the weights, after that
  int64_t groups = 1, groups_used = 1;  ///< experts are chosen among those of the best groups
  bool operator==(const ExpertsConfig&) const = default;
};

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). What is cached, and so what kvcc calls key
/// and value, is the rotary key [1, head_dim] and the latent after its norm [1, value_head_dim]; kv_heads is 1.
struct LatentConfig {
  bool used = false;
  int64_t query_rank = 0;  ///< 0: queries are projected in one step
  int64_t nope_dim = 0;    ///< channels of a head's query and key without rotation
  int64_t value_dim = 0;   ///< channels of a head's value
  bool operator==(const LatentConfig&) const = default;
};

/// "null" in config.json counts as absent.
struct DecoderConfig {
  std::string architecture;  ///< model_type of config.json: "llama"; unknown ones are refused by name
  std::string wrapper;       ///< model_type where `architecture` is of its text_config (wrappers.h); else ""
  int64_t hidden = 0, layers = 0, query_heads = 0, kv_heads = 0, head_dim = 0, feed_forward = 0, vocab = 0;
  int64_t value_head_dim = 0;  ///< of what is cached: head_dim but under latent attention
  double norm_epsilon = 1e-5;
  bool norm_adds_one = false;  ///< the files hold w of a norm that multiplies by 1 + w
  RopeInfo rope;
  bool tied_embeddings = false;  ///< lm_head is the embedding; a redundant copy in the file is ignored
  bool attention_bias = false, mlp_bias = false;
  int64_t max_position = 0;
  int64_t bos_id = -1, eos_id = -1;  ///< -1: none

  Activation activation = Activation::silu;
  double embedding_scale = 1;                       ///< of the embedding's rows
  double residual_scale = 1;                        ///< of what attention and MLP add
  double logit_scale = 1;                           ///< logits are divided by it
  double attention_scale = 0;                       ///< of the scores; 0: 1 / sqrt of a head's channels
  double attention_softcap = 0, logit_softcap = 0;  ///< c tanh(x / c) of scores and logits; 0: none
  int64_t sliding_window = 0;    ///< tokens that a sliding layer sees, the present one included; 0: all
  int64_t convolution = 0;       ///< tokens that a layer without attention sees
  std::vector<LayerKind> kinds;  ///< [layers]
  ExpertsConfig experts;
  LatentConfig latent;

  /// Numbers of the layers that have a key/value cache, ascending.
  std::vector<int> cached_layers() const;
  /// Whether the layer sees fewer than all tokens before it when there are `tokens`.
  bool windowed(int64_t layer, int64_t tokens) const {
    return kinds[layer].sliding && sliding_window > 0 && tokens > sliding_window;
  }
};

}  // namespace kvcc
