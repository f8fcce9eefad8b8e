"""kvcc export as others read it: PyPI safetensors and the json module, against h5py."""
import json
import subprocess

import h5py
import numpy as np
import pytest
from safetensors import safe_open

from support import BUILD, kvcc, kvcc_json


@pytest.fixture
def artifact(tmp_path):
    path = tmp_path / "Загрузки é" / "a b.kvcb"
    path.parent.mkdir()
    subprocess.run([BUILD / "tests/bin/make_store", "codebook", path], check=True, capture_output=True)
    return path


def datasets(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.__setitem__(name, item[()]) if isinstance(item, h5py.Dataset) else None)
    return found


def text(value):
    return value if isinstance(value, str) else bytes(value).decode() if isinstance(value, (bytes, np.bytes_)) else value


def test_F58_safetensors_holds_every_dataset_and_says_so(artifact):
    out = artifact.parent / "out.safetensors"
    report = kvcc_json("export", artifact, "--to", "safetensors", "-o", out)
    wanted = datasets(artifact)
    with safe_open(out, "numpy") as file:
        assert set(file.keys()) == set(wanted)
        for name, value in wanted.items():
            found = file.get_tensor(name)
            assert found.dtype == value.dtype and found.shape == value.shape, name
            assert found.tobytes() == value.tobytes(), name
        metadata = file.metadata()
    with h5py.File(artifact) as file:
        for name in ("scheme", "scheme_json", "format", "format_version", "content_sha256"):
            assert metadata[name] == text(file.attrs[name])
        for name, value in file["model"].attrs.items():
            value = ",".join(map(str, value)) if isinstance(value, np.ndarray) else value
            assert metadata["model." + name] == (text(value) if isinstance(value, (str, bytes, np.bytes_))
                                                 else f"{float(value):g}" if name == "rope_theta" else str(value))
        assert metadata["provenance.seed"] == "7"
    assert {entry["name"]: entry["shape"] for entry in report["tensors"]} == {n: list(v.shape) for n, v in wanted.items()}
    assert report["output"] == str(out)
    shown, _ = kvcc("validate", out)
    for name, value in wanted.items():
        assert f"  {name} " in shown and str(list(value.shape)) in shown


def test_tensors_are_aligned(artifact):
    out = artifact.parent / "out.safetensors"
    kvcc("export", artifact, "--to", "safetensors", "-o", out)
    data = out.read_bytes()
    header = int.from_bytes(data[:8], "little")
    assert (8 + header) % 8 == 0
    size = {"F32": 4, "U32": 4, "U16": 2, "U8": 1}
    for name, entry in json.loads(data[8:8 + header]).items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % size[entry["dtype"]] == 0, name


def test_equal_artifacts_export_to_equal_bytes(artifact):
    for kind in ("safetensors", "json"):
        first, second = artifact.parent / f"1.{kind}", artifact.parent / f"2.{kind}"
        kvcc("export", artifact, "--to", kind, "-o", first)
        kvcc("export", artifact, "--to", kind, "-o", second)
        assert first.read_bytes() == second.read_bytes()


def test_json_holds_the_values(artifact):
    out = artifact.parent / "out.json"
    kvcc("export", artifact, "--to", "json", "-o", out)
    document = json.loads(out.read_text())
    assert next(iter(document)) == "schema_version"
    for name, value in datasets(artifact).items():
        entry = document["datasets"][name]
        assert entry["shape"] == list(value.shape)
        np.testing.assert_array_equal(np.array(entry["data"], value.dtype), value.ravel())
        assert entry["axes"] and entry["unit"]
    assert document["attributes"]["/model"]["kv_heads"] == 2
    assert document["attributes"]["/"]["scheme"].startswith("k=nuq3@prerope/channel")


def test_refusals(artifact, tmp_path):
    error = kvcc_json("export", artifact, "--to", "onnx", "-o", tmp_path / "x", code=2)["error"]
    assert "onnx" in error["message"] and error["code"] == 2
    _, stderr = kvcc("export", artifact, "--to", "json", "-o", artifact, code=2)
    assert "is the artifact itself" in stderr
    data = bytearray(artifact.read_bytes())
    data[-5] ^= 1
    artifact.write_bytes(data)
    kvcc("export", artifact, "--to", "json", "-o", tmp_path / "x.json", code=3)
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("cut", [0, 5, 8, 200, -1])
def test_F03_F06_validate_refuses_damaged_exports(artifact, cut):
    out = artifact.parent / "out.safetensors"
    kvcc("export", artifact, "--to", "safetensors", "-o", out)
    out.write_bytes(out.read_bytes()[:cut])
    kvcc("validate", out, code=3)


@pytest.mark.parametrize("edit, message", [
    (lambda h: h["key/scale"].__setitem__("shape", [1000, 1000]), "key/scale: bytes"),
    (lambda h: h["key/scale"].__setitem__("shape", [2**62, 8]), "key/scale: shape"),
    (lambda h: h["key/scale"].__setitem__("data_offsets", [0, 4]), "key/scale: bytes 0 to 4"),
    (lambda h: h["key/scale"].__setitem__("dtype", "F7"), "key/scale: unknown dtype F7"),
    (lambda h: h["key/scale"].pop("shape"), "key/scale"),
    (lambda h: h.pop("key/scale"), "without holes"),
    (lambda h: h["key/scale"].__setitem__("shape", [3, 2, 8.0]), "key/scale: 8.0"),
    (lambda h: h["key/scale"].__setitem__("shape", [-3, -2, 8]), "key/scale: -3"),
    (lambda h: h["key/scale"].__setitem__("shape", "3"), "key/scale: shape"),
    (lambda h: h["key/scale"]["data_offsets"].append(7), "key/scale: data_offsets"),
    (lambda h: h["key/scale"].__setitem__("data_offsets", {}), "key/scale: data_offsets"),
])
def test_F03_offsets_that_disagree(artifact, edit, message):
    out = artifact.parent / "out.safetensors"
    kvcc("export", artifact, "--to", "safetensors", "-o", out)
    data = out.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    edit(header)
    packed = json.dumps(header).encode()
    out.write_bytes(len(packed).to_bytes(8, "little") + packed + data[8 + length:])
    shown, _ = kvcc("validate", out, code=3)
    assert message in shown


def test_F03_a_name_that_appears_twice(tmp_path):
    entry = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    packed = ("{" + entry + "," + entry + "}").encode()
    out = tmp_path / "x.safetensors"
    out.write_bytes(len(packed).to_bytes(8, "little") + packed + bytes(4))
    shown, _ = kvcc("validate", out, code=3)
    assert "header: a: appears twice" in shown
