"""Packed weights (FP8 with a scale a block, GPTQ, AWQ) against torch's and numpy's own reading, bit for bit; GGUF in parts."""
import hashlib
import subprocess

import gguf
import numpy as np
import pytest
import torch
from tiny_llama import BIN, config, dump, gguf_name, permute, refusal, tensors, write_directory

RNG = np.random.default_rng(3)


def sha(w):
    return hashlib.sha256(np.ascontiguousarray(w, np.float32).tobytes()).hexdigest()


def packs(name):
    return name.endswith("_proj.weight")


def pack_words(nibbles, axis, order=range(8)):
    """Eight 4-bit integers along an axis into each int32, the first in the lowest bits; nibble n holds number order[n]."""
    groups = np.moveaxis(nibbles, axis, -1)
    groups = groups.reshape(*groups.shape[:-1], -1, 8).astype(np.uint32)
    words = sum(groups[..., o] << np.uint32(4 * n) for n, o in enumerate(order))
    return np.ascontiguousarray(np.moveaxis(words.astype(np.uint32).view(np.int32), -1, axis))


def integers(w, group, zero_offset):
    """Random 4-bit integers, zero-points and scales of w's shape [out, in], and the values that they stand for."""
    outputs, inputs = w.shape
    q = RNG.integers(0, 16, (inputs, outputs))
    z = RNG.integers(0, 16, (inputs // group, outputs))
    s = RNG.random((inputs // group, outputs)).astype(np.float16) * np.float16(0.1)
    return q, z, s, lambda g: ((q - z[g] - zero_offset).astype(np.float32) * s[g].astype(np.float32)).T


def fp8(w, block):
    codes = torch.from_numpy(RNG.integers(0, 256, w.shape).astype(np.uint8))
    codes[(codes & 127) == 127] = 0  # no NaN
    rows, columns = -(-w.shape[0] // block[0]), -(-w.shape[1] // block[1])
    scales = torch.from_numpy(RNG.random((rows, columns)).astype(np.float32))
    values = codes.view(torch.float8_e4m3fn).float()
    wide = scales.repeat_interleave(block[0], 0)[:w.shape[0]].repeat_interleave(block[1], 1)[:, :w.shape[1]]
    return codes.view(torch.float8_e4m3fn), scales, (values * wide).numpy()


def packed_model(method, group=32, version=None, act_order=False):
    c = config(hidden_size=64, intermediate_size=96)
    stored, wanted = {}, {}
    for name, w in tensors(c).items():
        stem = name.removesuffix("weight")
        if not packs(name):
            stored[name], wanted[name] = torch.from_numpy(w), w
        elif method == "fp8":
            stored[name], stored[stem + "weight_scale_inv"], wanted[name] = fp8(w, (40, 24))
        else:
            offset = 1 if method == "gptq" and version != "gptq_v2" else 0
            q, z, s, values = integers(w, group, offset)
            groups = np.arange(w.shape[1]) // group
            if act_order:
                groups = RNG.permutation(groups)
            order = [0, 2, 4, 6, 1, 3, 5, 7] if method == "awq" else range(8)  # AutoAWQ's order_map
            parts = {"qweight": pack_words(q, 1, order) if method == "awq" else pack_words(q, 0),
                     "qzeros": pack_words(z, 1, order), "scales": s}
            if act_order:
                parts["g_idx"] = groups.astype(np.int32)
            stored |= {stem + part: torch.from_numpy(np.ascontiguousarray(x)) for part, x in parts.items()}
            wanted[name] = values(groups)
    quantisation = {"quant_method": method}
    if method == "fp8":
        quantisation |= {"fmt": "e4m3", "weight_block_size": [40, 24], "activation_scheme": "dynamic"}
    else:
        quantisation |= {"bits": 4, "group_size": group}
    if version:
        quantisation["version" if method == "awq" else "checkpoint_format"] = version
    return c | {"quantization_config": quantisation}, stored, wanted


@pytest.mark.parametrize("method, options", [
    ("fp8", {}), ("gptq", {}), ("gptq", dict(act_order=True)), ("gptq", dict(version="gptq_v2", group=16)), ("awq", {}),
    ("awq", dict(version="gemm", group=16))])
def test_packed_values(tmp_path, method, options):
    c, stored, wanted = packed_model(method, **options)
    seen = dump(write_directory(tmp_path, c, stored, shards=2))
    assert {name: t["sha256"] for name, t in seen["tensors"].items()} == {n: sha(w) for n, w in wanted.items()}
    kind = {"fp8": "FP8", "gptq": "GPTQ4", "awq": "AWQ4"}[method]
    assert seen["dtype"] == kind
    assert all(t["type"] == (kind if packs(n) else "F32") for n, t in seen["tensors"].items())


def test_every_code_of_fp8(tmp_path):
    """All 256 codes, the two of NaN included, are torch's."""
    c, stored, _ = packed_model("fp8")
    name = "model.layers.0.self_attn.q_proj.weight"
    codes = torch.arange(256, dtype=torch.uint8).repeat(16).view(torch.float8_e4m3fn).view(64, 64)
    stored[name] = codes
    stored[name + "_scale_inv"] = torch.ones(2, 3)
    folder = write_directory(tmp_path, c, stored)
    subprocess.run([BIN / "dump_model", str(folder), name, str(tmp_path / "values")], check=True)
    ours, theirs = np.fromfile(tmp_path / "values", "<f4"), codes.float().numpy().ravel()
    assert np.array_equal(np.isnan(ours), np.isnan(theirs)) and np.isnan(ours).sum() == 32
    assert np.array_equal(ours[~np.isnan(ours)].view(np.uint32), theirs[~np.isnan(theirs)].view(np.uint32))


def test_parts_that_are_missing_or_wrong_are_listed_together(tmp_path):
    c, stored, _ = packed_model("gptq")
    del stored["model.layers.0.self_attn.q_proj.scales"]
    stored["model.layers.1.mlp.up_proj.qzeros"] = torch.zeros(1, 12, dtype=torch.int32)
    stored["model.layers.1.mlp.down_proj.qweight"] = stored["model.layers.1.mlp.down_proj.qweight"].float()
    message = refusal(write_directory(tmp_path / "a", c, stored))
    for words in ("q_proj.scales [2, 64] is missing", "up_proj.qzeros is [1, 12], not [2, 12]", "down_proj.qweight has type F32"):
        assert words in message
    c, stored, _ = packed_model("gptq", act_order=True)
    stored["model.layers.0.mlp.up_proj.g_idx"][5] = 7
    assert "g_idx of input 5 is 7; wanted 0 to 1" in refusal(write_directory(tmp_path / "b", c, stored))
    c, stored, _ = packed_model("fp8")
    del stored["model.layers.0.mlp.up_proj.weight_scale_inv"]
    assert "up_proj.weight_scale_inv [3, 3] is missing" in refusal(write_directory(tmp_path / "c", c, stored))


@pytest.mark.parametrize("change, words", [
    ({"quant_method": "bitsandbytes"}, ["bitsandbytes", "fp8, gptq or awq"]), ({"bits": 8}, ["8 bits", "4 bits"]),
    ({"checkpoint_format": "marlin"}, ["marlin", "gptq_v2"]), ({"group_size": 0}, ["groups of 0"]),
    ({"quant_method": "fp8", "weight_block_size": None}, ["weight_block_size"]),
    ({"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [8, 8]}, ["e5m2", "e4m3"])])
def test_other_packings_are_refused_by_name(tmp_path, change, words):
    c, stored, _ = packed_model("gptq")
    c["quantization_config"] |= change
    message = refusal(write_directory(tmp_path, c, stored))
    assert "config.json" in message and all(w in message for w in words), message


def split(folder, parts, c, w):
    """A model as GGUF in parts, by PyPI gguf's own splitting."""
    writer = gguf.GGUFWriter(str(folder / "m.gguf"), "llama", split_max_tensors=-(-len(w) // parts))
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    for name, tensor in w.items():
        heads = {"q_proj": c["num_attention_heads"], "k_proj": c["num_key_value_heads"]}
        for part, count in heads.items():
            tensor = permute(tensor, count) if part in name else tensor
        writer.add_tensor(gguf_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("m-*.gguf"))


def test_gguf_in_parts(tmp_path):
    c = config()
    w = tensors(c)
    files = split(tmp_path, 3, c, w)
    assert len(files) == 3 and files[0].name == "m-00001-of-00003.gguf"
    seen = dump(files[0])
    assert {n: t["sha256"] for n, t in seen["tensors"].items()} == {n: sha(v) for n, v in w.items()}
    assert seen["weight_files"] == [str(f) for f in files]
    assert "part 2 of 3" in refusal(files[1])
    whole = files[2].read_bytes()
    files[2].unlink()
    assert files[2].name in refusal(files[0])
    files[2].write_bytes(files[1].read_bytes())
    assert "not part 3 of 3" in refusal(files[0])
    files[2].write_bytes(whole)
    assert dump(files[0])["weights_sha256"] == seen["weights_sha256"]
