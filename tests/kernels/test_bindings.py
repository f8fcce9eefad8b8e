"""torch.ops.kvcc.*: loading, refusals, shapes without data, and every operator run on a driver that emulates kernels."""
import ctypes
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from support import BUILD, KVCC, SOURCE
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

LIBRARY = BUILD / "lib" / "libkvcc_torch.so"
SCHEME = ("k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=1,residual=32,codebook=head,weight=fs2,"
          "first-thresholds=out,first-kmeans=out")
L, H, G, D, SINK, RESIDUAL = 2, 2, 3, 64, 1, 32
LENGTHS = [600, 70]  # 600: two splits
LAYER = 1


@pytest.fixture(scope="session")
def ops():
    if not LIBRARY.exists():
        pytest.skip(f"SKIPPED: no torch extension at {LIBRARY} (configure with -DKVCC_BINDINGS=ON)")
    torch.ops.load_library(str(LIBRARY))
    return torch.ops.kvcc


def compiler(*arguments):
    done = subprocess.run(["c++", "-std=c++20", "-ffp-contract=off", "-fPIC", "-shared", f"-I{SOURCE}", *map(str, arguments)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """A CUDA driver that runs kernels in the emulator."""
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    compiler("-O1", "-DFAKE_EMULATES", SOURCE / "tests/kernels/fake/libcuda.cc", "-o", path, "-Wl,--whole-archive",
             BUILD / "lib/libkvcc_kernels_emulator.a", "-Wl,--no-whole-archive", "-ldl")
    return path


def compile_artifact(work, driver):
    """What kvcc compile writes for a made-up artifact, its images units of the emulator; and the artifact."""
    artifact, kernels = work / "made.kvcb", work / "kernels"
    subprocess.run([BUILD / "tests/bin/write_codebook", artifact, SCHEME, *map(str, (L, H, G, D, D))],
                   check=True, capture_output=True)
    subprocess.run([KVCC, "compile", artifact, "-o", kernels, "--emit-only"], check=True, capture_output=True)
    manifest = json.loads((kernels / "kernels.json").read_text())

    def build(source):
        image = work / (source + ".so")
        compiler("-O1", "-DKVCC_EMULATE", f"-I{kernels}", "-x", "c++", kernels / source, "-x", "none", driver, "-o", image)
        (kernels / source.replace(".cu", ".sm_86.cubin")).write_text(str(image))
        return source, ctypes.CDLL(str(image))

    with ThreadPoolExecutor(2) as pool:
        units = dict(pool.map(build, sorted({entry["source"] for entry in manifest["kernels"]})))
    for entry in manifest["kernels"]:
        entry["arch"] = "sm_86"
        entry["cubin"] = entry["source"].replace(".cu", ".sm_86.cubin")
        shared = ctypes.c_uint32.in_dll(units[entry["source"]], entry["symbol"] + "_shared_bytes")
        entry["launch"]["dynamic_shared_bytes"] = shared.value
    (kernels / "kernels.json").write_text(json.dumps(manifest))
    return kernels, driver, artifact


@pytest.fixture(scope="session")
def folder(tmp_path_factory, driver):
    return compile_artifact(tmp_path_factory.mktemp("bindings"), driver)


@pytest.fixture
def emulated(folder, monkeypatch):
    monkeypatch.setenv("KVCC_CUDA_DRIVER", str(folder[1]))
    monkeypatch.setenv("KVCC_HOST_DRIVER", "1")
    return str(folder[0])


def page_pool(pages, size):
    """Zeros, aligned as memory of a device is and that of a CPU need not be."""
    memory = torch.zeros(pages * size + 128, dtype=torch.uint8)
    return memory[-memory.data_ptr() % 128:][:pages * size].view(pages, size)


class Cache:
    """Keys and values of two sequences, packed by the operators into shuffled pages."""

    def __init__(self, ops, kernels, artifact):
        self.kernels = kernels
        rng = np.random.default_rng(7)
        with h5py.File(artifact) as f:
            self.levels = f["key/codebook"][LAYER]
        scale = rng.uniform(0.5, 2, (H, D)).astype(np.float32)
        zero = rng.normal(size=(H, D)).astype(np.float32)
        self.static = {"scale": torch.from_numpy(scale), "zero": torch.from_numpy(zero),
                       "lower": torch.from_numpy(zero - scale), "upper": torch.from_numpy(zero + scale)}
        longest, count = max(LENGTHS), len(LENGTHS)
        spread = rng.normal(size=(count, longest, H, D))
        spread[rng.random(spread.shape) < 0.004] *= 6
        self.x = {"key": torch.from_numpy((spread * 0.4 * scale + zero).astype(np.float16)),
                  "value": torch.from_numpy(rng.normal(size=(count, longest, H, D)).astype(np.float16))}
        self.max_pages = -(-longest // 64)
        table = rng.permutation(2 * count * self.max_pages)[:count * self.max_pages].reshape(count, -1)
        self.table = torch.from_numpy(table.astype(np.int32))
        self.lengths = torch.tensor(LENGTHS, dtype=torch.int32)
        self.pages, self.exact, self.status = {}, {}, torch.zeros(1, dtype=torch.int32)
        for tensor in ("key", "value"):
            size = ops.page_bytes(kernels, tensor, LAYER)
            pages = self.pages[tensor] = page_pool(2 * count * self.max_pages, size)
            exact = self.exact[tensor] = torch.zeros(count, SINK + RESIDUAL, H, D, dtype=torch.float16)
            more = self.static if tensor == "key" else {}
            needed = torch.zeros(count, self.max_pages, H, dtype=torch.int32)
            for s, length in enumerate(LENGTHS):
                packed = length - RESIDUAL
                for first in (0, 40) if packed > 40 else (0,):  # two calls go on with the same page
                    x = self.x[tensor][s:s + 1, first:min(packed, first + 40) if first == 0 else packed].contiguous()
                    getattr(ops, "pack_" + tensor)(
                        kernels, LAYER, x, torch.tensor([first], dtype=torch.int32), pages, self.status, first + x.shape[1],
                        page_table=self.table[s:s + 1], exact=exact[s:s + 1], needed=needed[s:s + 1], **more)
                for p in range(packed, length):
                    exact[s, SINK + (p - SINK) % RESIDUAL] = self.x[tensor][s, p]
            assert needed.max() <= ops.default_capacity(kernels, tensor) and needed.max() > 0

    def arguments(self, tensor, prefix=""):
        static = {prefix + name: self.static[name] for name in ("scale", "zero")} if tensor == "key" else {}
        return {prefix + "exact": self.exact[tensor], **static}

    def dequantised(self, ops, tensor):
        longest = max(LENGTHS)
        return ops.dequantise(self.kernels, tensor, LAYER, self.pages[tensor], self.lengths,
                              torch.zeros(len(LENGTHS), dtype=torch.int32), longest, longest, page_table=self.table,
                              **self.arguments(tensor))


@pytest.fixture(scope="session")
def made(ops, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVCC_CUDA_DRIVER", str(folder[1]))
        patch.setenv("KVCC_HOST_DRIVER", "1")
        cache = Cache(ops, str(folder[0]), folder[2])
        cache.decoded = {tensor: cache.dequantised(ops, tensor).double().numpy() for tensor in ("key", "value")}
    return cache


FREQUENCIES = (10000.0 ** -(np.arange(D // 2) * 2.0 / D)).astype(np.float32)


def rope(ops, positions=max(LENGTHS)):
    return ops.rope_tables(torch.from_numpy(FREQUENCIES), 1.0, positions)


def queries(seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(len(LENGTHS), H * G, D)).astype(np.float16))


def wanted_scores(cache, query, multiplier):
    """[S][H * G, length] in double, with the operators' own decoded keys, turned by exact angles."""
    angle = np.arange(max(LENGTHS))[:, None] * FREQUENCIES.astype(np.float64)
    cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]
    low, high = cache.decoded["key"][..., :D // 2], cache.decoded["key"][..., D // 2:]
    turned = np.concatenate([low * cosine - high * sine, high * cosine + low * sine], -1)
    q = query.double().numpy().reshape(len(LENGTHS), H, G, D)
    scores = multiplier * np.einsum("shgd,sthd->shgt", q, turned).reshape(len(LENGTHS), H * G, -1)
    return [scores[s, :, :length] for s, length in enumerate(LENGTHS)]


def test_pack_and_dequantise(made):
    assert made.status.item() == 0
    for s, length in enumerate(LENGTHS):
        for tensor in ("key", "value"):
            x, decoded = made.x[tensor][s].double().numpy(), made.decoded[tensor][s]
            assert np.array_equal(decoded[:SINK], x[:SINK]), "the sink is exact"
            assert np.array_equal(decoded[length - RESIDUAL:length], x[length - RESIDUAL:length]), "the window is exact"
            assert not decoded[length:].any()
    scale, zero = made.static["scale"].double().numpy(), made.static["zero"].double().numpy()
    x, decoded = made.x["key"][0, SINK:568].double().numpy(), made.decoded["key"][0, SINK:568]
    kept = (x < made.static["lower"].numpy()) | (x > made.static["upper"].numpy())
    assert 0 < kept.mean() < 0.2 and np.array_equal(decoded[kept], x[kept])
    levels = made.levels[None, :, None, :] * scale[..., None] + zero[..., None]
    apart = np.abs(levels - x[..., None])
    nearest = np.take_along_axis(np.broadcast_to(levels, apart.shape), apart.argmin(-1)[..., None], -1)[..., 0]
    assert np.isclose(decoded, nearest, rtol=1e-5, atol=1e-5)[~kept].mean() > 0.999  # halfway values may go either way
    x, decoded = made.x["value"][0, SINK:568].double().numpy(), made.decoded["value"][0, SINK:568]
    for end in (np.min, np.max):  # one outlier of each tail a token, the first or the last of equals
        assert np.array_equal(end(decoded, (1, 2)), end(x, (1, 2)))
    assert np.corrcoef(x.ravel(), decoded.ravel())[0, 1] > 0.8


def test_key_scores(ops, made, emulated):
    query = queries()
    for window in (0, 100):
        scores = ops.key_scores(emulated, LAYER, query, made.pages["key"], made.lengths, max(LENGTHS), 0.125, rope(ops),
                                window=window, page_table=made.table, **made.arguments("key")).double().numpy()
        for s, (length, wanted) in enumerate(zip(LENGTHS, wanted_scores(made, query, 0.125))):
            first = max(0, length - window) if window else 0
            assert np.abs(scores[s, :, first:length] - wanted[:, first:]).max() < 0.02 * np.abs(wanted).max()
            assert np.isneginf(scores[s, :, :first]).all() and np.isneginf(scores[s, :, length:]).all()


def test_value_mix(ops, made, emulated):
    weights = torch.softmax(torch.randn(len(LENGTHS), H * G, max(LENGTHS), generator=torch.Generator().manual_seed(3)), -1).half()
    out = ops.value_mix(emulated, LAYER, weights, made.pages["value"], made.lengths, page_table=made.table,
                        **made.arguments("value"))
    for s, length in enumerate(LENGTHS):
        w = weights[s].double().numpy().reshape(H, G, -1)[..., :length]
        wanted = np.einsum("hgt,thd->hgd", w, made.decoded["value"][s, :length]).reshape(H * G, D)
        assert np.abs(out[s].numpy() - wanted).max() < 0.01 * np.abs(wanted).max()


def test_attention(ops, made, emulated):
    query = queries(5)
    for window in (0, 100):
        out = ops.attention(emulated, LAYER, query, made.pages["key"], made.pages["value"], made.lengths, max(LENGTHS), 0.125,
                            rope(ops), window=window, page_table=made.table, **made.arguments("key", "key_"),
                            **made.arguments("value", "value_"))
        for s, (length, scores) in enumerate(zip(LENGTHS, wanted_scores(made, query, 0.125))):
            if window:
                scores[:, :max(0, length - window)] = -np.inf
            w = np.exp(scores - scores.max(-1, keepdims=True))
            w = (w / w.sum(-1, keepdims=True)).reshape(H, G, -1)
            wanted = np.einsum("hgt,thd->hgd", w, made.decoded["value"][s, :length]).reshape(H * G, D)
            assert np.abs(out[s].numpy() - wanted).max() < 0.02 * np.abs(wanted).max()


def test_copy_pages(ops, made, emulated):
    larger = ops.default_capacity(emulated, "key") + 16
    target = page_pool(4, ops.page_bytes(emulated, "key", LAYER, larger))
    pages, fixed = made.pages["key"], 768 * 4 + H * 8 * 2  # codes, class ends
    a, b = made.table[0, :2].tolist()
    ops.copy_pages(emulated, "key", LAYER, pages, target, torch.tensor([[a, 3], [b, 0]], dtype=torch.int32), target_capacity=larger)
    records = ops.default_capacity(emulated, "key") * 4
    for page, to in ((a, 3), (b, 0)):
        assert torch.equal(target[to, :fixed], pages[page, :fixed]) and pages[page, :fixed].any()
        for h in range(H):
            assert torch.equal(target[to, fixed + h * (records + 64):][:records], pages[page, fixed + h * records:][:records])
    assert not target[1:3].any()


@pytest.mark.parametrize("tensor", ["key", "value"])
def test_a_call_without_room_is_repeated(ops, made, emulated, tensor):
    """Token by token into lists that grow when a tile has no room: the same pages as with long lists from the start."""
    tokens = 40
    table = torch.tensor([[1, 0]], dtype=torch.int32)
    more = dict(page_table=table, exact=torch.zeros(1, SINK + RESIDUAL, H, D, dtype=torch.float16))
    more.update(made.static if tensor == "key" else {})
    pack = getattr(ops, "pack_" + tensor)
    x = made.x[tensor][:1, :tokens].clone()
    x[..., 1, :] *= 4 if tensor == "key" else 1.25  # head 1 has more outliers

    def call(pages, capacity, needed, first, count, repeat_above=0):
        pack(emulated, LAYER, x[:, first:first + count].contiguous(), torch.tensor([first], dtype=torch.int32), pages,
             made.status, first + count, capacity=capacity, needed=needed, repeat_above=repeat_above, **more)

    pool = lambda capacity: page_pool(2, ops.page_bytes(emulated, tensor, LAYER, capacity))
    capacity, needed, repeats = 4, torch.zeros(1, 2, H, dtype=torch.int32), []
    pages = pool(capacity)
    for first in range(tokens):
        call(pages, capacity, needed, first, 1)
        while needed.max() > capacity:
            repeats.append((needed > capacity).sum().item())
            larger = pool(2 * capacity)
            ops.copy_pages(emulated, tensor, LAYER, pages, larger, torch.tensor([[0, 0], [1, 1]], dtype=torch.int32),
                           source_capacity=capacity, target_capacity=2 * capacity)
            call(larger, 2 * capacity, needed, first, 1, repeat_above=capacity)
            pages, capacity = larger, 2 * capacity
    assert repeats.count(1) >= 2 and needed[0, 0].min() > 0
    at_once, wanted = pool(capacity), torch.zeros_like(needed)
    call(at_once, capacity, wanted, 0, tokens)
    assert torch.equal(needed, wanted) and torch.equal(pages, at_once) and made.status.item() == 0
    with pytest.raises(RuntimeError, match="repeat_above: -1; wanted at least 0"):
        call(pages, capacity, needed, 0, 1, repeat_above=-1)


def test_heads_of_several_widths(ops, made, emulated, tmp_path):
    """Where kernels.json says so, the first words of the heads go along."""
    manifest = json.loads((Path(emulated) / "kernels.json").read_text())
    for entry in manifest["kernels"]:
        entry["spec"]["mixed"] = True
    for words in (None, [[0, 2 * D * 3]] * L):
        if words:
            manifest["pages"]["key"]["head_words"] = words
        kernels = tmp_path / str(words is None)
        kernels.mkdir()
        for entry in manifest["kernels"]:
            (kernels / entry["cubin"]).write_bytes((Path(emulated) / entry["cubin"]).read_bytes())
        (kernels / "kernels.json").write_text(json.dumps(manifest))
        call = lambda: ops.dequantise(str(kernels), "key", LAYER, made.pages["key"], made.lengths, torch.zeros_like(made.lengths),
                                      600, 600, page_table=made.table, **made.arguments("key"))
        if words:
            assert np.array_equal(call().double().numpy(), made.decoded["key"])
        else:
            with pytest.raises(RuntimeError, match="cache.head_words: null; wanted a device address"):
                call()


def test_without_a_page_table(ops, made, emulated):
    """Page i of sequence s is then s * N + i."""
    straight = page_pool(made.table.numel(), made.pages["value"].shape[1])
    straight.copy_(made.pages["value"][made.table.flatten().long()])
    weights = torch.rand(len(LENGTHS), H * G, max(LENGTHS)).half()
    more = made.arguments("value")
    assert torch.equal(ops.value_mix(emulated, LAYER, weights, straight, made.lengths, **more),
                       ops.value_mix(emulated, LAYER, weights, made.pages["value"], made.lengths, page_table=made.table, **more))


def attention(ops, made, kernels, **changes):
    settings = dict(layer=LAYER, query=queries(), key_pages=made.pages["key"], value_pages=made.pages["value"],
                    lengths=made.lengths, max_length=max(LENGTHS), multiplier=0.125, rope=rope(ops), page_table=made.table,
                    **made.arguments("key", "key_"), **made.arguments("value", "value_"))
    settings.update(changes)
    return ops.attention(kernels, **settings)


REFUSALS = {
    "kvcc::attention, layer: 2; wanted 0 to 1": dict(layer=2),
    "kvcc::attention, query: Float [2, 6, 64]; wanted Half [any, 6, 64]": dict(query=torch.zeros(2, 6, 64)),
    "kvcc::attention, query: Half [2, 4, 64]; wanted Half [any, 6, 64]": dict(query=torch.zeros(2, 4, 64).half()),
    "kvcc::attention, query: strides [64, 128, 1]; wanted a contiguous tensor":
        dict(query=torch.zeros(6, 2, 64).half().transpose(0, 1)),
    "kvcc::attention, key_pages: Byte [4, 128]; wanted Byte [any, 3968]": dict(key_pages=torch.zeros(4, 128, dtype=torch.uint8)),
    "kvcc::attention, lengths: Long [2]; wanted Int [2]": dict(lengths=torch.tensor(LENGTHS)),
    "kvcc::attention, page_table: Int [3, 10]; wanted Int [2, any]": dict(page_table=torch.zeros(3, 10, dtype=torch.int32)),
    "kvcc::attention, value_exact: Half [2, 32, 2, 64]; wanted Half [2, 33, 2, 64]":
        dict(value_exact=torch.zeros(2, 32, H, D).half()),
    "kvcc::attention, rope: 0 tensors; wanted the four of torch.ops.kvcc.rope_tables": dict(rope=[]),
    "key.scale: null; wanted a device address": dict(key_scale=None),
    "value.exact: null; wanted a device address": dict(value_exact=None),
    "window: -1; wanted at least 0": dict(window=-1),
    "multiplier: not finite": dict(multiplier=float("nan")),
    "key.max_pages: 8; wanted at least 9": dict(page_table=torch.zeros(2, 8, dtype=torch.int32)),
    "kvcc::attention, max_length: 4294967296; wanted an int32": dict(max_length=1 << 32),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals(ops, made, emulated, message):
    with pytest.raises(RuntimeError) as refusal:
        attention(ops, made, emulated, **REFUSALS[message])
    assert message in str(refusal.value)


def test_too_few_rotary_rows(ops, made, emulated):
    with pytest.raises(RuntimeError, match=r"rows of rope.base_cosine: 9; wanted at least 10"):
        attention(ops, made, emulated, rope=rope(ops, 576))


def test_folder_refusals(ops, made, emulated, tmp_path):
    with pytest.raises(RuntimeError, match="no such file"):
        ops.page_bytes(str(tmp_path), "key", 0)
    with pytest.raises(RuntimeError, match='tensor: "keys"; wanted key or value'):
        ops.page_bytes(emulated, "keys", 0)
    with pytest.raises(RuntimeError, match="capacity: 6; wanted a multiple of 4"):
        ops.page_bytes(emulated, "key", 0, 6)
    manifest = json.loads((Path(emulated) / "kernels.json").read_text())
    manifest["layout"] = "linear-1"
    (tmp_path / "kernels.json").write_text(json.dumps(manifest))
    with pytest.raises(RuntimeError, match="kernels of layout linear-1; wanted mma-1"):
        ops.page_bytes(str(tmp_path), "key", 0)
    manifest["layout"] = "mma-1"
    manifest["kernels"] = [entry for entry in manifest["kernels"] if not entry["family"].startswith("attention")]
    for entry in manifest["kernels"]:
        entry["arch"] = "sm_90"
    fewer = tmp_path / "fewer"
    fewer.mkdir()
    (fewer / "kernels.json").write_text(json.dumps(manifest))
    with pytest.raises(RuntimeError, match="no kernel attention; wanted one of: copy_pages, "):
        attention(ops, made, str(fewer))
    with pytest.raises(RuntimeError, match=r"compiled for sm_90; wanted an image for Fake A \(compute capability 8.6\)"):
        made_elsewhere = made.arguments("value")
        ops.value_mix(str(fewer), LAYER, torch.zeros(2, H * G, 600).half(), made.pages["value"], made.lengths,
                      page_table=made.table, **made_elsewhere)


def test_no_driver(ops, made, folder, monkeypatch):
    monkeypatch.setenv("KVCC_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    for call in (lambda: attention(ops, made, str(folder[0])),
                 lambda: made.dequantised(ops, "key")):
        with pytest.raises(RuntimeError, match="CUDA driver /nowhere/libcuda.so.1: not loaded .* wanted an NVIDIA driver"):
            call()


def test_tensors_of_the_cpu(ops, made, folder, monkeypatch):
    monkeypatch.setenv("KVCC_CUDA_DRIVER", str(folder[1]))
    with pytest.raises(RuntimeError, match="kvcc::attention, query: on cpu; wanted a CUDA tensor"):
        attention(ops, made, str(folder[0]))


def test_shapes_without_data(ops, made, emulated, monkeypatch):
    monkeypatch.setenv("KVCC_CUDA_DRIVER", "/nowhere/libcuda.so.1")  # shapes need no driver
    meta = lambda t: t.to("meta")
    out = ops.attention(emulated, LAYER, meta(queries()), meta(made.pages["key"]), meta(made.pages["value"]),
                        meta(made.lengths), 600, 0.125, [meta(t) for t in rope(ops)])
    assert out.is_meta and out.dtype == torch.float32 and out.shape == (2, H * G, D)
    out = ops.key_scores(emulated, LAYER, meta(queries()), meta(made.pages["key"]), meta(made.lengths), 601, 0.125, [])
    assert out.is_meta and out.shape == (2, H * G, 601)
    out = ops.value_mix(emulated, LAYER, meta(torch.zeros(2, H * G, 600)), meta(made.pages["value"]), meta(made.lengths))
    assert out.is_meta and out.shape == (2, H * G, D)
    out = ops.dequantise(emulated, "value", LAYER, meta(made.pages["value"]), meta(made.lengths), meta(made.lengths), 9, 600)
    assert out.is_meta and out.shape == (2, 9, H, D)


def test_fake_tensors(ops, made, emulated):
    """torch.compile's fake tensors get the shapes and types that the operators give."""
    weights = torch.rand(len(LENGTHS), H * G, max(LENGTHS)).half()
    for op, tensors, rest in ((ops.value_mix, (weights, made.pages["value"], made.lengths), ()),
                              (ops.key_scores, (queries(), made.pages["key"], made.lengths), (600, 0.125, rope(ops))),
                              (ops.dequantise, (made.pages["key"], made.lengths, torch.zeros_like(made.lengths)), (70, 600))):
        name = ("key",) if op is ops.dequantise else ()
        more = {"page_table": made.table, **made.arguments("value" if op is ops.value_mix else "key")}
        real = op(emulated, *name, LAYER, *tensors, *rest, **more)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = op(emulated, *name, LAYER, *map(mode.from_tensor, tensors), *rest, **more)
        assert type(fake) is FakeTensor and fake.device == real.device
        assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())
