"""Models of any size with random bf16 weights, written in little memory: for what depends on shapes and not on values."""
import argparse
import json
from pathlib import Path

import numpy as np

LLAMA_32_1B = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                   head_dim=64, vocab_size=128256, max_position_embeddings=131072, tie_word_embeddings=True, rms_norm_eps=1e-5,
                   rope_theta=500000.0,
                   rope_scaling=dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                     original_max_position_embeddings=8192))
LLAMA_2_7B = dict(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32,
                  head_dim=128, vocab_size=32000, max_position_embeddings=4096, tie_word_embeddings=False, rms_norm_eps=1e-5,
                  rope_theta=10000.0)
SHAPES = {"llama-3.2-1b": LLAMA_32_1B, "llama-2-7b": LLAMA_2_7B}

POOL = (1 << 24) + 43  # values that all matrices are cut from


def tensors(c):
    """(name, shape) of every tensor of a Llama."""
    hidden, mlp, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    query, cache = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    for l in range(c["num_hidden_layers"]):
        stem = f"model.layers.{l}."
        yield stem + "input_layernorm.weight", (hidden,)
        yield stem + "self_attn.q_proj.weight", (query, hidden)
        yield stem + "self_attn.k_proj.weight", (cache, hidden)
        yield stem + "self_attn.v_proj.weight", (cache, hidden)
        yield stem + "self_attn.o_proj.weight", (hidden, query)
        yield stem + "post_attention_layernorm.weight", (hidden,)
        yield stem + "mlp.gate_proj.weight", (mlp, hidden)
        yield stem + "mlp.up_proj.weight", (mlp, hidden)
        yield stem + "mlp.down_proj.weight", (hidden, mlp)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden)


def write_llama(folder, config, shard_bytes=2 << 30, seed=0):
    """A Hugging Face directory without a tokenizer: bf16 safetensors in shards of at most `shard_bytes` (or one tensor)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    pool = (rng.standard_normal(POOL, dtype=np.float32) * 0.02).view(np.uint32) >> 16
    pool = pool.astype(np.uint16)
    shards, size = [[]], 0
    for name, shape in tensors(config):
        bytes_ = 2 * int(np.prod(shape))
        if size + bytes_ > shard_bytes and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append((name, shape, bytes_))
        size += bytes_
    index = {}
    for number, shard in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        header, at = {}, 0
        for name, shape, bytes_ in shard:
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + bytes_]}
            index[name] = file
            at += bytes_
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / file, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for _, shape, bytes_ in shard:
                left = bytes_ // 2
                if len(shape) == 1:
                    out.write(np.full(left, 0x3f80, np.uint16).tobytes())  # a norm's weights are 1
                    continue
                begin = int(rng.integers(0, POOL))
                while left > 0:
                    piece = pool[begin:begin + left]
                    out.write(piece.data)
                    left -= len(piece)
                    begin = 0
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                                                    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, **config}))
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--layers", type=int, default=0, help="0: all of them")
    options = parser.parse_args()
    shape = dict(SHAPES[options.shape])
    if options.layers:
        shape["num_hidden_layers"] = options.layers
    write_llama(options.folder, shape)
