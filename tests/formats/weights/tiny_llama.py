"""Tiny Llama models written as GGUF (by PyPI gguf) and as Hugging Face directories (by PyPI safetensors)."""
import json
import os
import pathlib
import subprocess

import gguf
import numpy as np
import safetensors.numpy
import safetensors.torch

BIN = pathlib.Path(os.environ["KVCC_BUILD"]) / "tests" / "bin"
MODEL = pathlib.Path(os.environ.get("KVCC_MODEL") or
                     pathlib.Path(os.environ["KVCC_SOURCE"]) / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf")

GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}




def save_file(weights, path):
    """numpy arrays, or torch tensors for the types that numpy lacks."""
    module = safetensors.numpy if all(isinstance(w, np.ndarray) for w in weights.values()) else safetensors.torch
    module.save_file(weights, path)


def config(**changes):
    base = dict(model_type="llama", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                intermediate_size=96, vocab_size=50, rms_norm_eps=1e-5, max_position_embeddings=128,
                rope_theta=10000.0, tie_word_embeddings=False, hidden_act="silu")
    base.update(changes)
    return {k: v for k, v in base.items() if v is not ...}  # ... removes a field


def tensors(c, bias=False, seed=0):
    """Random float32 tensors by Hugging Face name."""
    rng = np.random.default_rng(seed)
    hidden, ff, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    dim = c.get("head_dim") or hidden // c["num_attention_heads"]
    q, kv = c["num_attention_heads"] * dim, (c.get("num_key_value_heads") or c["num_attention_heads"]) * dim
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not c.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes |= {p + "input_layernorm.weight": (hidden,), p + "post_attention_layernorm.weight": (hidden,),
                   p + "self_attn.q_proj.weight": (q, hidden), p + "self_attn.k_proj.weight": (kv, hidden),
                   p + "self_attn.v_proj.weight": (kv, hidden), p + "self_attn.o_proj.weight": (hidden, q),
                   p + "mlp.gate_proj.weight": (ff, hidden), p + "mlp.up_proj.weight": (ff, hidden),
                   p + "mlp.down_proj.weight": (hidden, ff)}
        if bias:
            shapes |= {p + "self_attn.q_proj.bias": (q,), p + "self_attn.k_proj.bias": (kv,),
                       p + "self_attn.v_proj.bias": (kv,), p + "self_attn.o_proj.bias": (hidden,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_directory(folder, c, weights, shards=1):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c))
    if shards == 1:
        save_file(weights, str(folder / "model.safetensors"))
        return folder
    names, index = sorted(weights), {}
    for s in range(shards):
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: weights[n] for n in names[s::shards]}
        save_file(part, str(folder / file))
        index |= {n: file for n in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def permute(w, heads):
    """As llama.cpp's converter does: within a head, rows (half, i) become (i, half)."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def gguf_name(name):
    if name in GGUF_NAMES:
        return GGUF_NAMES[name]
    _, _, layer, part = name.split(".", 3)
    stem, kind = part.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[stem]}.{kind}"


def write_gguf(path, c, weights, type=None, extra=None, keys=None):
    """`type`: a GGMLQuantizationType for the matrices; None keeps float32. `keys(writer)` adds metadata."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    if c.get("num_key_value_heads"):
        writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    if c.get("head_dim"):
        writer.add_key_length(c["head_dim"])
        writer.add_value_length(c["head_dim"])
        writer.add_rope_dimension_count(c["head_dim"])
    if keys:
        keys(writer)
    for name, w in (weights | (extra or {})).items():
        if ".q_proj" in name:
            w = permute(w, c["num_attention_heads"])
        elif ".k_proj" in name:
            w = permute(w, c.get("num_key_value_heads") or c["num_attention_heads"])
        stored = name if name in (extra or {}) else gguf_name(name)
        if type is not None and w.ndim == 2:
            writer.add_tensor(stored, gguf.quants.quantize(w, type), raw_dtype=type)
        else:
            writer.add_tensor(stored, w)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dump(path):
    """What kvcc sees of a model; the tensors by name."""
    out = subprocess.run([BIN / "dump_model", str(path)], capture_output=True, check=False)
    assert out.returncode == 0, out.stderr.decode()
    seen = json.loads(out.stdout)
    seen["order"] = [t["name"] for t in seen["tensors"]]
    seen["tensors"] = {t["name"]: t for t in seen["tensors"]}
    return seen


def refusal(path):
    """The message with which kvcc refuses a model (exit code 3)."""
    out = subprocess.run([BIN / "dump_model", str(path)], capture_output=True, check=False)
    assert out.returncode == 3, (out.returncode, out.stdout[:200], out.stderr)
    return out.stderr.decode()
