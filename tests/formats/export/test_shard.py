"""Tensor-parallel shards of an artifact: together they are the whole, and what does not divide is refused."""
import json
import subprocess

import h5py
import numpy as np
import pytest

from support import BUILD, kvcc, kvcc_json


@pytest.fixture
def whole(tmp_path):
    path = tmp_path / "модель é.kvcb"
    subprocess.run([BUILD / "tests/bin/make_store", "codebook", path], check=True, capture_output=True)
    return path


def datasets(path):
    with h5py.File(path) as file:
        found = {}
        file.visititems(lambda name, item: found.__setitem__(name, item[()]) if isinstance(item, h5py.Dataset) else None)
        text = lambda attributes: {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        return found, text(file["model"].attrs), text(file["provenance"].attrs), text(file.attrs)


def test_shards_together_are_the_whole(whole, tmp_path):
    parent, model, provenance, root = datasets(whole)
    assert (model["kv_heads"], model["query_heads"]) == (2, 4)
    parts = []
    for rank in range(2):
        out = tmp_path / f"{rank}.kvcb"
        report = kvcc_json("export", whole, "--to", "kvcb", "--shard", f"{rank}/2", "-o", out)
        kvcc("validate", out)
        data, shard_model, shard_provenance, shard_root = datasets(out)
        assert report["content_sha256"] == shard_root["content_sha256"] != root["content_sha256"]
        assert {k: v for k, v in shard_model.items() if np.any(v != model[k])} == {"kv_heads": 1, "query_heads": 2}
        assert shard_provenance.pop("parent_sha256") == root["content_sha256"]
        assert shard_provenance.pop("shard") == f"{rank}/2" and shard_provenance == provenance
        assert shard_root["scheme"] == root["scheme"] and data.keys() == parent.keys()
        parts.append(data)
    for name, wanted in parent.items():
        if name == "layer_index":
            assert all(np.array_equal(part[name], wanted) for part in parts)
        else:
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts], axis=1), wanted)
    assert not np.array_equal(parts[0]["key/codebook"], parts[1]["key/codebook"])


def test_one_rank_is_all_heads_and_again_gives_the_same_bytes(whole, tmp_path):
    for name in ("a", "b"):
        kvcc("export", whole, "--to", "kvcb", "--shard", "1/2", "-o", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    kvcc("export", whole, "--to", "kvcb", "--shard", "0/1", "-o", tmp_path / "one")
    one, parent = datasets(tmp_path / "one")[0], datasets(whole)[0]
    assert all(np.array_equal(one[name], parent[name], equal_nan=True) for name in parent)


def test_other_formats_take_shards_too(whole, tmp_path):
    kvcc("export", whole, "--to", "json", "--shard", "1/2", "-o", tmp_path / "s.json")
    document = json.loads((tmp_path / "s.json").read_text())
    assert "1/2" in json.dumps(document)
    kvcc("export", whole, "--to", "npz", "--shard", "1/2", "-o", tmp_path / "s.npz")
    npz = np.load(tmp_path / "s.npz")
    np.testing.assert_array_equal(npz["key/scale"], datasets(whole)[0]["key/scale"][:, 1:])


@pytest.mark.parametrize("shard, code, message", [
    ("0/3", 3, "2 key/value heads and 4 query heads do not divide among 3 ranks"),
    ("0/4", 3, "several ranks the same head"),
    ("2/2", 2, "ranks counted from 0"),
    ("-1/2", 2, "is no shard"),
    ("0/0", 2, "is no shard"),
    ("1", 2, "is no shard"),
    ("0/2x", 2, "is no shard"),
    ("0/99999999999", 2, "is no shard"),
])
def test_what_does_not_divide_is_refused(whole, tmp_path, shard, code, message):
    out = tmp_path / "out.kvcb"
    assert message in kvcc("export", whole, "--to", "kvcb", f"--shard={shard}", "-o", out, code=code)[1]
    assert not out.exists()
    done = kvcc("compile", whole, f"--shard={shard}", "--emit-only", "-o", tmp_path / "kernels", code=code)
    assert message in done[1]


def test_a_shard_of_a_shard_is_refused(whole, tmp_path):
    part = tmp_path / "part.kvcb"
    kvcc("export", whole, "--to", "kvcb", "--shard", "0/2", "-o", part)
    error = kvcc("export", part, "--to", "kvcb", "--shard", "0/1", "-o", tmp_path / "x.kvcb", code=3)[1]
    assert "is shard 0/2 of another artifact" in error


def test_compile_takes_a_rank(tmp_path):
    acts, book = tmp_path / "a.acts", tmp_path / "book.kvcb"
    subprocess.run([BUILD / "tests/bin/make_activations", acts, "2", "64", "2", "1", "wide"], check=True)
    kvcc("fit", acts, "--scheme", "kvcc-nuq2-1%-sink1", "-o", book)
    part = tmp_path / "book_1of2.kvcb"
    kvcc("export", book, "--to", "kvcb", "--shard", "1/2", "-o", part)
    kvcc("compile", book, "--shard", "1/2", "--emit-only", "-o", tmp_path / "ranks")
    kvcc("compile", part, "--emit-only", "-o", tmp_path / "part")
    kernels = [json.loads((tmp_path / name / "kernels.json").read_text()) for name in ("ranks", "part")]
    assert kernels[0]["content_sha256"] == datasets(part)[3]["content_sha256"] and kernels[0] == kernels[1]
