"""formats/export/python/kvcc_cache.py: the same bits as kvcc's reference codec, the RoPE tables of transformers, and a
cache that gives the same whether tokens come together or one by one."""
import json
import math
import sys

import numpy as np
import pytest
import torch

from consumers import LAYERS, export, packed, tail_of
from support import SOURCE

sys.path.insert(0, str(SOURCE / "formats/export/python"))
from kvcc_cache import KvccCache, Quantiser, Rope, read_safetensors  # noqa: E402
from test_c_reader import SCHEMES  # noqa: E402


@pytest.mark.parametrize("tensor", ["key", "value"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantisers_equal_the_reference_codec(tmp_path, scheme, tensor):
    out, metadata, arrays = export(tmp_path, scheme)
    _, tensors = read_safetensors(out)
    scheme_json = json.loads(metadata["scheme_json"])
    made = packed(tmp_path, arrays, tensor, 1, tail_of(scheme_json, tensor, 16 if tensor == "key" else 12))
    quantiser = Quantiser(scheme_json[tensor[0]], scheme_json["sparse"], 1, lambda name: tensors[f"{tensor}/{name}"])
    found = quantiser(torch.from_numpy(made.x.copy()).transpose(0, 1)[None])[0].transpose(0, 1).numpy()
    np.testing.assert_array_equal(found.view(np.uint32), made.decoded.view(np.uint32))


def metadata_of(kind="half-split", scaling="none", parameters=None, dim=32):
    return {"model.rope_theta": "10000", "model.rope_rotary_dim": str(dim), "model.rope_kind": kind,
            "model.rope_scaling": scaling, "model.rope_scaling_json": json.dumps(parameters) if parameters else ""}


SCALINGS = {
    "none": {},
    "linear": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
    "yarn mscale": {"factor": 40.0, "original_max_position_embeddings": 128, "mscale": 0.7, "mscale_all_dim": 1.0,
                    "beta_fast": 16, "beta_slow": 2, "truncate": False},
    "longrope": {"short_factor": [1.0 + i / 8 for i in range(16)], "long_factor": [2.0 + i for i in range(16)],
                 "original_max_position_embeddings": 128, "factor": 4.0},
    "dynamic": {"factor": 2.0},
}


@pytest.mark.parametrize("length", [64, 400])
@pytest.mark.parametrize("name", SCALINGS)
def test_tables_are_those_of_transformers(name, length):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
    scaling = name.split()[0]
    config = LlamaConfig(hidden_size=64, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256,
                         rope_parameters={"rope_type": "default" if scaling == "none" else scaling, "rope_theta": 10000.0,
                                          **SCALINGS[name]})
    x = torch.randn(1, 2, length, 32, generator=torch.Generator().manual_seed(1))
    cos, sin = LlamaRotaryEmbedding(config)(x, torch.arange(length)[None])
    wanted = apply_rotary_pos_emb(x, x, cos, sin)[1]
    rope = Rope(metadata_of(scaling=scaling, parameters=SCALINGS[name]), max_positions=256)
    found = rope.turn(x, 0, length, x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=3e-5)  # a unit in the last place of an angle of 400
    torch.testing.assert_close(rope.turn(wanted, 0, length, x, back=True), x, rtol=0, atol=3e-5)
    if scaling != "none":
        plain = Rope(metadata_of()).turn(x, 0, length, x)
        assert ((plain - wanted).abs().max() > 0.1) == (not (scaling == "dynamic" and length <= 256)), "decides nothing"


def test_interleaved_pairs_are_neighbours_and_the_rest_is_left():
    x = torch.randn(1, 1, 5, 12, generator=torch.Generator().manual_seed(2))
    rope = Rope(metadata_of("interleaved", dim=8))
    found = rope.turn(x, 3, 8, x)
    for token in range(5):
        for i in range(4):
            angle = (3 + token) * 10000.0 ** (-2 * i / 8)
            z = complex(*x[0, 0, token, 2 * i:2 * i + 2]) * complex(math.cos(angle), math.sin(angle))
            np.testing.assert_allclose(found[0, 0, token, 2 * i:2 * i + 2], (z.real, z.imag), atol=1e-6)
    assert torch.equal(found[..., 8:], x[..., 8:])


def rows(tokens, dim, seed):
    return torch.randn(2, 2, tokens, dim, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def made(tmp_path):
    def make(scheme):
        out, _, _ = export(tmp_path, scheme)
        # make_store's rope has parameters of no model: plain ones, of the same length
        data = out.read_bytes()
        old, new = b'"model.rope_scaling":"llama3"', b'"model.rope_scaling":"none"  '
        assert old in data and len(old) == len(new)
        out.write_bytes(data.replace(old, new))
        return out
    return make


def test_tokens_one_by_one_are_stored_as_together(made):
    out = made("kvcc-nuq3-10%-sink2")
    key, value = rows(40, 8, 3), rows(40, 6, 4)
    whole, parts = KvccCache(out), KvccCache(out)
    together = whole.update(key, value, LAYERS[1])
    for begin, end in [(0, 1), (1, 4), (4, 5), (5, 37), (37, 40)]:
        answer = parts.update(key[:, :, begin:end], value[:, :, begin:end], LAYERS[1])
        assert answer[0].shape[2] == end and parts.get_seq_length(LAYERS[1]) == end
    for one, other, x in zip(together, answer, (key, value)):
        assert torch.equal(one, other)
        assert ((one - x).abs() > 1e-3).float().mean() > 0.5, "nothing was quantised"
    assert torch.equal(answer[1][:, :, :2], value[:, :, :2].half().float()), "the first tokens are kept"


def test_a_residual_window_is_exact_until_tokens_leave_it(made):
    key, value = rows(30, 8, 5), rows(30, 6, 6)
    cache = KvccCache(made("k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=1,residual=8"))
    none = KvccCache(made("kvcc-nuq3-1%-sink1"))
    none.update(key.half().float(), value.half().float(), 0)
    for t in range(30):
        held = cache.update(key[:, :, t:t + 1], value[:, :, t:t + 1], 0)
        first = max(1, t - 7)
        assert torch.equal(held[1][:, :, first:], value[:, :, first:t + 1].half().float())
        if t > 9:
            assert not torch.equal(held[1][:, :, 1:first], value[:, :, 1:first].half().float())
    # packed from the fp16 row when it left the window
    assert torch.equal(cache.layers[0].values[:, :, 1:22], none.layers[0].values[:, :, 1:22])
    cache.crop(-25)
    again = cache.update(key[:, :, :3], value[:, :, :3], 0)
    assert again[1].shape[2] == 8 and torch.equal(again[1][:, :, 5:], value[:, :, :3].half().float())


def test_refusals(made, tmp_path):
    out = made("kvcc-nuq3-1%-sink1")
    data = out.read_bytes()
    bad = tmp_path / "bad.safetensors"

    def refused(content, message):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            KvccCache(bad)

    refused(data[:5], "truncated")
    refused(data[:200], "truncated")
    refused(data[:-4], "bytes .* to")
    refused(data.replace(b'"format_version":"1', b'"format_version":"2'), "format kvcc-codebook 2")
    refused(data.replace(b'"half-split"', b'"half-spilt"'), "RoPE kind")
    cache = KvccCache(out)
    for wrong in (math.nan, math.inf, 1e6):
        value = rows(4, 6, 7)
        value[0, 1, 2, 3] = wrong
        with pytest.raises(ValueError, match="NaN|fp16"):
            cache.update(rows(4, 8, 8), value, 0)
