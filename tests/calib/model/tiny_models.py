"""Tiny random models of every architecture, by transformers; the same as GGUF by PyPI gguf; and what autograd says."""
import gguf
import numpy as np
import safetensors.torch
import torch

torch.set_num_threads(1)  # other tests run beside

TOKENS = 48
BASE = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=101, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
MOE = dict(num_experts_per_tok=2, moe_intermediate_size=24)
MLA = dict(num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=16,
           n_shared_experts=2, first_k_dense_replace=1, **MOE)


def longrope(pairs, context):
    return {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": context,
            "short_factor": list(np.linspace(1, 1.5, pairs)), "long_factor": list(np.linspace(1.2, 6, pairs))}


# Name of the case: model type and what differs from BASE. The first case of a type is its plain form.
CASES = {
    "llama": ("llama", {}),
    "llama3": ("llama", dict(rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True)),
    "llama-linear": ("llama", dict(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})),
    "llama-dynamic": ("llama", dict(rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
                                    max_position_embeddings=32)),
    "llama-yarn": ("llama", dict(rope_parameters=YARN)),
    "mistral": ("mistral", dict(sliding_window=16, head_dim=16)),
    "mistral-wide": ("mistral", dict(sliding_window=None)),
    "mixtral": ("mixtral", dict(num_local_experts=5, num_experts_per_tok=2)),
    "qwen2": ("qwen2", {}),
    "qwen2-sliding": ("qwen2", dict(use_sliding_window=True, sliding_window=8, max_window_layers=1)),
    "qwen3": ("qwen3", dict(head_dim=20)),
    "qwen3_moe": ("qwen3_moe", dict(head_dim=16, num_experts=6, norm_topk_prob=True, **MOE)),
    "qwen3_moe-dense": ("qwen3_moe", dict(head_dim=16, num_experts=6, norm_topk_prob=False, decoder_sparse_step=2,
                                          num_hidden_layers=4, mlp_only_layers=[3], **MOE)),
    "gemma2": ("gemma2", dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=16, attn_logit_softcapping=5.0,
                              final_logit_softcapping=3.0, tie_word_embeddings=True)),
    "gemma2-scalar": ("gemma2", dict(head_dim=32, query_pre_attn_scalar=24, sliding_window=16, attn_logit_softcapping=5.0,
                              final_logit_softcapping=3.0, tie_word_embeddings=True)),
    "gemma3": ("gemma3_text", dict(head_dim=256, query_pre_attn_scalar=256, sliding_window=16, num_hidden_layers=7,
                                   tie_word_embeddings=True)),
    "gemma3-linear": ("gemma3_text", dict(
        head_dim=32, query_pre_attn_scalar=30, sliding_window=16, layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})),
    "phi3": ("phi3", dict(sliding_window=None, pad_token_id=0)),
    "phi3-short": ("phi3", dict(sliding_window=16, pad_token_id=0, original_max_position_embeddings=64,
                                rope_parameters={**longrope(3, 64), "partial_rotary_factor": 0.5})),
    "phi3-long": ("phi3", dict(pad_token_id=0, original_max_position_embeddings=32, rope_parameters=longrope(6, 32))),
    "smollm3": ("smollm3", dict(num_hidden_layers=5, pad_token_id=0)),
    "smollm3-wide": ("smollm3", dict(num_hidden_layers=5, pad_token_id=0, hidden_size=128, no_rope_layers=[1, 0, 1, 0, 1])),
    "olmo2": ("olmo2", dict(num_key_value_heads=4)),
    "granite": ("granite", dict(embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.2,
                                logits_scaling=3.0, attention_bias=True)),
    "glm4": ("glm4", dict(head_dim=16, pad_token_id=0)),
    "glm4-plain": ("glm4", dict(head_dim=12, pad_token_id=0, attention_bias=False, partial_rotary_factor=1.0)),
    "deepseek_v2": ("deepseek_v2", dict(**MLA, q_lora_rank=None, n_routed_experts=6, topk_method="greedy")),
    "deepseek_v2-groups": ("deepseek_v2", dict(
        **MLA, q_lora_rank=20, n_routed_experts=6, topk_method="group_limited_greedy", n_group=3, topk_group=2,
        routed_scaling_factor=1.7,
        rope_parameters={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1})),
    "deepseek_v3": ("deepseek_v3", dict(**MLA, q_lora_rank=20, n_routed_experts=8, n_group=4, topk_group=2)),
    "deepseek_v3-yarn": ("deepseek_v3", dict(
        **MLA, q_lora_rank=20, n_routed_experts=8, n_group=1, topk_group=1, rope_interleave=False, attention_bias=True,
        rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0})),
    "lfm2": ("lfm2", dict(num_hidden_layers=5, full_attn_idxs=[1, 3], block_multiple_of=8, layer_types=None)),
    "lfm2-attention-first": ("lfm2", dict(num_hidden_layers=4, full_attn_idxs=[0, 3], block_multiple_of=8)),
}
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
CLIP = dict(vision_config=dict(model_type="clip_vision_model", **VISION), image_token_index=100)
# Models with images: model type, the case of its decoder, and what its configuration has besides.
WRAPPED = {
    "gemma3-images": ("gemma3", "gemma3-linear", dict(vision_config=VISION, mm_tokens_per_image=4, image_token_index=100)),
    "mistral3": ("mistral3", "mistral", dict(vision_config=dict(model_type="pixtral", head_dim=8, **VISION), image_token_index=100)),
    "llava": ("llava", "llama3", CLIP),
    "llava_next": ("llava_next", "mistral-wide", CLIP),
    "idefics3": ("idefics3", "llama", dict(vision_config=VISION, image_token_id=100)),
    "smolvlm": ("smolvlm", "llama", dict(vision_config=VISION, image_token_id=100)),
    "internvl": ("internvl", "qwen2", dict(vision_config=VISION | dict(image_size=[28, 28], patch_size=[14, 14]), image_token_id=100)),
}


def make(case, folder):
    """A model of the case with all of its parameters random, saved to `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    torch.manual_seed(len(case))
    if case in WRAPPED:
        wrapper, inner, more = WRAPPED[case]
        kind, changes = CASES[inner]
        config = AutoConfig.for_model(wrapper, text_config={"model_type": kind, **BASE, **changes}, **more)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    else:
        kind, changes = CASES[case]
        config = AutoConfig.for_model(kind, **{**BASE, **changes})
        config._experts_implementation = "eager"
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if "correction" in n)]:
            parameter.normal_(0, 0.3)
            if "norm" in name and not kind.startswith("gemma"):
                parameter.add_(1)
            if "embed_tokens" in name and config.tie_word_embeddings:
                parameter.mul_(0.5)
    model.save_pretrained(folder)
    return model


def decoder(model):
    """The module with the layers, which models with images have beside others."""
    return getattr(model.model, "language_model", getattr(model.model, "text_model", model.model))


def autograd(model, ids):
    """Logits, and by layer keys, values and the gradients of the summed cross-entropy, as numpy [T, H, D]."""
    kept = {}

    def keep(layer, name, norm=False):
        def hook(module, arguments, output):
            if not output.requires_grad:
                output.requires_grad_()
            output.retain_grad()
            kept.setdefault(layer, {})[name] = output
            return output
        return hook

    handles = []
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for number, layer in enumerate(decoder(model).layers):
        attention = getattr(layer, "self_attn", None)
        if attention is None:
            continue
        for names, kind in ((("k_norm", "k_layernorm", "k_proj"), "key"), (("v_proj",), "value"), (("qkv_proj",), "all"),
                            (("kv_a_proj_with_mqa",), "down"), (("kv_a_layernorm",), "latent")):
            module = next((getattr(attention, n) for n in names if hasattr(attention, n)), None)
            if module is not None:
                handles.append(module.register_forward_hook(keep(number, kind)))
    ids = torch.as_tensor(ids, dtype=torch.long)
    logits = model(ids[None], use_cache=False).logits[0]
    torch.nn.functional.cross_entropy(logits[:-1].double(), ids[1:], reduction="sum").backward()
    for handle in handles:
        handle.remove()
    c = model.config.get_text_config()
    tokens = len(ids)

    def rows(x, heads):
        x = x.detach()[0]
        if x.dim() == 3 and x.shape[0] != tokens:
            x = x.transpose(0, 1)
        return x.reshape(tokens, heads, -1).numpy()

    layers = {}
    for number, found in kept.items():
        def both(name, heads, part=slice(None)):
            tensor = found[name]
            return rows(tensor[..., part], heads), rows(tensor.grad[..., part], heads)
        if "latent" in found:
            pairs = both("down", 1, slice(c.kv_lora_rank, None)), both("latent", 1)
        elif "all" in found:
            dim = c.hidden_size // c.num_attention_heads
            q, kv = c.num_attention_heads * dim, c.num_key_value_heads * dim
            pairs = (both("all", c.num_key_value_heads, slice(q, q + kv)),
                     both("all", c.num_key_value_heads, slice(q + kv, None)))
        else:
            pairs = both("key", c.num_key_value_heads), both("value", c.num_key_value_heads)
        (key, key_grad), (value, value_grad) = pairs
        layers[number] = dict(key=key, value=value, key_grad=key_grad, value_grad=value_grad)
    return logits.detach().numpy(), layers


def permuted(w, heads):
    """llama.cpp's order of q and k rows."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


GGUF = {"llama": "LLAMA", "mixtral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3", "qwen3_moe": "QWEN3MOE", "gemma2": "GEMMA2",
        "gemma3_text": "GEMMA3", "phi3": "PHI3", "smollm3": "SMOLLM3", "olmo2": "OLMO2", "granite": "GRANITE", "glm4": "GLM4",
        "deepseek_v2": "DEEPSEEK2", "deepseek_v3": "DEEPSEEK2", "lfm2": "LFM2"}


def write_gguf(model, folder, path, split_latent=False):
    """`folder` as a GGUF file, with the keys and the order of rows that llama.cpp's converter gives the architecture."""
    c = model.config
    kind = c.model_type
    arch = gguf.MODEL_ARCH[GGUF[kind]]
    names = gguf.get_tensor_name_map(arch, c.num_hidden_layers)
    tensors = {n: t.numpy() for n, t in safetensors.torch.load_file(folder / "model.safetensors").items()}
    latent = kind.startswith("deepseek")
    heads, kv_heads = c.num_attention_heads, c.num_key_value_heads
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // heads
    w = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[arch])
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(tensors["model.layers.0.feed_forward.w1.weight"].shape[0] if kind == "lfm2" else c.intermediate_size)
    w.add_head_count(heads)
    attends = [getattr(layer, "self_attn", None) is not None for layer in model.model.layers]
    w.add_head_count_kv(kv_heads if all(attends) else [kv_heads if a else 0 for a in attends])
    w.add_layer_norm_rms_eps(getattr(c, "rms_norm_eps", None) or c.norm_eps)
    w.add_vocab_size(c.vocab_size)
    rope = c.rope_parameters.get("full_attention", c.rope_parameters)
    w.add_rope_freq_base(rope["rope_theta"])
    rotary = c.qk_rope_head_dim if latent else int(head_dim * rope.get("partial_rotary_factor", 1.0))
    w.add_rope_dimension_count(rotary)
    if rope["rope_type"] in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType[rope["rope_type"].upper()])
        w.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if rope.get("mscale_all_dim"):
            w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    extra = {}
    if rope["rope_type"] == "llama3":  # as divisors of the frequencies
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
        plain = 1 / rope["rope_theta"] ** (torch.arange(0, rotary, 2).float() / rotary)
        extra = {"rope_freqs.weight": (plain / ROPE_INIT_FUNCTIONS["llama3"](c, "cpu")[0]).numpy()}
    if rope["rope_type"] == "longrope":
        extra = {f"rope_factors_{n}.weight": np.array(rope[f"{n}_factor"], np.float32) for n in ("long", "short")}
        w.add_rope_scaling_orig_ctx_len(c.original_max_position_embeddings)
        scale = c.max_position_embeddings / c.original_max_position_embeddings
        w.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(c.original_max_position_embeddings))))
    if "sliding_attention" in c.rope_parameters:
        w.add_rope_freq_base_swa(c.rope_parameters["sliding_attention"]["rope_theta"])
    if latent:
        w.add_q_lora_rank(c.q_lora_rank) if c.q_lora_rank else None
        w.add_kv_lora_rank(c.kv_lora_rank)
        w.add_key_length(c.kv_lora_rank + c.qk_rope_head_dim)
        w.add_value_length(c.kv_lora_rank)
        w.add_key_length_mla(c.qk_nope_head_dim + c.qk_rope_head_dim)
        w.add_value_length_mla(c.v_head_dim)
        w.add_leading_dense_block_count(c.first_k_dense_replace)
        w.add_expert_shared_count(c.n_shared_experts)
        w.add_expert_weights_scale(c.routed_scaling_factor)
        w.add_expert_weights_norm(kind == "deepseek_v3")
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if kind == "deepseek_v3" else gguf.ExpertGatingFuncType.SOFTMAX)
        if c.n_group:
            w.add_expert_group_count(c.n_group)
            w.add_expert_group_used_count(c.topk_group)
    elif getattr(c, "head_dim", None):
        w.add_key_length(c.head_dim)
        w.add_value_length(c.head_dim)
    experts = getattr(c, "n_routed_experts", None) or getattr(c, "num_local_experts", None)
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(c.num_experts_per_tok)
        if kind != "mixtral":
            w.add_expert_feed_forward_length(c.moe_intermediate_size)
    if getattr(c, "sliding_window", None):
        w.add_sliding_window(c.sliding_window)
    if kind == "gemma2":
        w.add_attn_logit_softcapping(c.attn_logit_softcapping)
        w.add_final_logit_softcapping(c.final_logit_softcapping)
    if kind == "granite":
        w.add_embedding_scale(c.embedding_multiplier)
        w.add_residual_scale(c.residual_multiplier)
        w.add_attention_scale(c.attention_multiplier)
        w.add_logit_scale(c.logits_scaling)
    if kind == "lfm2":
        w.add_shortconv_l_cache(c.conv_L_cache)

    stacks = {}
    for name, tensor in tensors.items():
        if kind.startswith("gemma") and "norm" in name:
            tensor = tensor + np.float32(1)
        if kind in ("llama", "mixtral", "granite", "smollm3") and ("q_proj" in name or "k_proj" in name):
            tensor = permuted(tensor, heads if "q_proj" in name else kv_heads)
        if name.endswith("conv.conv.weight"):
            tensor = tensor[:, 0]
        if split_latent and "kv_b_proj" in name:
            both = tensor.reshape(heads, c.qk_nope_head_dim + c.v_head_dim, c.kv_lora_rank)
            k, v = both[:, :c.qk_nope_head_dim], both[:, c.qk_nope_head_dim:]
            block = name.split(".")[2]
            w.add_tensor(f"blk.{block}.attn_k_b.weight", np.ascontiguousarray(k.swapaxes(1, 2)))
            w.add_tensor(f"blk.{block}.attn_v_b.weight", np.ascontiguousarray(v))
            continue
        if ".experts." in name and "shared" not in name:
            before, after = name.split(".experts.")
            number, part = after.split(".", 1)
            stacks.setdefault(f"{before}.experts.{part}", {})[int(number)] = tensor
            continue
        plain = name.replace("e_score_correction_bias", "e_score_correction.bias")
        extra[names.get_name(plain, try_suffixes=(".weight", ".bias")) or name] = tensor
    for name, parts in stacks.items():
        stacked = np.stack([parts[e] for e in range(len(parts))])
        extra[names.get_name(name, try_suffixes=(".weight",)) or name] = stacked
    for name, tensor in extra.items():
        w.add_tensor(name, np.ascontiguousarray(tensor))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
