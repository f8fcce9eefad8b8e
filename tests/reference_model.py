"""Models and Fisher gradients as transformers and PyTorch compute them: the oracle of calib and of `make bench`."""
import torch


def llama_from_gguf(path):
    """transformers' Llama in f32 with the weights that PyPI gguf dequantises; q and k rows back to half-split order."""
    import gguf
    from transformers import LlamaConfig, LlamaForCausalLM
    reader = gguf.GGUFReader(path)

    def field(name):
        return reader.fields[f"llama.{name}"].parts[-1][0]

    heads, kv_heads = int(field("attention.head_count")), int(field("attention.head_count_kv"))
    weights = {t.name: torch.from_numpy(gguf.dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}
    vocab, hidden = weights["token_embd.weight"].shape
    config = LlamaConfig(hidden_size=hidden, intermediate_size=int(field("feed_forward_length")),
                         num_hidden_layers=int(field("block_count")), num_attention_heads=heads,
                         num_key_value_heads=kv_heads, vocab_size=vocab,
                         rms_norm_eps=float(field("attention.layer_norm_rms_epsilon")),
                         rope_parameters={"rope_type": "default", "rope_theta": float(field("rope.freq_base"))},
                         max_position_embeddings=int(field("context_length")), tie_word_embeddings=True)

    def half_split(rows, count):
        return rows.view(count, rows.shape[0] // count // 2, 2, -1).transpose(1, 2).reshape(rows.shape)

    names = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    state = {"model.embed_tokens.weight": weights["token_embd.weight"],
             "model.norm.weight": weights["output_norm.weight"]}
    for layer in range(config.num_hidden_layers):
        for short, name in names.items():
            weight = weights[f"blk.{layer}.{short}.weight"]
            if short in ("attn_q", "attn_k"):
                weight = half_split(weight, heads if short == "attn_q" else kv_heads)
            state[f"model.layers.{layer}.{name}.weight"] = weight
    model = LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


def tap_keys_and_values(model):
    """Hooks on every k_proj and v_proj; returns the list that a forward pass fills with their outputs, layer by layer."""
    taps = []

    def record(module, arguments, output):
        if not output.requires_grad:
            output.requires_grad_()
        taps.append(output)
        return output

    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.k_proj.register_forward_hook(record)
        layer.self_attn.v_proj.register_forward_hook(record)
    return taps


def fisher_pass(model, taps, ids):
    """One sample [T]: (mean cross-entropy, keys and values, their gradients of the mean), each a list of [T, channels]."""
    taps.clear()
    batch = torch.as_tensor(ids, dtype=torch.long)[None]
    loss = model(batch, labels=batch, use_cache=False).loss
    gradients = torch.autograd.grad(loss, taps)
    return loss.item(), [t.detach()[0] for t in taps], [g[0] for g in gradients]
