"""Artifacts of vector codebooks in the exports that hold arrays, as other readers see them; formats that can't say what they mean are refused."""
import json

import h5py
import numpy as np
import pytest
from safetensors import safe_open

from formats.export.test_export_formats import export, make
from support import kvcc, kvcc_json

HEADS = 2


@pytest.fixture(params=["kvcc-2-head", "kvcc-3-channels", "kvcc-2", "kvcc-2-predict", "kvcc-2-head-predict"])
def artifact(request, tmp_path):
    return make(tmp_path / "a.kvcb", request.param)


def datasets(path):
    with h5py.File(path) as file:
        found = {}
        file.visititems(lambda name, item: found.__setitem__(name, item[()]) if isinstance(item, h5py.Dataset) else None)
        return found, {name: dict(file[name].attrs) for name in found}


def same(found, wanted):
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert np.asarray(found[name]).dtype == value.dtype and np.asarray(found[name]).shape == value.shape, name
        assert np.asarray(found[name]).tobytes() == value.tobytes(), name


def test_arrays_come_back_to_the_byte(artifact):
    wanted, attributes = datasets(artifact)
    assert {"key/group_width", "value/vectors", "rotation/key/forward", "rotation/value/inverse", "rotation/key/mean"} <= set(wanted)
    predicted = "rotation/value/from_key" in wanted
    out, _ = export(artifact, "safetensors")
    with safe_open(out, "numpy") as file:
        same({name: file.get_tensor(name) for name in file.keys()}, wanted)
        assert file.metadata()["format_version"] == ("1.6" if predicted else "1.5") and "vq10" in file.metadata()["scheme"]
        assert ("from_key" in file.metadata()["export.value_scale"]) == predicted == ("v-predict=key" in file.metadata()["scheme"])
        assert file.metadata()["export.key_scale"].startswith("none; decoded = rotation inverse z + mean")
    kvcc("validate", out)
    out, _ = export(artifact, "npz")
    with np.load(out) as file:
        same({name: file[name] for name in file.files if name != "metadata"}, wanted)
        stated = json.loads(file["metadata"].item())["datasets"]
        assert stated["rotation/key/inverse"] == {"axes": "layer,unit,channel,coordinate", "unit": "element/nat^0.5"}
    kvcc("validate", out)
    out, _ = export(artifact, "json")
    found = json.loads(out.read_text())["datasets"]
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name]["shape"] == list(value.shape) and found[name]["axes"] == attributes[name]["axes"].decode().rstrip("\0")
        np.testing.assert_array_equal(np.array(found[name]["data"], value.dtype).reshape(value.shape), value)


@pytest.mark.parametrize("kind", ["gguf", "header", "vllm"])
def test_other_formats_are_refused(artifact, tmp_path, kind):
    _, error = kvcc("export", artifact, "--to", kind, "-o", tmp_path / "out.x", code=2)
    assert "without vector codebooks" in error and "--to safetensors, npz or json" in error


def test_shards_hold_their_heads(artifact, tmp_path):
    wanted, _ = datasets(artifact)
    if wanted["key/group_width"].shape[1] == 1:
        _, error = kvcc("export", artifact, "--to", "kvcb", "--shard", "0/2", "-o", tmp_path / "out.kvcb", code=3)
        assert "across all heads of a layer" in error and "-head" in error
        return
    parts = []
    for rank in range(HEADS):
        out = tmp_path / f"{rank}.safetensors"
        kvcc_json("export", artifact, "--to", "safetensors", "--shard", f"{rank}/{HEADS}", "-o", out)
        with safe_open(out, "numpy") as file:
            parts.append({name: file.get_tensor(name) for name in file.keys()})
            assert file.metadata()["provenance.shard"] == f"{rank}/{HEADS}"
    for name, value in wanted.items():
        if name.endswith(("predicted_fitted", "predicted_held_out")):
            assert all(name not in part for part in parts)
        elif name == "layer_index":
            assert all(np.array_equal(part[name], value) for part in parts)
        elif name.endswith("/vectors"):
            assert sum(part[name].size for part in parts) == value.size
            np.testing.assert_array_equal(np.sort(np.concatenate([part[name] for part in parts])), np.sort(value))
        else:
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts], axis=1), value)
