"""Dequantised values against PyPI gguf, bit for bit."""
import hashlib
import subprocess

import gguf
import numpy as np
import pytest
from grid_words import NAMES, read, words
from support import SOURCE
from tiny_llama import BIN, MODEL, dump

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "TQ1_0",
         "TQ2_0", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
HALF_SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
               "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "TQ1_0": [52], "TQ2_0": [64], "IQ4_NL": [0], "IQ4_XS": [0],
               "IQ1_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0]}
# zero, subnormals, normals at both ends, infinity
EXTREME = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x3c00, 0x7c00, 0xfc00],
                   np.uint16)


def same_bits(ours, theirs):
    nan = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), nan)
    a, b = ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan]
    assert np.array_equal(a, b), f"{np.count_nonzero(a != b)} of {a.size} values differ"


def dequantized(name, blocks):
    done = subprocess.run([BIN / "dequantize_blocks", name], input=blocks.tobytes(), capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.float32)


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
    ours = dequantized(name, blocks)
    assert ours.size == theirs.size and np.count_nonzero(np.isfinite(ours)) > ours.size // 2
    same_bits(ours, theirs)


@pytest.mark.parametrize("kind", NAMES)
def test_grids_are_the_packages(kind):
    assert read((SOURCE / "formats/weights/grids.cc").read_text())[NAMES[kind]] == words(kind).tolist()


def test_iq1_m_with_extreme_scales():
    """Its half is spread over the top nibbles of four words."""
    blocks = np.random.default_rng(3).integers(0, 256, (600, 56), dtype=np.uint8)
    scales = blocks[:, 48:].view("<u2")
    half = np.resize(EXTREME, len(blocks)).astype(np.uint16)
    for word in range(4):
        scales[:, word] = scales[:, word] & 0xfff | (half >> 4 * word) << 12
    kind = gguf.GGMLQuantizationType.IQ1_M
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(blocks, kind).ravel()
    assert np.isinf(theirs).any() and (theirs == 0).any()
    same_bits(dequantized("IQ1_M", blocks), theirs)


def test_q1_0():
    """The package knows its size alone: a half, then a bit a value, 1 for plus (llama.cpp, block_q1_0)."""
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q1_0] == (128, 18)
    blocks = np.random.default_rng(4).integers(0, 256, (500, 18), dtype=np.uint8)
    blocks[:, :2] = np.resize(EXTREME, len(blocks)).view(np.uint8).reshape(-1, 2)
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    same_bits(dequantized("Q1_0", blocks), np.where(np.unpackbits(blocks[:, 2:], axis=1, bitorder="little") == 1, d, -d).ravel())


def test_every_block_type_of_the_package_is_read():
    unread = {"Q8_1", "Q8_K"}  # of activations: no file has them
    for kind, (size, _) in gguf.GGML_QUANT_SIZES.items():
        if size > 1 and kind.name not in unread:
            assert kind.name in TYPES + ["Q1_0"]


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
