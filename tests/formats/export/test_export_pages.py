"""The tables of formats/spec/export-*.md against what the writers write and the readers ask for, row by row."""
import json
import re

import gguf
import numpy as np
import pytest
from safetensors import safe_open

from formats.export.test_export_formats import DIM, FORMATS, HEADS, LAYERS, export, make, page
from formats.store.test_codebook_h5py import tables
from support import SOURCE

SCHEMES = ("kvcc-nuq3-1%-sink1", "kvquant-nuq4", "k=int4@postrope/token,v=nuq2@token,sparse=1%")
CODEBOOK = tables("codebook.md")
DATASETS = CODEBOOK[("path", "type", "axes", "unit", "need", "since", "meaning")]
ATTRIBUTES = CODEBOOK[("object", "name", "type", "required", "since", "meaning")]
VALUE_DIM = DIM - 2  # made.h
GGUF_TYPES = {"text": gguf.GGUFValueType.STRING, "integer": gguf.GGUFValueType.INT64, "float": gguf.GGUFValueType.FLOAT64,
              "integers": gguf.GGUFValueType.ARRAY}


@pytest.fixture(params=SCHEMES)
def artifact(request, tmp_path):
    return make(tmp_path / "a.kvcb", request.param), request.param


def datasets_of(scheme):
    """{name: (type, shape, axes, unit)} that codebook.md's table asks for in an artifact of make_store's with this scheme."""
    channel, sparse = "channel" in scheme or scheme.startswith("kv"), "%" in scheme
    wanted = {}
    for path, kind, axes, unit, need, *_ in DATASETS:
        for tensor in ("key", "value"):
            offline = tensor == "key" and channel
            if path.endswith(("predicted_fitted", "predicted_held_out", "energy")):  # of vector codebooks
                continue
            if not (need in ("always", "levels", "optional") or offline and (need == "channel" or need == "outliers" and sparse)):
                continue
            bits = int(re.search(rf"{tensor[0]}=[a-z]+(\d)|nuq(\d)", scheme).group(1) or re.search(r"nuq(\d)", scheme).group(1))
            extents = {"layer": LAYERS, "head": HEADS, "channel": DIM if tensor == "key" else VALUE_DIM, "code": 2**bits, "bin": 128}
            wanted[path.strip("/").replace("{key,value}", tensor)] = (kind, [extents[a] for a in axes.split(",")], axes, unit)
    return wanted


def dotted(required=None):
    """{name: type} of codebook.md's attributes as flat metadata call them."""
    return {(("" if object == "/" else object[1:] + ".") + name): kind for object, name, kind, needed, *_ in ATTRIBUTES
            if required is None or (needed == "yes") == required}


def about(kind="safetensors", head=("name", "required", "since", "meaning")):
    """{name: required} of the page's own metadata, a row of several names taken apart."""
    rows = [row for row in tables(f"export-{kind}.md")[head] if row[0].startswith("export.")]
    return {name: row[1] for row in rows for name in re.findall(r"export\.\w+", row[0])}


def check_metadata(found, more=()):
    """Flat metadata: what codebook.md and the page require, and nothing that neither knows."""
    required = set(dotted(required=True)) | {name for name, needed in about().items() if needed == "yes"} | set(more)
    assert required <= set(found), required - set(found)
    assert set(found) <= required | set(dotted()), set(found) - required
    assert all(isinstance(value, str) for value in found.values())
    assert found["export.version"] == re.search(r"^# .*version (\S+)$", page("safetensors"), re.M)[1]


# ---- every page

@pytest.mark.parametrize("kind", FORMATS)
def test_a_page_has_its_parts(kind):
    """Aim, example, a table with type, shape or values, required, since and meaning, rules for versions, history."""
    text = page(kind)
    assert re.match(r"# Export: .*, (version|schema) \d", text) and "\nAim: " in text
    assert f"`kvcc export FILE.kvcb --to {kind} -o " in text and "```" in text
    first = next(iter(tables(f"export-{kind}.md")))
    assert {"type", "required", "since", "meaning"} <= set(first) or {"type", "required", "since", "meaning (`codebook.md`)"} <= set(first)
    assert re.search(r"^(\* )?Versions: |\* The safetensors format has no version; ", text, re.M), "no rules for versions"
    history = re.search(r"^History: (.*)", text, re.M | re.S)
    assert history and re.match(r"1(\.0)? ", history[1]) and "same bytes" not in history[1]
    assert "equal bytes" in text.lower()


@pytest.mark.parametrize("kind", FORMATS)
def test_every_row_says_since_when(kind):
    for head, rows in tables(f"export-{kind}.md").items():
        assert "since" in head, head
        for row in rows:
            assert len(row) == len(head), row
            assert re.fullmatch(r"\d+(\.\d+)?", row[head.index("since")]), row


# ---- each format

def test_safetensors(artifact):
    path, scheme = artifact
    out, _ = export(path, "safetensors")
    wanted = datasets_of(scheme)
    with safe_open(out, "numpy") as file:
        found = {name: (file.get_slice(name).get_dtype().lower(), file.get_slice(name).get_shape()) for name in file.keys()}
        check_metadata(file.metadata())
    assert found == {name: row[:2] for name, row in wanted.items()}


def test_npz(artifact):
    path, scheme = artifact
    out, _ = export(path, "npz")
    wanted = datasets_of(scheme)
    names = {row[0]: row for row in tables("export-npz.md")[("array", "type", "shape", "unit", "required", "since", "meaning")]}
    assert names["metadata"][1:5] == [r"\|S", "scalar", "", "yes"]
    with np.load(out) as file:
        metadata = json.loads(file["metadata"].item())
        assert file["metadata"].dtype.kind == "S" and file["metadata"].shape == ()
        found = {name: (file[name].dtype.str.lstrip("<|"), list(file[name].shape)) for name in file.files if name != "metadata"}
    described = metadata.pop("datasets")
    check_metadata(metadata)
    short = {"u8": "u1", "u16": "u2", "u32": "u4", "f32": "f4"}
    assert found == {name: (short[row[0]], row[1]) for name, row in wanted.items()}
    assert described == {name: {"axes": row[2], "unit": row[3]} for name, row in wanted.items()}


def test_json(artifact):
    path, scheme = artifact
    out, _ = export(path, "json")
    document = json.loads(out.read_text())
    rows = {row[0]: row for row in tables("export-json.md")[("member", "type", "required", "since", "meaning")]}
    assert list(rows) == ["schema_version", "attributes./`, `./model`, `./provenance", "attributes./export", "datasets.NAME.type",
                          "datasets.NAME.shape", "datasets.NAME.axes`, `unit", "datasets.NAME.data"]
    assert list(document) == ["schema_version", "attributes", "datasets"] and document["schema_version"] == 1
    assert set(document["attributes"]) == {"/", "/model", "/provenance", "/export"}
    assert {"export." + name for name in document["attributes"]["/export"]} == set(about())
    kinds = {"text": str, "integer": int, "float": float, "integers": list}
    for group, name, kind, required, *_ in ATTRIBUTES:
        assert (name in document["attributes"][group]) == (required == "yes"), name
        if required == "yes":
            assert type(document["attributes"][group][name]) is kinds[kind], name
    for name, entry in document["datasets"].items():
        assert list(entry) == ["type", "shape", "axes", "unit", "data"] and len(entry["data"]) == np.prod(entry["shape"])
    found = {name: (entry["type"], entry["shape"], entry["axes"], entry["unit"]) for name, entry in document["datasets"].items()}
    assert found == datasets_of(scheme)


def test_what_scales_mean_follows_the_scheme(tmp_path):
    for scheme, level in (("kvcc-nuq3-1%-sink1", "codebook[code]"), ("kvcc-nuq3-1%-qnorm-sink1", "fmaf(codebook[code], norm_scale, norm_offset)")):
        out, _ = export(make(tmp_path / f"{scheme}.kvcb", scheme), "json", name=f"{scheme}.json")
        about = json.loads(out.read_text())["attributes"]["/export"]
        assert about["key_scale"] == f"static, per channel; decoded = fmaf({level}, scale, zero) in f32; scale multiplies"
        assert about["value_scale"].startswith("online, per token") and f"decoded = fmaf({level}, scale, zero)" in about["value_scale"]


def test_gguf(artifact):
    path, scheme = artifact
    out, _ = export(path, "gguf")
    reader = gguf.GGUFReader(out)
    assert {t.name: list(t.shape)[::-1] for t in reader.tensors} == {name: row[1] for name, row in datasets_of(scheme).items()}
    assert {t.tensor_type for t in reader.tensors} == {gguf.GGMLQuantizationType.F32}
    rows = {row[0]: row for row in tables("export-gguf.md")[("key", "type", "required", "since", "meaning")]}
    assert set(rows) == {"general.architecture", "general.type", "general.name", "kvcc.NAME", "kvcc.export.channel_permutation"}
    found = {name: field.types[0] for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    general = {name for name in rows if name.startswith("general.")}
    wanted = {"kvcc." + name: GGUF_TYPES[kind] for name, kind in dotted(required=True).items()}
    wanted |= {name: GGUF_TYPES["text"] for name in [*general, *("kvcc." + name for name in about()), "kvcc.export.channel_permutation"]}
    assert found == wanted
    layers = reader.fields["kvcc.model.sliding_window_layers"]
    assert layers.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32]


def test_header(artifact):
    path, scheme = artifact
    out, _ = export(path, "header")
    text, wanted = out.read_text(), datasets_of(scheme)
    declared = {name: (kind, [int(n) for n in re.search(rf"kvcc_codebook_{name}((?:\[\d+\])+) =", text)[1].strip("[]").split("][")])
                for kind, name in re.findall(r"^KVCC_CODEBOOK_STORAGE ([a-z ]+) kvcc_codebook_(\w+?)\[", text, re.M)}
    extents = {"L": LAYERS, "H": HEADS, "C": None, "D": DIM}
    rows, expected = tables("export-header.md")[("array", "type", "shape", "required", "since", "meaning (`codebook.md`)")], {}
    for names, kind, shape, required, *_ in rows:
        for name in re.findall(r"\w+", names):
            dataset = name if name == "layer_index" else name.replace("_", "/", 1)
            if dataset not in wanted:
                assert required != "yes", name
                continue
            expected[name] = (kind, wanted[dataset][1])
            letters = re.findall(r"\[(\w)\]", shape)
            assert [extents[c] or n for c, n in zip(letters, wanted[dataset][1], strict=True)] == wanted[dataset][1], name
    assert declared == expected
    assert ("key_scale" in declared) == (re.search(r"KEY_PER_CHANNEL (\d)", text)[1] == "1")
    macros = re.findall(r"^#define KVCC_CODEBOOK_(\w+) (.*)", text, re.M)
    named = {name: row for row in tables("export-header.md")[("macro", "type", "required", "since", "meaning")]
             for name in re.findall(r"[A-Z_0-9]+", row[0])}
    forms = {"text": r'".*"', "number": r"-?[0-9.e+-]+(LL)?"}
    for name, value in macros:
        if name != "STORAGE":
            assert re.fullmatch(forms[named.pop(name)[1]], value), (name, value)
    assert named == {}, "rows without a macro"


@pytest.mark.parametrize("per_head", [False, True])
def test_vllm(artifact, per_head):
    path, _ = artifact
    out, _ = export(path, "vllm", *["--per-head"] * per_head)
    rows = tables("export-vllm.md")[("tensor", "type", "shape", "unit", "required", "since", "meaning")]
    with safe_open(out, "numpy") as file:
        found = {name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) for name in file.keys()}
        metadata = file.metadata()
    shape = [HEADS] if per_head else [1]
    assert found == {row[0].replace(".N.", f".{2 * layer}."): (row[1], shape) for row in rows for layer in range(LAYERS)}
    assert all(row[2:4] == ["[1], or [H] with `--per-head", "element"] or row[2] == "likewise" for row in rows)
    own = set(about("vllm"))
    assert own == {"export.granularity", "export.key_range", "export.value_range"}
    assert metadata.pop("format") == "pt"
    root = {name for name in dotted() if "." not in name}
    required = (set(dotted(required=True)) - root) | {"content_sha256", "format_version", "scheme"} | set(about()) | own
    assert set(metadata) == required


# ---- readers

def test_readers_ask_for_what_the_page_names():
    """The consumer in Python, the reader in C and the runtime: every name they look up is in codebook.md or the page."""
    known = set(dotted()) | set(about()) | {name for scheme in SCHEMES for name in datasets_of(scheme)}
    leaves = {name.split("/", 1)[-1] for name in known}

    def check(path, metadata, arrays, least):
        text = (SOURCE / path).read_text()
        asked = {name for pattern in metadata for name in re.findall(pattern, text)}
        assert len(asked) >= least and asked <= known, (path, sorted(asked - known), len(asked))
        asked = set(re.findall(arrays, text))
        assert {"bits", "codebook", "scale", "zero"} <= asked <= leaves and "layer_index" in text, (path, asked)

    check("formats/export/python/kvcc_cache.py", [r'"(model\.\w+)"', r'metadata(?:\[|\.get\()"([\w.]+)"'],
          r'(?<![.\w])get\("(\w+)"\)', 8)
    check("kernels/host/runtime_artifact.cc", [r'(?:text|digest|number|check_version|contains)\("([\w.]+)"'], r'at \+ "(\w+)"', 10)
    check("formats/export/c/kvcc_read.h", [r'kvcc_metadata(?:_number)?\(file, (?:key \? )?"([\w.]+)"'], r'kvcc_dataset\(file, tensor, "(\w+)"', 5)
