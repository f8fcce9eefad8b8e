// What a decoder of each architecture consists of. Data: a new architecture is a new row, and a new kind of part one
// more case where the decoder runs that part.
#pragma once

#include <string>

namespace kvcc {

enum class NormKind { rms };    ///< x / sqrt(mean(x^2) + epsilon) * weight
enum class MlpKind { swiglu };  ///< down(silu(gate(x)) * up(x))

/// Names of the tensors, below "model.layers.N." where they belong to a layer.
struct TensorNames {
  const char* embedding = "model.embed_tokens.weight";
  const char* final_norm = "model.norm.weight";
  const char* head = "lm_head.weight";
  const char* layer = "model.layers.";
  const char* attention_norm = "input_layernorm.weight";
  const char* query = "self_attn.q_proj";
  const char* key = "self_attn.k_proj";
  const char* value = "self_attn.v_proj";
  const char* output = "self_attn.o_proj";
  const char* mlp_norm = "post_attention_layernorm.weight";
  const char* gate = "mlp.gate_proj";
  const char* up = "mlp.up_proj";
  const char* down = "mlp.down_proj";
};

/// Attention, then MLP, each with its own norm before it and a residual around it.
struct DecoderDescription {
  const char* architecture;  ///< model_type of config.json
  NormKind norm;
  MlpKind mlp;
  TensorNames names;
};

/// Throws Error(bad_input) that lists the known ones.
const DecoderDescription& describe_decoder(const std::string& architecture);

}  // namespace kvcc
