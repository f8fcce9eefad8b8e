"""kvcc export --to npz, gguf, header and vllm, as numpy, PyPI gguf, compilers and PyPI safetensors read them."""
import ctypes
import json
import math
import re
import shutil
import struct
import subprocess
import sys
import zipfile

import gguf
import h5py
import numpy as np
import pytest
from safetensors import safe_open

from formats.store.test_codebook_h5py import content_sha256
from support import BUILD, KVCC, SOURCE, kvcc, kvcc_json

LAYERS, HEADS, DIM = 3, 2, 8  # tests/formats/store/made.h
FORMATS = ("safetensors", "npz", "json", "header", "gguf", "vllm")


def make(path, *scheme):
    subprocess.run([BUILD / "tests/bin/make_store", "codebook", path, *scheme], check=True, capture_output=True)
    return path


@pytest.fixture
def artifact(tmp_path):
    return make(tmp_path / "a b é.kvcb")


def datasets(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.__setitem__(name, item[()]) if isinstance(item, h5py.Dataset) else None)
    return found


def attribute(path, group, name):
    with h5py.File(path) as file:
        value = file[group].attrs[name]
        return value.decode() if isinstance(value, bytes) else value


def export(artifact, kind, *options, name=None):
    out = artifact.parent / (name or f"out.{ {'header': 'h', 'vllm': 'safetensors'}.get(kind, kind)}")
    return out, kvcc_json("export", artifact, "--to", kind, "-o", out, *options)


def edit(path, change):
    """Rewrites the artifact after `change` of its h5py file, with the checksum of formats/spec/codebook.md."""
    with h5py.File(path, "r+") as file:
        change(file)
    digest = content_sha256(path)
    with h5py.File(path, "r+") as file:
        file.attrs["content_sha256"] = np.bytes_(digest)


def interleaved(values):
    """Channels of Hugging Face's half-split order in that of Llama's GGUF files (convert_hf_to_gguf's permute)."""
    shape = values.shape
    return values.reshape(*shape[:-1], 2, shape[-1] // 2).swapaxes(-1, -2).reshape(shape)


def test_npz_holds_every_dataset(artifact):
    out, report = export(artifact, "npz")
    wanted = datasets(artifact)
    with np.load(out) as file:
        assert set(file.files) == set(wanted) | {"metadata"}
        for name, value in wanted.items():
            assert file[name].dtype == value.dtype and file[name].shape == value.shape
            assert file[name].tobytes() == value.tobytes(), name
        metadata = json.loads(file["metadata"].item())
    assert metadata["format_version"] == "1.2" and metadata["model.kv_heads"] == "2"
    assert metadata["model.weights_sha256"] == attribute(artifact, "model", "weights_sha256")
    assert metadata["datasets"]["key/scale"] == {"axes": "layer,head,channel", "unit": "element"}
    assert metadata["export.channel_layout"] == "half-split" and metadata["export.key_site"] == "pre-rope"
    assert metadata["export.attention_bias"] == "unknown" and metadata["export.qk_norm"] == "yes"
    assert {t["name"] for t in report["tensors"]} == set(wanted) | {"metadata"}
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None
    assert "key/codebook <f4 [3, 2, 8]" in kvcc("validate", out)[0]


def test_F11_gguf_holds_every_dataset_in_its_own_channel_order(artifact):
    out, report = export(artifact, "gguf")
    reader = gguf.GGUFReader(out)
    wanted = datasets(artifact)
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert set(found) == set(wanted)
    permuted = 0
    for name, value in wanted.items():
        per_channel = name.startswith("key/") and value.shape == (LAYERS, HEADS, DIM) and name not in ("key/codebook", "key/stats/code_use")
        permuted += per_channel
        expected = (interleaved(value) if per_channel else value).astype(np.float32)
        assert list(found[name].shape) == list(value.shape)[::-1]
        assert np.asarray(found[name].data).tobytes() == expected.tobytes(), name
    assert permuted == 9  # scale, zero, two thresholds, five statistics
    field = {name: entry.contents() for name, entry in reader.fields.items()}
    assert field["general.architecture"] == "llama" and field["general.type"] == "kvcc-codebook"
    assert field["kvcc.model.rope_kind"] == field["kvcc.export.channel_layout"] == "interleaved"
    assert "j D/2 + i" in field["kvcc.export.channel_permutation"] and "j D/2 + i" in report["notes"]
    assert field["kvcc.model.kv_heads"] == 2 and field["kvcc.model.rope_theta"] == 100000.0
    assert field["kvcc.model.sliding_window_layers"] == [1, 2]
    assert field["kvcc.provenance.dataset_sha256"] == attribute(artifact, "provenance", "dataset_sha256")
    assert "key/scale F32 [3, 2, 8]" in kvcc("validate", out)[0]


@pytest.mark.parametrize("architecture, layout", [("qwen2", "half-split"), ("phi3", "half-split"), ("mistral", "interleaved")])
def test_F11_gguf_permutes_only_where_gguf_files_do(artifact, architecture, layout):
    edit(artifact, lambda file: file["model"].attrs.__setitem__("architecture", np.bytes_(architecture)))
    out, _ = export(artifact, "gguf")
    reader = gguf.GGUFReader(out)
    assert reader.fields["kvcc.export.channel_layout"].contents() == layout
    scale = next(tensor.data for tensor in reader.tensors if tensor.name == "key/scale")
    wanted = datasets(artifact)["key/scale"]
    assert np.array_equal(scale, interleaved(wanted) if layout == "interleaved" else wanted)


def test_gguf_of_an_unknown_architecture_is_refused(artifact):
    edit(artifact, lambda file: file["model"].attrs.__setitem__("architecture", np.bytes_("novel")))
    error = kvcc_json("export", artifact, "--to", "gguf", "-o", artifact.parent / "x.gguf", code=3)["error"]
    assert "architecture novel" in error["message"] and not (artifact.parent / "x.gguf").exists()


READER = """
#include <stdio.h>
#include <string.h>
#include "out.h"
int main(void) {
  fwrite(kvcc_codebook_layer_index, 1, sizeof kvcc_codebook_layer_index, stdout);
  fwrite(kvcc_codebook_key_bits, 1, sizeof kvcc_codebook_key_bits, stdout);
  fwrite(kvcc_codebook_key_codebook, 1, sizeof kvcc_codebook_key_codebook, stdout);
  fwrite(kvcc_codebook_key_scale, 1, sizeof kvcc_codebook_key_scale, stdout);
  fwrite(kvcc_codebook_key_zero, 1, sizeof kvcc_codebook_key_zero, stdout);
  fwrite(kvcc_codebook_key_threshold_lower, 1, sizeof kvcc_codebook_key_threshold_lower, stdout);
  fwrite(kvcc_codebook_key_threshold_upper, 1, sizeof kvcc_codebook_key_threshold_upper, stdout);
  fwrite(kvcc_codebook_value_codebook, 1, sizeof kvcc_codebook_value_codebook, stdout);
  fprintf(stderr, "%s|%s|%d %d %d %d %d|%.17g|%d %d %d|%lld", KVCC_CODEBOOK_MODEL_NAME, KVCC_CODEBOOK_ROPE_SCALING_JSON,
          KVCC_CODEBOOK_LAYERS, KVCC_CODEBOOK_KV_HEADS, KVCC_CODEBOOK_HEAD_DIM, KVCC_CODEBOOK_KEY_BITS,
          KVCC_CODEBOOK_KEY_CODES, KVCC_CODEBOOK_ROPE_THETA, KVCC_CODEBOOK_KEY_PRE_ROPE, KVCC_CODEBOOK_QK_NORM,
          KVCC_CODEBOOK_ATTENTION_BIAS, KVCC_CODEBOOK_TOKENS);
  return 0;
}
"""
IN_HEADER = ("layer_index", "key/bits", "key/codebook", "key/scale", "key/zero", "key/threshold_lower",
             "key/threshold_upper", "value/codebook")


@pytest.mark.parametrize("compiler", [("gcc", "-std=c99", "-x", "c"), ("g++", "-std=c++11", "-x", "c++")])
def test_header_by_gcc(artifact, compiler):
    export(artifact, "header")
    source, program = artifact.parent / "reader.c", artifact.parent / "reader"
    source.write_text(READER)
    subprocess.run([*compiler, "-Wall", "-Wextra", "-Werror", "-pedantic", source, "-o", program], check=True)
    done = subprocess.run([program], check=True, capture_output=True)
    wanted = datasets(artifact)
    assert done.stdout == b"".join(wanted[name].tobytes() for name in IN_HEADER)
    assert done.stderr.decode() == 'tiny модель|{"factor":8}|3 2 8 3 8|100000|1 1 -1|32768'


def test_header_by_nvcc(artifact):
    nvcc = kvcc_json("--version").get("nvcc_path")  # wherever `kvcc compile` finds it
    if not nvcc:
        pytest.skip("SKIPPED: no nvcc ('make nvcc' gets one)")
    out, _ = export(artifact, "header", "--prefix", "smol")
    source = artifact.parent / "reader.cu"
    source.write_text("#define SMOL_STORAGE static __device__ const\n#include \"out.h\"\n"
                      "__global__ void decode(float* to, const unsigned char* codes) {\n"
                      "  const int c = threadIdx.x, h = blockIdx.y, l = blockIdx.x;\n"
                      "  to[(l * SMOL_KV_HEADS + h) * SMOL_HEAD_DIM + c] =\n"
                      "      fmaf(smol_key_codebook[l][h][codes[c]], smol_key_scale[l][h][c], smol_key_zero[l][h][c]);\n}\n")
    ptx = artifact.parent / "reader.ptx"
    subprocess.run([nvcc, "-ptx", "-arch=sm_80", source, "-o", ptx], check=True)
    wanted = datasets(artifact)["key/scale"].tobytes()
    # PTX holds a static array as its bytes, in decimal.
    arrays = [line.split("= {")[1].rstrip("};\n") for line in ptx.read_text().splitlines() if ".b8" in line and "= {" in line]
    assert any(bytes(int(number) for number in array.split(",")) == wanted for array in arrays if array)


def vllm_name(name, parameters):
    """What vLLM's maybe_remap_kv_scale_name makes of a checkpoint's name (model_loader/weight_utils.py)."""
    for scale in (".k_scale", ".v_scale"):
        if name.endswith(scale):
            mapped = name.replace(scale, ".attn" + scale)
            return mapped if mapped in parameters else None
    return name


def wanted_scales(artifact, per_head):
    data = datasets(artifact)
    key = np.maximum(abs(data["key/stats/min"]), abs(data["key/stats/max"])).astype(np.float64)
    value = np.maximum(abs(data["value/stats/min"]), abs(data["value/stats/max"])).astype(np.float64)
    half = key.shape[-1] // 2
    ranges = {"k": np.hypot(key[..., :half], key[..., half:]).max(-1), "v": value.max(-1)}
    return {n: (r if per_head else r.max(-1, keepdims=True)) / 448 for n, r in ranges.items()}


@pytest.mark.parametrize("per_head", [False, True])
def test_F58_vllm_scales_and_the_names_that_vllm_maps(artifact, per_head):
    out, report = export(artifact, "vllm", *(["--per-head"] if per_head else []))
    wanted = wanted_scales(artifact, per_head)
    parameters = {f"model.layers.{2 * layer}.self_attn.attn.{n}_scale" for layer in range(LAYERS) for n in "kv"}
    with safe_open(out, "numpy") as file:
        assert {vllm_name(name, parameters) for name in file.keys()} == parameters
        for layer in range(LAYERS):
            for n in "kv":
                scale = file.get_tensor(f"model.layers.{2 * layer}.self_attn.{n}_scale")
                assert scale.dtype == np.float32 and scale.shape == (HEADS if per_head else 1,)
                assert (scale * np.float64(448) >= wanted[n][layer] * 448 * (1 - 1e-12)).all()  # nothing overflows
                np.testing.assert_allclose(scale, wanted[n][layer], rtol=3e-7)
        metadata = file.metadata()
    assert metadata["format"] == "pt" and "sqrt(a^2 + b^2)" in metadata["export.key_range"]
    assert metadata["content_sha256"] == attribute(artifact, "/", "content_sha256")
    assert metadata["model.weights_sha256"] and metadata["provenance.tokens"] == "32768"
    config = json.loads((artifact.parent / "kv_cache_scheme.json").read_text())
    assert config == report["config"]
    assert config["quantization_config"]["kv_cache_scheme"] == {
        "num_bits": 8, "type": "float", "strategy": "attn_head" if per_head else "tensor", "dynamic": False, "symmetric": True}
    assert "model.layers.4.self_attn.k_scale F32 [" in kvcc("validate", out)[0]


def test_rotated_keys_fit_the_key_scale(artifact):
    """The bound holds for every corner of the ranges at every angle, and is met."""
    out, _ = export(artifact, "vllm", "--per-head")
    data = datasets(artifact)
    half = DIM // 2
    angles = np.linspace(0, 2 * np.pi, 3601)
    with safe_open(out, "numpy") as file:
        for layer in range(LAYERS):
            scale = file.get_tensor(f"model.layers.{2 * layer}.self_attn.k_scale").astype(np.float64)
            for head in range(HEADS):
                lower, upper = data["key/stats/min"][layer, head], data["key/stats/max"][layer, head]
                most = 0
                for a in (lower[:half], upper[:half]):
                    for b in (lower[half:], upper[half:]):
                        most = max(most, abs(a[:, None] * np.cos(angles) - b[:, None] * np.sin(angles)).max())
                assert 0.9999 * scale[head] < most / 448 <= scale[head]


@pytest.mark.parametrize("bad, message", [
    (0.0, "k_scale of layer 0 head 1: a range of 0 makes a scale of 0"),
    (1e-37, "k_scale of layer 0 head 1: a range of"),
])
def test_vllm_refuses_scales_that_fp8_cannot_use(artifact, bad, message):
    def change(file):
        file["key/stats/min"][0, 1] = -bad
        file["key/stats/max"][0, 1] = bad
    edit(artifact, change)
    out = artifact.parent / "x.safetensors"
    assert message in kvcc_json("export", artifact, "--to", "vllm", "--per-head", "-o", out, code=3)["error"]["message"]
    assert not out.exists() and not (artifact.parent / "kv_cache_scheme.json").exists()
    export(artifact, "vllm")  # the largest over heads is sound


def test_vllm_needs_ranges_and_a_rope_that_only_turns(artifact):
    other = artifact.parent / "other.kvcb"
    shutil.copy(artifact, other)
    edit(artifact, lambda file: [file["key/stats"].__delitem__(name) for name in ("min", "max")])
    assert "no ranges" in kvcc("export", artifact, "--to", "vllm", "-o", artifact.parent / "x", code=3)[1]
    edit(other, lambda file: file["model"].attrs.__setitem__("rope_scaling", np.bytes_("yarn")))
    assert "rope scaling yarn" in kvcc("export", other, "--to", "vllm", "-o", artifact.parent / "x", code=3)[1]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_F58_validate_refuses_bad_scales(artifact, value):
    out, _ = export(artifact, "vllm")
    data = out.read_bytes()
    out.write_bytes(data[:-4] + struct.pack("<f", value))
    assert "self_attn.v_scale: scale" in kvcc("validate", out, code=3)[0]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("scheme", ["kvcc-nuq3-1%-sink1", "k=int4@postrope/token,v=int4@token,sparse=1%"])
def test_equal_artifacts_export_to_equal_bytes_and_name_their_tensors(tmp_path, kind, scheme):
    first, second = make(tmp_path / "1.kvcb", scheme), make(tmp_path / "2.kvcb", scheme)
    one, report = export(first, kind, name="1.out")
    two, _ = export(second, kind, name="2.out")
    assert one.read_bytes() == two.read_bytes()
    assert report["tensors"] and all(t["name"] and t["dtype"] for t in report["tensors"])
    assert report["bytes"] == len(one.read_bytes())


def test_options_without_use_are_refused(artifact):
    out = artifact.parent / "x"
    assert "--per-head" in kvcc("export", artifact, "--to", "npz", "--per-head", "-o", out, code=2)[1]
    assert "--prefix" in kvcc("export", artifact, "--to", "npz", "--prefix", "a", "-o", out, code=2)[1]
    assert "no identifier" in kvcc("export", artifact, "--to", "header", "--prefix", "1a", "-o", out, code=2)[1]
    assert not out.exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_the_artifact_is_not_written_over(artifact, kind):
    """Not even under the name of the scheme, which only vllm writes."""
    scheme = artifact.rename(artifact.parent / "kv_cache_scheme.json")
    data = scheme.read_bytes()
    for out in [scheme] + [artifact.parent / "x.safetensors"] * (kind == "vllm"):
        assert "is the artifact itself" in kvcc("export", scheme, "--to", kind, "-o", out, code=2)[1]
        assert scheme.read_bytes() == data and (out == scheme or not out.exists())


def test_F03_damaged_npz_is_refused(artifact):
    out, _ = export(artifact, "npz")
    data = out.read_bytes()
    for cut in [0, 4, 21, 100, len(data) // 2, len(data) - 1]:
        out.write_bytes(data[:cut])
        kvcc("validate", out, code=3)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"x" * 1000)
    assert "a.npy: compressed" in kvcc("validate", out, code=3)[0]
    out.write_bytes(data + b"\0")
    kvcc("validate", out, code=3)


@pytest.mark.parametrize("header, message", [
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 8), }", "overflows"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "4 bytes; wanted 12"),
    ("{'descr': '|O', 'fortran_order': False, 'shape': (), }", "dtype |O"),
    ("{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", "no header"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "no header"),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (1", "no header"),
    ("", "no header"),
])
def test_F03_arrays_of_npz_that_disagree(tmp_path, header, message):
    text = header.encode() + b"\n"
    out = tmp_path / "x.npz"
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0\0\0\0")
    shown = kvcc("validate", out, code=3)[0]
    assert f"{out}: a.npy: " in shown and message in shown


def test_validate_takes_what_numpy_saves(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(6, dtype=np.int16).reshape(2, 3), b=np.float64(3), c=np.zeros(0))
    shown = kvcc("validate", tmp_path / "x.npz")[0]
    assert "a <i2 [2, 3]" in shown and "b <f8 []" in shown and "c <f8 [0]" in shown


def page(name):
    return (SOURCE / "formats/spec" / f"export-{name}.md").read_text()


def first_cells(text, heading):
    """Names in backticks in the first column of the table whose first heading is `heading`."""
    rows = text.split(f"| {heading} |")[1].split("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_page_of_the_header_names_what_is_written(artifact):
    out, report = export(artifact, "header")
    macros = {m.removeprefix("KVCC_CODEBOOK_") for m in re.findall(r"^#define (\w+) ", out.read_text(), re.M)} - {"STORAGE"}
    assert first_cells(page("header"), "macro") == macros
    arrays = {tensor["name"].removeprefix("kvcc_codebook_") for tensor in report["tensors"]}
    assert first_cells(page("header"), "array") == arrays


def test_pages_name_every_attribute_of_exports(artifact):
    about = {name for name in first_cells(page("safetensors"), "name") if name.startswith("export.")}
    # The table of tensors has the same heading; attributes are in the second.
    about |= set(re.findall(r"`(export\.\w+)`", page("safetensors").split("Metadata (")[1].split("* Tensors")[0]))
    out, _ = export(artifact, "safetensors")
    with safe_open(out, "numpy") as file:
        assert about == {name for name in file.metadata() if name.startswith("export.")}
    out, _ = export(artifact, "vllm", name="scales.safetensors")
    more = set(re.findall(r"`(export\.\w+)`", page("vllm").split("| name |")[1]))
    with safe_open(out, "numpy") as file:
        assert about | more == {name for name in file.metadata() if name.startswith("export.")}
    out, _ = export(artifact, "gguf")
    reader = gguf.GGUFReader(out)
    named = {name.removeprefix("kvcc.") for name in reader.fields if name.startswith("kvcc.export.")}
    assert named == about | {"export.channel_permutation"}


def test_pages_examples_hold(artifact):
    """The examples in Python of the pages run, with out.NAME where they say."""
    for name in ("safetensors", "npz", "gguf"):
        export(artifact, name)
        code = page(name).split("```python\n")[1].split("```")[0]
        done = subprocess.run([sys.executable, "-c", code], cwd=artifact.parent, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout, done.stderr


def test_wrong_bytes_never_crash_validate(artifact):
    """Changed bytes of structure never crash validate, nor make it take more than the file: exit 0 or 3."""
    random = np.random.default_rng(10)
    for kind in ("npz", "gguf"):
        out, _ = export(artifact, kind)
        data = bytearray(out.read_bytes())
        for _ in range(40):
            damaged = bytearray(data)
            for _ in range(4):
                damaged[int(random.integers(0, len(data)))] = int(random.integers(0, 256))
            out.write_bytes(damaged)
            done = subprocess.run([KVCC, "validate", out], capture_output=True)
            assert done.returncode in (0, 3), (kind, done.returncode, done.stderr[-500:])
