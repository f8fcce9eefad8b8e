"""The artifact and the activations as others read them: h5py and hashlib alone, and the spec pages against the code."""
import hashlib
import json
import re
import subprocess

import h5py
import numpy as np
import pytest

from support import BUILD, SOURCE

MAKE = BUILD / "tests/bin/make_store"
SPEC = SOURCE / "formats/spec"
NAMES = {"uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "int8": "i8", "int16": "i16", "int32": "i32",
         "int64": "i64", "float32": "f32", "float64": "f64"}


MEMBERS = ("member", "type", "required", "since", "meaning")


def make(*arguments):
    return subprocess.run([MAKE, *map(str, arguments)], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(params=["kvcc-nuq3-1%-sink1", "kvquant-nuq4", "k=int4@postrope/token,v=nuq2@token,sparse=1%"])
def artifact(request, tmp_path):
    path = tmp_path / "модель é.kvcb"
    return path, make("codebook", path, request.param), request.param


def objects(file):
    found = {"/": file}
    file.visititems(lambda name, item: found.__setitem__("/" + name, item))
    return dict(sorted(found.items(), key=lambda entry: entry[0].encode()))


def value_bytes(value):
    """(type, shape, bytes) of a dataset's or attribute's value, as codebook.md says."""
    if isinstance(value, (str, bytes)):
        data = (value.encode() if isinstance(value, str) else value).rstrip(b"\0")
        return "text", "scalar", data
    array = np.asarray(value)
    if array.dtype.kind in "SOU":
        return value_bytes(array[()])
    assert array.dtype.byteorder in "<|=", array.dtype
    shape = "x".join(map(str, array.shape)) or "scalar"
    return NAMES[array.dtype.name], shape, np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()


def content_sha256(path):
    digest = hashlib.sha256()

    def add(head, value):
        kind, shape, data = value_bytes(value)
        digest.update(f"{head} {kind} {shape} {len(data)}\n".encode() + data + b"\n")

    with h5py.File(path) as file:
        for name, item in objects(file).items():
            if isinstance(item, h5py.Dataset):
                add(f"dataset {name}", item[()])
            else:
                digest.update(f"group {name}\n".encode())
            for attribute in sorted(item.attrs, key=str.encode):
                if (name, attribute) != ("/", "content_sha256"):
                    add(f"attribute {name} {attribute}", item.attrs[attribute])
    return digest.hexdigest()


def test_checksum_is_the_specs(artifact):
    path, stated, _ = artifact
    with h5py.File(path) as file:
        assert value_bytes(file.attrs["content_sha256"])[2].decode() == stated
    assert content_sha256(path) == stated


def test_F41_other_processes_write_the_same_bytes(artifact):
    path, _, scheme = artifact
    again = path.with_name("again.kvcb")
    make("codebook", again, scheme)
    assert again.read_bytes() == path.read_bytes()


def test_container_rules(artifact):
    path, _, _ = artifact
    with h5py.File(path) as file:
        for name, item in objects(file).items():
            if not isinstance(item, h5py.Dataset):
                continue
            assert item.dtype.byteorder in "<|=" and item.dtype.kind in "fiu", name
            assert item.chunks is None and item.compression is None, name
            assert item.id.get_create_plist().get_obj_track_times() == 0, name
            assert {"axes", "unit"} <= set(item.attrs), name
    # Of groups the library does not tell: bit 5 of an object header's flags says that it holds times.
    headers = re.findall(rb"OHDR\x02(.)", path.read_bytes(), re.S)
    assert len(headers) > 20 and all(flags[0] & 0x20 == 0 for flags in headers)


def tables(page):
    """Rows of the page's tables by the texts of their first row, without ids (tests/structure/test_spec_ids.py)."""
    found, head = {}, None
    for line in (SPEC / page).read_text().splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = [cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if head is None:
            head = tuple(cells[:-1] if cells[-1] == "id" else cells)
            found.setdefault(head, [])
        elif not set(line) <= set("|- "):
            found[head].append(cells[:len(head)])
    return found


def code_fields():
    """The datasets and attributes of codebook_fields.cc, by the text of its tables."""
    text = (SOURCE / "formats/store/codebook_fields.cc").read_text()
    text = text.replace("kHead,", '"layer,head",').replace("kChannel,", '"layer,head,channel",')
    text = text.replace("kCoordinate,", '"layer,unit,coordinate",')
    fields = {}
    for match in re.finditer(r'(floats|statistic|number|vector)\("([^"]+)",\s*"([^"]+)",\s*"([^"]+)"(?:,\s*Need::(\w+))?', text):
        fields[match[2]] = ("u32" if match[1] == "number" else "f32", match[3], match[4], match[5] or ("vector" if match[1] == "vector" else "optional"))
    for match in re.finditer(r'\{"([^"]+)", Element::(\w+),\s*"([^"]+)",\s*"([^"]+)",\s*Need::(\w+)', text):
        fields[match[1]] = match.groups()[1:]
    attributes = re.findall(r'\{"(/\w*)", "(\w+)", "(text|integer|integers|float)", (true|false)\}', text)
    return fields, attributes


def test_spec_tables_are_the_readers():
    page = tables("codebook.md")
    fields, attributes = code_fields()
    assert len(fields) == 40 and len(attributes) == 40
    head = ("path", "type", "axes", "unit", "need", "since", "meaning")
    rows = {row[0]: row for row in page[head]}
    assert rows.pop("/layer_index")[1:5] == ["u16", "layer", "1", "always"]
    assert {path.removeprefix("/rotation/{key,value}").removeprefix("/{key,value}/"): tuple(row[1:5])
            for path, row in rows.items()} == fields
    head = ("object", "name", "type", "required", "since", "meaning")
    assert [tuple(row[:4]) for row in page[head]] == [(o, n, t, "yes" if r == "true" else "no") for o, n, t, r in attributes]


def test_written_file_has_what_the_spec_lists(artifact):
    path, _, scheme = artifact
    page = tables("codebook.md")
    channel = "channel" in scheme or scheme.startswith("kv")
    sparse = "%" in scheme
    wanted = {}
    for row in page[("path", "type", "axes", "unit", "need", "since", "meaning")]:
        for tensor in ("key", "value"):
            offline = tensor == "key" and channel
            if row[0].endswith(("predicted_fitted", "predicted_held_out", "energy")):
                continue  # of vector codebooks
            if row[4] in ("always", "levels", "optional") or (offline and (row[4] == "channel" or (row[4] == "outliers" and sparse))):
                wanted[row[0].replace("{key,value}", tensor)] = row[1:4]
    with h5py.File(path) as file:
        found = {name: [NAMES[item.dtype.name], item.attrs["axes"].decode() if isinstance(item.attrs["axes"], bytes)
                        else item.attrs["axes"], item.attrs["unit"] if isinstance(item.attrs["unit"], str)
                        else item.attrs["unit"].decode()]
                 for name, item in objects(file).items() if isinstance(item, h5py.Dataset)}
        for row in page[("object", "name", "type", "required", "since", "meaning")]:
            assert (row[1] in file[row[0]].attrs) == (row[3] == "yes"), row
    assert found == wanted


def test_a_file_that_h5py_wrote_reads_too(tmp_path):
    """Values, variable-length text and another group format: what counts is the content."""
    source, copy = tmp_path / "a.kvcb", tmp_path / "b.kvcb"
    sha256 = make("codebook", source)
    with h5py.File(source) as old, h5py.File(copy, "w") as new:
        for name, item in objects(old).items():
            target = new if name == "/" else (new.create_dataset(name, data=item[()]) if isinstance(item, h5py.Dataset)
                                              else new.require_group(name))
            for key, value in item.attrs.items():
                kind, _, data = value_bytes(value)
                target.attrs[key] = data.decode() if kind == "text" else value
    assert content_sha256(copy) == sha256
    done = subprocess.run([BUILD / "bin/kvcc", "validate", copy], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("edit, message", [
    (lambda f: f.create_dataset("key/scale2", data=np.ones((3, 2), "f4"), chunks=(1, 2)), "contiguous storage"),
    (lambda f: f.create_dataset("names", data=np.array([b"a", b"b"])), "a dataset of texts"),
    (lambda f: f.create_dataset("big", data=np.ones(3, ">f4")), "big-endian"),
    (lambda f: f.create_dataset("pairs", data=np.zeros(2, [("a", "f4"), ("b", "i4")])), "element type"),
    (lambda f: f.__setitem__("link", h5py.SoftLink("/key")), "a soft or external link"),
    (lambda f: f.__setitem__("far", h5py.ExternalLink("other.h5", "/key")), "a soft or external link"),
    (lambda f: f.__setitem__("key/loop", f["/"]), "several names"),
    (lambda f: f.create_dataset("empty", data=h5py.Empty("f4")), "no shape"),
    (lambda f: f.attrs.__setitem__("list", np.array(["a", "b"], dtype="S1")), "an array of texts"),
])
def test_what_is_not_plain_is_refused(tmp_path, edit, message):
    path = tmp_path / "a.kvcb"
    make("codebook", path)
    with h5py.File(path, "r+") as file:
        edit(file)
    done = subprocess.run([BUILD / "bin/kvcc", "validate", path], capture_output=True, text=True)
    assert done.returncode == 3
    assert message in done.stdout


def test_activations_are_the_specs(tmp_path):
    for dtype, kind in (("f32", "f32"), ("bf16", "u16")):
        folder = tmp_path / dtype
        make("activations", folder, dtype)
        manifest = json.loads((folder / "manifest.json").read_text())
        page = tables("activations.md")
        # left_out and samples_asked are there only when samples were, the others where samples differ in length, texts are
        # several, or runs were merged.
        merged = ["lengths", "parts", "sample_part", "sources", "sample_source", "sample_number"]
        assert [row[0] for row in page[MEMBERS]] == [*manifest, "left_out", "samples_asked", *manifest["settings"], *merged]
        types = {"integer": int, "text": str, "boolean": bool, "object": dict, "integers": list, "texts": list}
        for name, stated, *_ in page[MEMBERS]:
            if name in manifest or name in manifest["settings"]:
                value = manifest[name] if name in manifest else manifest["settings"][name]
                assert type(value) is types[stated.split()[0]], name
                if stated.split()[0] in ("integers", "texts"):
                    assert {type(each) for each in value} == {int if stated.startswith("integers") else str}, name
        for name, entry in manifest["shards"].items():
            data = (folder / name).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"])
        with h5py.File(folder / "s0001/l0002.h5") as shard:
            rows = page[("path", "type", "axes", "unit", "required", "since", "meaning")]
            assert sorted(row[0] for row in rows) == sorted("/" + name for name in shard)
            for row in rows:
                item = shard[row[0]]
                assert NAMES[item.dtype.name] == kind
                assert [value_bytes(item.attrs[key])[2].decode() for key in ("axes", "unit")] == row[2:4]
            key = shard["key"][()]
            assert key.shape == (5, 2, 8)
            wanted = 120 + np.arange(80, dtype="f4") * np.float32(0.5)
            if dtype == "bf16":  # to nearest, ties to even
                bits = wanted.view("u4").astype("u8")
                wanted = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype("u2")
            np.testing.assert_array_equal(key.ravel(), wanted)
            assert shard.attrs["layer"] == 2 and shard.attrs["sample"] == 1


@pytest.mark.parametrize("merged", [False, True])
def test_reader_requires_what_the_page_says(tmp_path, merged):
    folder = tmp_path / "a"
    make("activations", folder)
    path = folder / "manifest.json"
    if merged:
        text = json.loads(path.read_text())
        settings = text["settings"]
        source = {name: settings[name] for name in ("text_name", "text_sha256", "text_flavour", "seed")}
        settings.update(sources=[source], sample_source=[0, 0], sample_number=[0, 1])
        path.write_text(json.dumps(text | {"schema_version": 2}))
    good = path.read_text()
    for name, _, required, _, _ in tables("activations.md")[MEMBERS]:
        document = json.loads(good)
        place = document if name in document else document["settings"]
        if name not in place:
            assert required != "yes"
            continue
        del place[name]
        path.write_text(json.dumps(document))
        done = subprocess.run([BUILD / "bin/kvcc", "validate", folder], capture_output=True, text=True)
        refused = f"'{name}' is missing" in done.stdout
        assert refused == (required != "no") and done.returncode == (3 if refused else 0), (name, done.stdout)


def test_content_hash_of_activations_is_the_specs(tmp_path):
    make("activations", tmp_path / "a")
    manifest = json.loads((tmp_path / "a/manifest.json").read_text())
    settings = manifest["settings"]
    del settings["model"]["name"], settings["text_name"]
    text = json.dumps(settings, separators=(",", ":"), ensure_ascii=False) + "\n"
    text += "".join(f"{name} {entry['bytes']} {entry['sha256']}\n" for name, entry in sorted(manifest["shards"].items()))
    out = subprocess.run([BUILD / "bin/kvcc", "inspect", "--json", tmp_path / "a"], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout)["content_sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_kernels_page_lists_the_members():
    code = (SOURCE / "formats/store/kernels_manifest.cc").read_text()
    written = {name: re.findall(r'document\["(\w+)"\] =', body)
               for name, body in re.findall(r"^ordered_json (\w+)\(const[^)]*\) \{\n(.*?)^\}", code, re.M | re.S)}
    vectors = re.search(r"^ordered_json vectors_json\(.*?^\}", code, re.M | re.S).group()
    members = re.findall(r'\{"(\w+)", ', vectors)
    listed = re.findall(r"^\| `(\w+)` \|", (SPEC / "kernels.md").read_text(), re.M)
    assert listed == [*written["to_json"], *written["pages_json"], *members, *written["entry_json"], *written["launch_json"]]
