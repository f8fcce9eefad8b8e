"""A cache file read by others: PyPI safetensors opens it, and NumPy, from the words of formats/spec alone, makes the same
bytes of the same rows."""
import hashlib
import json
import sys

import numpy as np
from runtime_api import Runtime, make_artifact, options
from safetensors import safe_open
from support import SOURCE

sys.path.insert(0, str(SOURCE / "tests/kernels"))
from mma_pages import Shape, mma_page, mma_page_bytes  # noqa: E402

HEADS, DIM, TOKENS, SINK = 2, 64, 200, 1


def nearest(levels, y):
    """Codes of y [...] among levels [C]: a tie goes to the lower one. All in f32."""
    boundaries = np.float32(0.5) * (levels[:-1] + levels[1:])
    return (y[..., None] > boundaries).sum(-1)


def encode_keys(x, levels, scale, zero, lower, upper):
    """x [T, H, D] -> codes, records (token, column) -> fp16 bits."""
    clamped = np.clip(x, lower, upper)
    codes = np.stack([nearest(levels[h], ((clamped - zero) / scale)[:, h]) for h in range(HEADS)], 1)
    outside = np.argwhere((x < lower) | (x > upper))
    return codes, {(t, h * DIM + c): int(np.float16(x[t, h, c]).view(np.uint16)) for t, h, c in outside.tolist()}


def encode_values(x, levels, tail):
    """x [T, H, D] -> codes, ranges [T, 2] u16, records."""
    codes, ranges, records = np.zeros(x.shape, int), np.zeros((len(x), 2), np.uint16), {}
    for t, row in enumerate(x.reshape(len(x), -1)):
        order = np.lexsort((np.arange(row.size), row))
        inliers = np.sort(row[order[tail:-tail]])
        low, high = inliers[0], inliers[-1]
        half = np.float16([np.float32(0.5) * (high - low), np.float32(0.5) * (high + low)])
        ranges[t] = half.view(np.uint16)
        scale, zero = half.astype(np.float32)
        y = ((np.clip(row, low, high) - zero) / scale).reshape(HEADS, DIM)
        codes[t] = [nearest(levels[h], y[h]) for h in range(HEADS)]
        for column in (*order[:tail], *order[-tail:]):
            records[t, int(column)] = int(np.float16(row[column]).view(np.uint16))
    return codes, ranges, records


def pages_of(shape, codes, ranges, records):
    """All pages of packed tokens, and the capacity that the file gives them."""
    counts = {}
    for (t, column), _ in records.items():
        at = (t // 64, column // DIM)
        counts[at] = counts.get(at, 0) + 1
    capacity = (max(counts.values(), default=0) + 3) // 4 * 4
    pages = []
    for first in range(0, len(codes), 64):
        tokens = min(64, len(codes) - first)
        c, r = np.zeros((64, HEADS, DIM), int), np.zeros((64, 2), np.uint16)
        c[:tokens] = codes[first:first + tokens]
        if ranges is not None:
            r[:tokens] = ranges[first:first + tokens]
        mine = {(t - first, column): v for (t, column), v in records.items() if first <= t < first + tokens}
        pages.append(mma_page(c, r, mine, shape, capacity))
    assert all(len(page) == mma_page_bytes(shape, capacity) for page in pages)
    return b"".join(pages), capacity


def checksum(file):
    """As section 6 of cache-file.md has it."""
    size = int.from_bytes(file[:8], "little")
    header, data = json.loads(file[8:8 + size]), file[8 + size:]
    sha = hashlib.sha256()
    for name, value in sorted(header.pop("__metadata__").items(), key=lambda item: item[0].encode()):
        if name != "content_sha256":
            sha.update(f"metadata {name} {len(value.encode())}\n{value}\n".encode())
    for name, entry in sorted(header.items(), key=lambda item: item[0].encode()):
        begin, end = entry["data_offsets"]
        sha.update(f"tensor {name} {entry['dtype']} {'x'.join(map(str, entry['shape']))} {end - begin}\n".encode())
        sha.update(data[begin:end] + b"\n")
    return sha.hexdigest()


def test_numpy_writes_the_same_pages(tmp_path):
    tensors, of = make_artifact(tmp_path / "model.safetensors", heads=HEADS, dim=DIM)
    r, random = Runtime(), np.random.default_rng(2)
    artifact = r.made("artifact_open", tmp_path / "model.safetensors")
    cache = r.made("create", artifact, options(threads=1))
    x = random.standard_normal((2, 2, TOKENS, HEADS, DIM)).astype(np.float32)
    for layer in range(2):
        r.call("append", cache, layer, x[layer, 0], x[layer, 1], TOKENS)
    ids = np.arange(TOKENS, dtype=np.int32)
    r.call("save", cache, tmp_path / "cache", ids, TOKENS)
    key, value = Shape("key", DIM, [3] * HEADS, sparse="csr"), Shape("value", DIM, [3] * HEADS, True, "tail", 1)
    capacities = {"key": [], "value": []}
    with safe_open(tmp_path / "cache", "numpy") as file:
        metadata = file.metadata()
        assert len(file.keys()) == 9
        for layer in range(2):
            at = lambda name: tensors["key/" + name][layer]
            codes, records = encode_keys(x[layer, 0, SINK:], at("codebook"), at("scale"), at("zero"),
                                         at("threshold_lower"), at("threshold_upper"))
            made = {"key": pages_of(key, codes, None, records),
                    "value": pages_of(value, *encode_values(x[layer, 1, SINK:], tensors["value/codebook"][layer], 1))}
            for i, (name, (pages, capacity)) in enumerate(made.items()):
                found = file.get_tensor(f"layers.{layer}.{name}.pages")
                assert found.dtype == np.uint8 and found.shape == (4, len(pages) // 4)
                assert found.tobytes() == pages, f"layer {layer}, {name}"
                exact = file.get_tensor(f"layers.{layer}.{name}.exact")
                assert exact.dtype == np.float16 and (exact == x[layer, i, :SINK].astype(np.float16)).all()
                capacities[name].append(capacity)
        assert (file.get_tensor("token_ids") == ids).all()
    assert metadata["artifact_sha256"] == of["content_sha256"] and metadata["tokens"] == str(TOKENS)
    for name, found in capacities.items():
        assert metadata[name + "_capacity"] == ",".join(map(str, found)) and min(found) > 0
    assert metadata["content_sha256"] == checksum((tmp_path / "cache").read_bytes())


def test_python_writes_a_file_that_loads(tmp_path):
    """The same content as PyPI safetensors writes it, in its own order."""
    from safetensors.numpy import save_file
    make_artifact(tmp_path / "model.safetensors", heads=HEADS, dim=DIM)
    r, random = Runtime(), np.random.default_rng(3)
    artifact = r.made("artifact_open", tmp_path / "model.safetensors")
    cache = r.made("create", artifact, options(threads=1))
    x = random.standard_normal((2, TOKENS, HEADS, DIM)).astype(np.float32)
    for layer in range(2):
        r.call("append", cache, layer, x[0], x[1], TOKENS)
    r.call("save", cache, tmp_path / "cache", None, 0)
    with safe_open(tmp_path / "cache", "numpy") as file:
        save_file({name: file.get_tensor(name) for name in file.keys()}, tmp_path / "other", file.metadata())
    loaded = r.made("load", artifact, tmp_path / "other", options(threads=1))
    r.call("save", loaded, tmp_path / "again", None, 0)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "cache").read_bytes()
