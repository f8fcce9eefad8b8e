"""What configurations say beyond sizes: nothing that makes no decoder is taken for one, and messages name file and field."""
import json

import pytest
from tiny_llama import refusal

BASE = dict(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
            vocab_size=50, rms_norm_eps=1e-5, max_position_embeddings=128)
MOE = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=16)
V2 = dict(num_experts_per_tok=2, n_routed_experts=8, moe_intermediate_size=16)


@pytest.mark.parametrize("kind, change, words", [
    ("gemma3_text", {"layer_types": ["full_attention"]}, ["layer_types", "4 words"]),
    ("gemma3_text", {"layer_types": ["full_attention", "mamba", "full_attention", "full_attention"]}, ["type mamba"]),
    ("gemma3_text", {"layer_types": ["conv"] * 4}, ["type conv"]),
    ("gemma3_text", {"sliding_window_pattern": 0}, ["sliding_window_pattern is 0"]),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping"]),
    ("gemma3_text", {"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
    ("gemma2", {"query_pre_attn_scalar": 0}, ["query_pre_attn_scalar is 0"]),
    ("gemma2", {"final_logit_softcapping": -3.0}, ["soft cap of logits"]),
    ("gemma2", {"hidden_activation": "gelu"}, ["hidden_activation is gelu"]),
    ("mistral", {"sliding_window": -5}, ["sliding window is -5"]),
    ("mistral", {"sliding_window": "all"}, ["sliding_window", "an integer"]),
    ("qwen3_moe", MOE | {"num_experts_per_tok": 9}, ["experts of a token is 9", "from 1 to 8"]),
    ("qwen3_moe", MOE | {"num_experts": 10**9}, ["number of experts"]),
    ("qwen3_moe", MOE | {"decoder_sparse_step": 0}, ["decoder_sparse_step is 0"]),
    ("qwen3_moe", MOE | {"mlp_only_layers": "none"}, ["mlp_only_layers"]),
    ("deepseek_v2", V2 | {"topk_method": "magic"}, ["topk_method is magic"]),
    ("deepseek_v2", V2 | {"norm_topk_prob": True}, ["norm_topk_prob"]),
    ("deepseek_v2", V2 | {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 1}, ["8 experts in 3 groups"]),
    ("deepseek_v2", V2 | {"kv_lora_rank": 0}, ["rank of the latent is 0"]),
    ("deepseek_v2", V2 | {"qk_rope_head_dim": 7}, ["head dimension is 7"]),
    ("deepseek_v3", V2 | {"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, ["experts of a token is 3", "from 1 to 2"]),
    ("smollm3", {"no_rope_layers": [1, 0]}, ["no_rope_layers of 2 layers"]),
    ("smollm3", {"no_rope_layer_interval": 0}, ["no_rope_layer_interval is 0"]),
    ("granite", {"logits_scaling": 0.0}, ["logits scaling"]),
    ("lfm2", {"conv_bias": True}, ["conv_bias"]),
    ("lfm2", {"full_attn_idxs": [7]}, ["number of layers with attention is 0"]),
    ("phi3", {"rope_scaling": {"type": "magic"}}, ["rope type magic"]),
])
def test_refused_with_the_field(tmp_path, kind, change, words):
    (tmp_path / "config.json").write_text(json.dumps(BASE | {"model_type": kind} | change))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    message = refusal(tmp_path)
    assert "config.json" in message and all(w in message for w in words), message
