"""Whole models, made on the spot, opened by kvcc."""
import hashlib
import json
import struct

import gguf
import numpy as np
import pytest
import torch
from tiny_llama import config, dump, refusal, tensors, write_directory, write_gguf


def hashes(seen):
    return {name: t["sha256"] for name, t in seen["tensors"].items()}


def sha(w):
    return hashlib.sha256(np.ascontiguousarray(w, np.float32).tobytes()).hexdigest()


def test_F11_same_tensors_from_safetensors_and_gguf(tmp_path):
    for heads, kv, dim in ((4, 2, None), (6, 2, 32), (4, 4, None), (9, 3, 16)):
        c = config(num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim, hidden_size=heads * 16)
        w = tensors(c, bias=True)
        folder = tmp_path / f"{heads}-{kv}"
        a = dump(write_directory(folder, c | {"attention_bias": True}, w))
        b = dump(write_gguf(tmp_path / f"{heads}-{kv}.gguf", c, w))
        assert hashes(a) == hashes(b) == {n: sha(v) for n, v in w.items()}
        for field in ("hidden", "layers", "query_heads", "kv_heads", "head_dim", "feed_forward", "vocab", "tied", "rope",
                      "attention_bias", "order"):
            assert a[field] == b[field], field
        assert a["attention_bias"] and a["head_dim"] == (dim or 16)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_F11_quantised_rows_are_unpermuted(tmp_path, kind):
    c = config()
    w = tensors(c)
    seen = dump(write_gguf(tmp_path / "m.gguf", c, w, type=gguf.GGMLQuantizationType[kind]))
    for name in ("model.layers.1.self_attn.k_proj.weight", "model.layers.0.self_attn.q_proj.weight",
                 "model.layers.1.self_attn.v_proj.weight"):
        blocks = gguf.quants.quantize(w[name], gguf.GGMLQuantizationType[kind])
        assert seen["tensors"][name]["sha256"] == sha(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]))
        assert seen["tensors"][name]["type"] == kind


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_safetensors_dtypes(tmp_path, dtype):
    c = config()
    w = {n: torch.from_numpy(v).to(dtype) for n, v in tensors(c).items()}
    seen = dump(write_directory(tmp_path, c, w))
    assert hashes(seen) == {n: sha(v.float().numpy()) for n, v in w.items()}
    assert seen["dtype"] == str(dtype).removeprefix("torch.")
    assert all(t["raw_bytes"] > 0 for t in seen["tensors"].values())


@pytest.mark.parametrize("dtype, name", [(torch.float64, "F64"), (torch.int64, "I64"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_other_dtypes_are_refused_by_name(tmp_path, dtype, name):
    c = config()
    w = {n: torch.from_numpy(v) for n, v in tensors(c).items()}
    w["model.layers.0.mlp.up_proj.weight"] = w["model.layers.0.mlp.up_proj.weight"].to(dtype)
    message = refusal(write_directory(tmp_path, c, w))
    assert f"model.layers.0.mlp.up_proj.weight has type {name}" in message and "BF16" in message


def test_F01_all_missing_shards_are_listed(tmp_path):
    c = config()
    w = tensors(c)
    folder = write_directory(tmp_path, c, w, shards=4)
    assert hashes(dump(folder)) == {n: sha(v) for n, v in w.items()}
    for s in (2, 4):
        (folder / f"model-{s:05d}-of-00004.safetensors").unlink()
    message = refusal(folder)
    assert "model-00002-of-00004.safetensors" in message and "model-00004-of-00004.safetensors" in message
    assert "model-00001-of-00004" not in message and "2 of 4 shards" in message


def test_F01_tensor_absent_from_its_shard(tmp_path):
    c = config()
    folder = write_directory(tmp_path, c, tensors(c), shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = next(
        f for f in set(index["weight_map"].values()) if f != index["weight_map"]["model.norm.weight"])
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "no tensor model.norm.weight" in refusal(folder)


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_F01_all_missing_and_misshaped_tensors_at_once(tmp_path, form):
    c = config()
    w = tensors(c)
    del w["model.layers.1.self_attn.v_proj.weight"], w["model.norm.weight"]
    w["model.layers.0.mlp.down_proj.weight"] = w["model.layers.0.mlp.down_proj.weight"].T.copy()
    if form == "gguf":
        message = refusal(write_gguf(tmp_path / "m.gguf", c, w))
        names = ("blk.1.attn_v.weight", "output_norm.weight", "blk.0.ffn_down.weight")
    else:
        message = refusal(write_directory(tmp_path, c, w))
        names = ("model.layers.1.self_attn.v_proj.weight", "model.norm.weight", "model.layers.0.mlp.down_proj.weight")
    assert "missing" in message and all(n in message for n in names)
    assert "is [96, 64], not [64, 96]" in message


def test_tensors_without_a_place_are_refused(tmp_path):
    c = config()
    w = tensors(c) | {"model.layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)}
    assert "model.layers.0.self_attn.q_norm.weight" in refusal(write_directory(tmp_path / "a", c, w))
    del w["model.layers.0.self_attn.q_norm.weight"]
    w["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)  # a stored buffer of old files
    dump(write_directory(tmp_path / "b", c, w))


def test_F07_tied_embeddings(tmp_path):
    c = config(tie_word_embeddings=True)
    w = tensors(c)
    assert "lm_head.weight" not in w
    a = dump(write_directory(tmp_path / "without", c, w))
    copy = {"lm_head.weight": np.zeros((50, 64), np.float32)}  # redundant, and stale
    b = dump(write_directory(tmp_path / "with", c, w | copy))
    assert hashes(a) == hashes(b) and a["tied"] and b["tied"] and "lm_head.weight" not in a["tensors"]
    assert dump(write_gguf(tmp_path / "m.gguf", c, w))["tied"]
    message = refusal(write_directory(tmp_path / "untied", c | {"tie_word_embeddings": False}, w))
    assert "missing tensors: lm_head.weight [50, 64]" in message


def test_F09_head_dim(tmp_path):
    c = config(head_dim=32)
    seen = dump(write_directory(tmp_path / "a", c, tensors(c)))
    assert seen["head_dim"] == 32 and seen["rope"]["rotary_dim"] == 32
    assert seen["tensors"]["model.layers.0.self_attn.k_proj.weight"]["shape"] == [64, 64]
    absent = config(head_dim=None, num_key_value_heads=None, rope_scaling=None, bos_token_id=None)
    seen = dump(write_directory(tmp_path / "b", absent, tensors(absent)))
    assert (seen["head_dim"], seen["kv_heads"], seen["bos"], seen["rope"]["scaling"]) == (16, 4, -1, "none")


def test_F50_twelve_layers_in_numeric_order(tmp_path):
    c = config(num_hidden_layers=12, hidden_size=16, intermediate_size=8)
    w = tensors(c)
    for seen in (dump(write_directory(tmp_path / "m", c, w, shards=3)), dump(write_gguf(tmp_path / "m.gguf", c, w))):
        layers = [int(n.split(".")[2]) for n in seen["order"] if ".layers." in n]
        assert layers == sorted(layers) and set(layers) == set(range(12))
        assert hashes(seen) == {n: sha(v) for n, v in w.items()}


def test_F51_any_path(tmp_path):
    c = config()
    folder = tmp_path / "Загрузки" / "моdel é"
    a = dump(write_directory(folder, c, tensors(c)))
    b = dump(write_gguf(folder / "é 模型.gguf", c, tensors(c)))
    assert a["name"] == "моdel é" and b["name"] == "é 模型.gguf" and hashes(a) == hashes(b)
    (folder / "model.safetensors").unlink()
    assert str(folder) in refusal(folder)


ROPE3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192}


def test_rope_parameters_of_both_generations(tmp_path):
    old = config(rope_theta=500000.0, rope_scaling=ROPE3)
    new = config(rope_theta=..., rope_parameters=ROPE3 | {"rope_theta": 500000.0})
    legacy = config(rope_scaling={"type": "linear", "factor": 2.0})
    plain = config(rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 7.0})
    w = tensors(old)
    a, b = dump(write_directory(tmp_path / "a", old, w)), dump(write_directory(tmp_path / "b", new, w))
    assert a["rope"]["theta"] == b["rope"]["theta"] == 500000.0 and a["rope"]["scaling"] == b["rope"]["scaling"] == "llama3"
    assert ROPE3.items() <= json.loads(b["rope"]["json"]).items() and json.loads(a["rope"]["json"]) == ROPE3
    c = dump(write_directory(tmp_path / "c", legacy, w))
    assert c["rope"]["scaling"] == "linear" and json.loads(c["rope"]["json"]) == {"rope_type": "linear", "factor": 2.0}
    d = dump(write_directory(tmp_path / "d", plain, w))
    assert (d["rope"]["scaling"], d["rope"]["theta"], d["rope"]["json"]) == ("none", 7.0, "")


def test_rope_scaling_of_gguf(tmp_path):
    c = config(rope_theta=500000.0, head_dim=64)
    w = tensors(c)
    inv = 500000.0 ** (-np.arange(32) * 2 / 64)
    wave = 2 * np.pi / inv
    smooth = (8192 / wave - 1) / 3
    factors = np.where(wave < 2048, 1, np.where(wave > 8192, 8, 1 / ((1 - smooth) / 8 + smooth))).astype(np.float32)
    seen = dump(write_gguf(tmp_path / "a.gguf", c, w, extra={"rope_freqs.weight": factors}))
    got = json.loads(seen["rope"]["json"])
    assert seen["rope"]["scaling"] == "llama3" and ROPE3.items() <= got.items()
    assert np.array_equal(np.array(got["freq_factors"], np.float32), factors)
    odd = factors.copy()
    odd[20] *= 1.5
    got = json.loads(dump(write_gguf(tmp_path / "b.gguf", c, w, extra={"rope_freqs.weight": odd}))["rope"]["json"])
    assert "factor" not in got and np.array_equal(np.array(got["freq_factors"], np.float32), odd)

    def linear(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    seen = dump(write_gguf(tmp_path / "c.gguf", c, w, keys=linear))
    assert seen["rope"]["scaling"] == "linear" and json.loads(seen["rope"]["json"])["factor"] == 4.0


@pytest.mark.parametrize("change, words", [
    ({"model_type": "mamba"}, ["architecture mamba", "llama"]),
    ({"model_type": ...}, ["no architecture", "llama"]),
    ({"hidden_size": ...}, ["hidden_size is absent"]),
    ({"hidden_size": "64"}, ["hidden_size", "an integer"]),
    ({"num_key_value_heads": 3}, ["4 query heads and 3 key/value heads"]),
    ({"num_hidden_layers": 10**9}, ["number of layers"]),
    ({"hidden_size": -64}, ["hidden size"]),
    ({"num_attention_heads": 0}, ["0 heads"]),
    ({"head_dim": 15}, ["head dimension is 15"]),
    ({"hidden_act": "gelu"}, ["hidden_act is gelu"]),
    ({"quantization_config": {"quant_method": "gptq"}}, ["gptq"]),
    ({"quantization_config": 5}, ["quantised"]),
    ({"rope_scaling": {"rope_type": "magic"}}, ["rope type magic"]),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, ["per kind of layer"]),
    ({"rope_theta": -1}, ["rope theta"]),
])
def test_bad_config_is_refused(tmp_path, change, words):
    good = config()
    message = refusal(write_directory(tmp_path, config(**change), tensors(good)))
    assert "config.json" in message and all(w in message for w in words), message


def test_broken_json_and_missing_files(tmp_path):
    c = config()
    folder = write_directory(tmp_path / "m", c, tensors(c))
    (folder / "config.json").write_text('{"model_type": "llama", ')
    assert "not JSON" in refusal(folder)
    (folder / "config.json").write_text("[" * 200000)
    assert "config.json" in refusal(folder)
    (folder / "config.json").unlink()
    assert "no config.json" in refusal(folder)
    assert "no such file" in refusal(tmp_path / "absent")
    (tmp_path / "text.gguf").write_text("this is no model")
    assert "not a GGUF file" in refusal(tmp_path / "text.gguf")
    for shard in ("../outside.safetensors", "/etc/passwd"):
        folder = write_directory(tmp_path / "index", c, tensors(c), shards=2)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
        assert "the name of a file beside the index" in refusal(folder)


def test_gguf_key_types(tmp_path):
    """u64 and float keys are what other writers use; an array where a number belongs is refused."""
    c = config(rope_theta=10000.0)
    path = write_gguf(tmp_path / "m.gguf", c, tensors(c), keys=lambda w: w.add_array("llama.rope.dimension_count", [1, 2]))
    assert "llama.rope.dimension_count has another type" in refusal(path)
    path = write_gguf(tmp_path / "n.gguf", c, tensors(c), keys=lambda w: w.add_uint64("llama.rope.dimension_count", 16))
    assert dump(path)["rope"]["rotary_dim"] == 16
    path = write_gguf(tmp_path / "o.gguf", c, tensors(c), keys=lambda w: w.add_uint32("llama.expert_count", 8))
    assert "num_experts_per_tok is absent" in refusal(path)


def test_version_2_reads_and_1_is_refused(tmp_path):
    c = config()
    path = write_gguf(tmp_path / "m.gguf", c, tensors(c))
    data = bytearray(path.read_bytes())
    whole = hashes(dump(path))
    data[4:8] = struct.pack("<I", 2)
    path.write_bytes(data)
    assert hashes(dump(path)) == whole
    data[4:8] = struct.pack("<I", 1)
    path.write_bytes(data)
    assert "GGUF version 1" in refusal(path)
    data[4:8] = struct.pack(">I", 3)
    path.write_bytes(data)
    assert "big-endian" in refusal(path)
