"""kvcc generate over a packed cache of vector codebooks, on a tiny model: the forms whose unit is a head."""
import json

import numpy as np
import pytest

from support import kvcc, kvcc_json, random_ids, tiny_llama

TOKENS = 20


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    tiny_llama(folder / "model", initializer_range=0.12, max_position_embeddings=256)
    random_ids(folder / "calibration.npy", 4, 128)
    random_ids(folder / "prompt.npy", 1, 150, seed=3)
    schemes = [part for name in ("kvcc-3-head", "kvcc-2-channels", "kvcc-2", "kvcc-2-head-predict") for part in ("--scheme", name)]
    document = kvcc_json("calibrate", folder / "model", "-o", folder / "t.kvcb", "--ids", folder / "calibration.npy", "--samples", 4,
                         "--seqlen", 128, *schemes)
    return folder, {row["scheme"]: row["codebook"] for row in document["results"]}


def generate(tiny, codebook, *arguments, **kw):
    return kvcc_json("generate", tiny[0] / "model", "--codebook", codebook, *arguments, **kw)


@pytest.mark.parametrize("scheme", ["kvcc-3-head", "kvcc-2-channels"])
def test_text_is_that_of_the_simulated_cache_and_goes_on_from_a_file(tiny, tmp_path, scheme):
    prompt = ("--ids", tiny[0] / "prompt.npy", "--prefill", "quantised")
    codebook = tiny[1][scheme]
    whole = generate(tiny, codebook, *prompt, "--tokens", TOKENS)
    simulated = generate(tiny, codebook, *prompt, "--tokens", TOKENS, "--cache", "simulated")
    assert whole["ids"][:8] == simulated["ids"][:8]  # later ones hang on rounding, which may flip a code
    first = generate(tiny, codebook, *prompt, "--tokens", TOKENS // 2, "--save-cache", tmp_path / "c")
    second = generate(tiny, codebook, "--load-cache", tmp_path / "c", "--tokens", TOKENS // 2)
    assert whole["ids"] == first["ids"] + second["ids"]
    cache = whole["cache"]
    assert cache["kind"] == "packed" and cache["tokens"] == 150 + TOKENS - 1
    # Of whole pages: 192 slots for 168 tokens, a byte of padding at most in a lane's share and 127 in a page.
    assert cache["packed_bytes"] < cache["fp16_bytes"] / 16 * 3.1 * 192 / 168 + 2 * 3 * 3 * (2 * 32 + 127)
    with open(tmp_path / "c", "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        assert json.loads(file.read(length))["__metadata__"]["layout"] == "vector-1"


def test_export_is_the_same_artifact(tiny, tmp_path):
    codebook = tiny[1]["kvcc-3-head"]
    kvcc("export", codebook, "--to", "safetensors", "-o", tmp_path / "s.safetensors")
    prompt = ("--ids", tiny[0] / "prompt.npy", "--tokens", 5)
    assert generate(tiny, tmp_path / "s.safetensors", *prompt)["ids"] == generate(tiny, codebook, *prompt)["ids"]


def test_other_arithmetic_than_the_units_have_is_refused(tiny):
    prompt = ("--ids", tiny[0] / "prompt.npy", "--tokens", 2)
    for arithmetic in ("i16", "f64"):
        told = generate(tiny, tiny[1]["kvcc-3-head"], *prompt, "--arithmetic", arithmetic, code=2)["error"]["message"]
        assert f"{arithmetic} for scheme kvcc-3-head" in told and "f32" in told


def test_a_transform_across_heads_is_refused_and_simulated(tiny, tmp_path):
    prompt = ("--ids", tiny[0] / "prompt.npy", "--tokens", 2)
    _, error = kvcc("generate", tiny[0] / "model", "--codebook", tiny[1]["kvcc-2"], *prompt, code=2)
    assert "across the heads of a layer" in error and "tensor-parallel" in error and "kvcc-2-head" in error
    assert len(generate(tiny, tiny[1]["kvcc-2"], *prompt, "--cache", "simulated")["ids"]) == 2


def test_predicted_values_are_refused_and_simulated(tiny):
    prompt = ("--ids", tiny[0] / "prompt.npy", "--tokens", 2)
    _, error = kvcc("generate", tiny[0] / "model", "--codebook", tiny[1]["kvcc-2-head-predict"], *prompt, code=2)
    assert "predicted from keys" in error and "kvcc-2-head" in error
    assert len(generate(tiny, tiny[1]["kvcc-2-head-predict"], *prompt, "--cache", "simulated")["ids"]) == 2


def test_a_damaged_file_is_refused(tiny, tmp_path):
    codebook = tiny[1]["kvcc-3-head"]
    kvcc("export", codebook, "--to", "safetensors", "-o", tmp_path / "s.safetensors")
    data = bytearray((tmp_path / "s.safetensors").read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    begin = header["key/group_width"]["data_offsets"][0] + 8 + length
    data[begin] = 9
    (tmp_path / "s.safetensors").write_bytes(data)
    _, error = kvcc("generate", tiny[0] / "model", "--codebook", tmp_path / "s.safetensors", "--ids", tiny[0] / "prompt.npy", "--tokens", 1,
                    code=3)
    assert "key/" in error and np.uint8(data[begin]) == 9
