"""Every broken file of the catalogue through the real program: exit 3, a message that names place and rule, within bounds of
memory and time, and nothing is written."""
import copy
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import catalogue  # noqa: E402
import good_files  # noqa: E402
from support import BUILD, KVCC  # noqa: E402

MAKE = BUILD / "tests/bin/make_store"
MEMORY, SECONDS = 1 << 30, 10


def bounded():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(*arguments, code=3, limit=True):
    """stdout and stderr of kvcc, which must end with `code` in time and memory."""
    done = subprocess.run([KVCC, *map(str, arguments)], capture_output=True, timeout=SECONDS, preexec_fn=bounded if limit else None)
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    assert done.returncode == code, f"exit {done.returncode}, wanted {code}: {arguments}\n{out[-2000:]}\n{err[-2000:]}"
    return out, err


def snapshot(folder):
    return sorted((str(path.relative_to(folder)), path.stat().st_mtime_ns if path.is_file() else 0) for path in folder.rglob("*"))


def spoil(good, edit, encode):
    """The bytes of a broken file."""
    parts = copy.deepcopy(good)
    result = edit(parts)
    return result if isinstance(result, bytes) else encode(parts)


def refused(path, message, place):
    """kvcc validate refuses `path`, in one line that has all of `message` and the path of the spoilt file."""
    before = snapshot(place)
    out, err = run("validate", path)
    assert err == "" and "Traceback" not in out
    for part in [str(path), *message]:
        assert part in out, (part, out[:2000])
    assert all(len(line) < 4000 for line in out.splitlines()), "a message as long as the file likes"
    assert snapshot(place) == before


def cases(table):
    names = [name for name, _, _ in table]
    assert len(set(names)) == len(names)
    return pytest.mark.parametrize("edit, message", [case[1:] for case in table], ids=names)


def as_json(document):
    return json.dumps(document).encode()


# ---- models

@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("модель é")
    (folder / "config.json").write_text(json.dumps(good_files.CONFIG))
    (folder / "model.safetensors").write_bytes(good_files.Safetensors().bytes())
    (folder / "tokenizer.json").write_text(json.dumps(good_files.tokenizer()))
    run("validate", folder, code=0)
    return folder


def spoilt_model(model, tmp_path, name, data):
    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    (folder / name).write_bytes(data)
    return folder


@cases(catalogue.SAFETENSORS)
def test_safetensors(model, tmp_path, edit, message):
    data = spoil(good_files.Safetensors(), edit, good_files.Safetensors.bytes)
    refused(spoilt_model(model, tmp_path, "model.safetensors", data), message, tmp_path)


@cases(catalogue.CONFIG)
def test_config_json(model, tmp_path, edit, message):
    data = spoil(good_files.CONFIG, edit, as_json)
    refused(spoilt_model(model, tmp_path, "config.json", data), message, tmp_path)


@cases(catalogue.TOKENIZER)
def test_tokenizer_json(model, tmp_path, edit, message):
    data = spoil(good_files.tokenizer(), edit, as_json)
    refused(spoilt_model(model, tmp_path, "tokenizer.json", data), message, tmp_path)


@cases(catalogue.INDEX)
def test_safetensors_index(model, tmp_path, edit, message):
    folder = tmp_path / "m"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    names, index = list(good_files.shapes()), {}
    for shard, part in (("model-1.safetensors", names[:5]), ("model-2.safetensors", names[5:])):
        (folder / shard).write_bytes(good_files.Safetensors(part).bytes())
        index |= dict.fromkeys(part, shard)
    document = {"metadata": {}, "weight_map": index}
    path = folder / "model.safetensors.index.json"
    path.write_bytes(as_json(document))
    run("validate", folder, code=0)
    path.write_bytes(spoil(document, edit, as_json))
    refused(folder, message, tmp_path)


@cases(catalogue.GGUF)
def test_gguf(tmp_path, edit, message):
    path = tmp_path / "модель.gguf"
    path.write_bytes(spoil(good_files.Gguf(), edit, good_files.Gguf.bytes))
    refused(path, message, tmp_path)


def test_good_gguf(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(good_files.Gguf().bytes())
    assert "blk.1.attn_q.weight" not in run("validate", path, code=0)[0], "names are Hugging Face's"


def test_sizes_that_no_file_has(tmp_path, model):
    """A terabyte, of which the disk holds nothing."""
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        folder = spoilt_model(model, tmp_path / name, name, b"")
        with open(folder / name, "r+b") as file:
            file.truncate(1 << 40)
        out, _ = run("validate", folder, code=3)
        assert str(folder / name) in out and ("1.0 TiB; wanted a file of JSON of at most" in out or "header" in out or "cannot be mapped" in out)


# ---- activations

@pytest.fixture(scope="module")
def activations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("acts") / "a"
    subprocess.run([MAKE, "activations", folder], check=True)
    run("validate", folder, code=0)
    return folder


def also_fit(folder, tmp_path):
    before = snapshot(tmp_path)
    out, err = run("fit", folder, "--scheme", "kvcc-nuq3-1%-sink1", "-o", tmp_path / "out.kvcb", "--quiet", "--threads", 1)
    named = str(folder) in err or ("layer 1" in err and "sample 1" in err)  # of values: where they are in the model
    assert out == "" and named and err.count("\n") == 1, err
    assert snapshot(tmp_path) == before


@cases(catalogue.MANIFEST)
def test_manifest(activations, tmp_path, edit, message):
    folder = tmp_path / "a"
    shutil.copytree(activations, folder)
    good = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_bytes(spoil(good, edit, as_json))
    refused(folder, message, tmp_path)
    sound_but_listed = "another checksum" in message or message == ["not complete"]
    if not sound_but_listed and "sha256 is not the manifest's" not in message[0]:
        also_fit(folder, tmp_path)


def reseal(folder, name):
    """Size and checksum of a spoilt shard put right in the manifest, so that the shard itself is what is refused."""
    import hashlib
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    data = (folder / name).read_bytes()
    document["shards"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_text(json.dumps(document))


def with_h5py(edit):
    def spoilt(path):
        import h5py
        with h5py.File(path, "r+") as file:
            edit(file)
    return spoilt


def with_bytes(edit):
    return lambda path: path.write_bytes(edit(path.read_bytes()))


def again(name, **change):
    """A dataset written anew, otherwise."""
    def edit(file):
        data, attributes = file[name][()], dict(file[name].attrs)
        del file[name]
        file.create_dataset(name, **({"data": data} | change(data) if callable(change) else {"data": data} | change))
        for key, value in attributes.items():
            file[name].attrs[key] = value
    return edit


def at(path, index, value):
    def edit(file):
        file[path][index] = value
    return edit


def soft(file):
    import h5py
    file["link"] = h5py.SoftLink("/key")


def far(file):
    import h5py
    file["far"] = h5py.ExternalLink("/etc/passwd", "/")


def superblock(offset, value):
    return with_bytes(lambda data: data[:offset] + value + data[offset + len(value):])


HDF5 = [  # hold for shards and artifacts
    ("empty", with_bytes(lambda data: b""), []),
    ("bad magic", with_bytes(lambda data: b"GGUF" + data[4:]), ["no HDF5 file"]),
    ("cut in half", with_bytes(lambda data: data[:len(data) // 2]), ["damaged or truncated"]),
    ("cut by a byte", with_bytes(lambda data: data[:-1]), ["damaged or truncated"]),
    ("superblock alone", with_bytes(lambda data: data[:48]), ["damaged or truncated"]),
    ("future superblock", superblock(8, b"\x04"), ["superblock 4"]),
    ("addresses of 4 bytes", superblock(9, b"\x04"), ["addresses that do not have 8 bytes"]),
    ("root beyond the file", superblock(36, b"\xff" * 7 + b"\x7f"), ["damaged or truncated", "an object"]),
    ("root within the superblock", superblock(36, b"\0" * 8), ["damaged or truncated"]),
    ("soft link", with_h5py(soft), ["/link", "a soft or external link"]),
    ("external link", with_h5py(far), ["/far", "a soft or external link"]),
    ("ring", with_h5py(lambda f: f.__setitem__("loop", f["/"])), ["/loop", "several names"]),
    ("chunked", with_h5py(lambda f: f.create_dataset("x", data=[1.0] * 8, chunks=(2,))), ["/x", "contiguous storage"]),
    ("compressed", with_h5py(lambda f: f.create_dataset("x", data=[1.0] * 8, compression="gzip")), ["/x"]),
    ("texts of variable length", with_h5py(lambda f: f.create_dataset("x", data=["a", "b"])), ["/x", "a dataset of texts"]),
    ("big-endian", with_h5py(lambda f: f.create_dataset("x", data=[1.0] * 8, dtype=">f4")), ["/x", "big-endian"]),
    ("compound", with_h5py(lambda f: f.create_dataset("x", shape=(2,), dtype=[("a", "f4"), ("b", "i4")])), ["/x", "element type of class 6"]),
    ("extensible", with_h5py(lambda f: f.create_dataset("x", shape=(2,), maxshape=(None,))), ["/x", "contiguous storage"]),
    ("deep groups", with_h5py(lambda f: f.create_group("/".join("g" * 40))), ["/g/g", "nested too deeply"]),
    ("thousands of groups", with_h5py(lambda f: [f.create_group(f"g{i}") for i in range(1100)]), ["/: a heap of links"]),
    ("hundreds of attributes", with_h5py(lambda f: [f.attrs.__setitem__(f"a{i}", i) for i in range(300)]), [""]),
    ("required, and unknown", with_h5py(lambda f: f.create_dataset("x", data=[1.0]).attrs.__setitem__("required", 1)), ["/x: "]),
]

SHARD = [
    ("another format", with_h5py(lambda f: f.attrs.__setitem__("format", "x")), ["attribute format is missing or wrong"]),
    ("F55 future version", with_h5py(lambda f: f.attrs.__setitem__("format_version", "2.0")), ["format_version is '2.0'", "up to 1.x"]),
    ("another sample", with_h5py(lambda f: f.attrs.__setitem__("sample", 7)), ["attribute sample is missing or wrong"]),
    ("another layer", with_h5py(lambda f: f.attrs.__setitem__("layer", 9)), ["attribute layer is missing or wrong"]),
    ("missing dataset", with_h5py(lambda f: f.__delitem__("value_grad")), ["/value_grad: missing"]),
    ("a group in its place", with_h5py(lambda f: (f.__delitem__("key"), f.create_group("key"))), ["/key: missing"]),
    ("axes exchanged", with_h5py(lambda f: f["key"].attrs.__setitem__("axes", "head,token,channel")), ["/key", "axes is 'head,token,channel'"]),
    ("another unit", with_h5py(lambda f: f["key_grad"].attrs.__setitem__("unit", "element")), ["/key_grad", "unit is 'element'", "nat/element"]),
    ("no axes", with_h5py(lambda f: f["value"].attrs.__delitem__("axes")), ["/value", "axes is ''"]),
    ("another encoding", with_h5py(lambda f: f["key"].attrs.__setitem__("encoding", "bf16")), ["/key", "encoding is 'bf16'"]),
    ("another type", with_h5py(again("key", dtype="f8")), ["/key: f64", "f32"]),
    ("a token less", with_h5py(lambda f: again("key", data=f["key"][1:])(f)), ["/key: f32 [4, 2, 8]", "[5, 2, 8]"]),
    ("axes reversed", with_h5py(lambda f: again("key", data=f["key"][()].T)(f)), ["/key: f32 [8, 2, 5]", "[5, 2, 8]"]),
    ("NaN key", with_h5py(at("key", (3, 1, 2), float("nan"))), ["/key: nan at token 3"]),
    ("F25 NaN gradient", with_h5py(at("value_grad", (1, 0, 0), float("nan"))), ["/value_grad: nan at token 1"]),
    ("F25 infinite gradient", with_h5py(at("key_grad", (4, 1, 7), float("inf"))), ["/key_grad: inf at token 4"]),
]


def names(table):
    return pytest.mark.parametrize("edit, message", [case[1:] for case in table], ids=[case[0] for case in table])


@names(HDF5 + SHARD)
def test_shard(activations, tmp_path, edit, message):
    folder, name = tmp_path / "a", "s0001/l0001.h5"
    shutil.copytree(activations, folder)
    edit(folder / name)
    if (folder / name).stat().st_size > 0:
        reseal(folder, name)
    refused(folder, [name, *message], tmp_path)
    also_fit(folder, tmp_path)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    path = tmp_path_factory.mktemp("kvcb") / "a.kvcb"
    subprocess.run([MAKE, "codebook", path], check=True, capture_output=True)
    run("validate", path, code=0)
    return path


@names(HDF5)
def test_kvcb(artifact, tmp_path, edit, message):
    """Rules of the content, with the checksum put right: tests/formats/store/broken_codebook_test.cc."""
    path = tmp_path / "b.kvcb"
    shutil.copy(artifact, path)
    edit(path)
    refused(path, message, tmp_path)
    before = snapshot(tmp_path)
    for verb in (["inspect", path], ["export", path, "--to", "json", "-o", tmp_path / "x.json"],
                 ["compile", path, "--emit-only", "-o", tmp_path / "k"]):
        out, err = run(*verb)
        assert out == "" and str(path) in err and err.count("\n") == 1, verb
    assert snapshot(tmp_path) == before


def test_truncation_at_every_boundary(artifact, activations, model, tmp_path):
    """One run for hundreds of files: each is refused, each for itself."""
    files = []

    def cut(name, data, places):
        for place in sorted(set(places)):
            if not 0 <= place < len(data):
                continue
            folder = tmp_path / f"{name}{place}"
            if name in ("config.json", "tokenizer.json", "model.safetensors"):
                shutil.copytree(model, folder)
                (folder / name).write_bytes(data[:place])
                files.append(folder)
            else:
                (tmp_path / f"{place}.{name}").write_bytes(data[:place])
                files.append(tmp_path / f"{place}.{name}")

    def marks(data, *signs):
        found = [i for sign in signs for i in range(len(data)) if data.startswith(sign, i)]
        return [place + step for place in found for step in (0, 1)]

    gguf = good_files.Gguf()
    data = gguf.bytes()
    cut("gguf", data, [*gguf.boundaries, *(place + 1 for place in gguf.boundaries), len(data) - 1])
    data = artifact.read_bytes()
    cut("kvcb", data, [8, 44, 48, len(data) - 1, *marks(data, b"OHDR", b"OCHK")])
    data = good_files.Safetensors().bytes()
    cut("model.safetensors", data, [8, *marks(data, b"{", b"}", b"]")][::4] + [len(data) - 1])
    for name in ("config.json", "tokenizer.json"):
        data = (model / name).read_bytes()
        cut(name, data, marks(data, b"{", b"}", b"[", b":")[:40])
    out, _ = run("validate", "--json", *files)
    verdicts = json.loads(out)["files"]
    assert len(verdicts) == len(files) > 250
    for verdict in verdicts:
        assert not verdict["valid"] and verdict["path"] in verdict["problems"][0], verdict
        assert any(word in verdict["problems"][0] for word in ("truncated", "empty file", "no HDF5 file", "not JSON")), verdict


# ---- kernels

@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    path = folder / "tiny.kvcb"
    subprocess.run([BUILD / "tests/bin/write_codebook", path, "kvcc-nuq3-1%-sink1", "1", "1", "1", "64", "64"], check=True,
                   capture_output=True)
    run("compile", path, "--emit-only", "-o", folder / "k", code=0)
    run("validate", folder / "k", code=0)
    return folder / "k"


@cases(catalogue.KERNELS)
def test_kernels_json(kernels, tmp_path, edit, message):
    folder = tmp_path / "k"
    shutil.copytree(kernels, folder)
    good = json.loads((folder / "kernels.json").read_text())
    (folder / "kernels.json").write_bytes(spoil(good, edit, as_json))
    refused(folder, message, tmp_path)


# ---- through the programs that use models

@pytest.mark.skipif(not (BUILD / "libexec/kvcc/kvcc-collect").exists(), reason="built without libtorch")
@pytest.mark.parametrize("name, data", [("config.json", b'{"a":{"b":1,"b":2}}'), ("model.safetensors", b"\xff" * 64),
                                        ("tokenizer.json", b"[" * 100_000)])
def test_collect(model, tmp_path, name, data):
    folder = spoilt_model(model, tmp_path, name, data)
    text = tmp_path / "text.txt"
    text.write_text("a b c " * 100)
    before = snapshot(tmp_path)
    _, err = run("collect", folder, "--text", text, "--seqlen", 16, "--samples", 1, "-o", tmp_path / "acts", "--dry-run", "--quiet",
                 limit=False)
    assert str(folder / name) in err and err.count("\n") == 1
    assert snapshot(tmp_path) == before
