"""Dequantised values against PyPI gguf, bit for bit."""
import hashlib
import subprocess

import gguf
import numpy as np
import pytest
from tiny_llama import BIN, MODEL, dump

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "TQ1_0",
         "TQ2_0", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"]
HALF_SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
               "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "TQ1_0": [52], "TQ2_0": [64], "IQ4_NL": [0], "IQ4_XS": [0]}
# zero, subnormals, normals at both ends, infinity
EXTREME = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x3c00, 0x7c00, 0xfc00],
                   np.uint16)


def same_bits(ours, theirs):
    nan = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), nan)
    a, b = ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan]
    assert np.array_equal(a, b), f"{np.count_nonzero(a != b)} of {a.size} values differ"


@pytest.mark.parametrize("name", TYPES)
def test_random_blocks(name):
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(TYPES.index(name))
    blocks = rng.integers(0, 256, (40000 if size < 8 else 3000, size), dtype=np.uint8)
    for offset in HALF_SCALES.get(name, []):  # the last third gets extreme scales, in all pairs
        some = rng.choice(EXTREME, 1000)
        blocks[2000:, offset:offset + 2] = some.view(np.uint8).reshape(-1, 2)
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(blocks, kind).ravel()
    out = subprocess.run([BIN / "dequantize_blocks", name], input=blocks.tobytes(), capture_output=True, check=True)
    ours = np.frombuffer(out.stdout, np.float32)
    assert ours.size == theirs.size and np.count_nonzero(np.isfinite(ours)) > ours.size // 2
    same_bits(ours, theirs)


def test_whole_of_smollm2():
    if not MODEL.exists():
        pytest.skip(f"no model at {MODEL}: run 'make demo' or set KVCC_MODEL")
    seen = dump(MODEL)
    reader = gguf.GGUFReader(MODEL)
    to_hf = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
             "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    checked = set()
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        parts = tensor.name.split(".")
        name = (to_hf[parts[0]] if len(parts) == 2 else f"model.layers.{parts[1]}.{to_hf[parts[2]]}") + ".weight"
        for part, heads in (("attn_q", 9), ("attn_k", 3)):
            if part in parts:  # undo: stored (head, i, half), wanted (head, half, i)
                values = values.reshape(heads, 32, 2, 576).swapaxes(1, 2).reshape(-1, 576)
        ours = seen["tensors"][name]
        assert ours["shape"] == list(values.shape), name
        assert ours["sha256"] == hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest(), name
        checked.add(name)
    assert checked == set(seen["tensors"]) and len(checked) == 272
    assert (seen["layers"], seen["query_heads"], seen["kv_heads"], seen["head_dim"]) == (30, 9, 3, 64)
    assert seen["tied"] and seen["rope"]["theta"] == 100000.0 and seen["rope"]["scaling"] == "none"
    assert seen["dtype"] == "Q4_1"
