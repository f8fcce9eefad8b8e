"""Codecs of published systems against ggml's and PyTorch's own formats and against plain torch written from each
method's definition. A value that lies on the edge of two levels may fall on either side."""
import subprocess

import gguf
import numpy as np
import pytest
import torch

from support import BUILD

TOKENS, HEADS, DIM = 256, 2, 64


def made(seed, tokens=TOKENS, heads=HEADS, dim=DIM):
    """[T, H, D] with channels and tokens of different scales and an offset."""
    draw = np.random.default_rng(seed)
    channel = np.exp(0.7 * draw.standard_normal((heads, dim)))
    token = np.exp(0.5 * draw.standard_normal((tokens, 1, 1)))
    offset = np.where(np.arange(dim) % 5 == 0, 3 * draw.standard_normal((heads, dim)), 0)
    return torch.from_numpy((token * (channel * draw.standard_normal((tokens, heads, dim)) + offset)).astype(np.float32))


def coded(tmp_path, scheme, tensor, x):
    """What the codec makes of x, and the bytes that took."""
    x.numpy().tofile(tmp_path / "in")
    done = subprocess.run([BUILD / "tests/bin/codec_probe", scheme, tensor, str(x.shape[1]), str(x.shape[2]), tmp_path / "in",
                           tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.from_numpy(np.fromfile(tmp_path / "out", np.float32).reshape(x.shape)), int(done.stdout)


def assert_same(found, expected, edges=1e-3, tolerance=2e-5):
    """Equal to rounding but for a share of values on edges."""
    off = (found - expected).abs() > tolerance * (expected.abs() + 1)
    assert off.float().mean() <= edges, f"{off.float().mean():.5f} differ, by up to {(found - expected).abs().max()}"


def half(x):
    return x.to(torch.float16).float()


def hadamard(dim):
    h = torch.ones(1, 1)
    while len(h) < dim:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h / dim ** 0.5


def ends(x, bits, dims):
    """RTN-F over `dims`, scale and minimum in fp16."""
    low, high = x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)
    scale, low = half((high - low) / (2 ** bits - 1)), half(low)
    return ((x - low) / scale).clamp(0, 2 ** bits - 1).round() * scale + low


def by_channel(x, group):
    """[tiles, G, H, D]: ranges over dimension 1."""
    return x.reshape(-1, group, *x.shape[1:])


def by_token(x, group):
    """[T, H, groups, G]: ranges over dimension 3."""
    return x.reshape(*x.shape[:2], -1, min(group, x.shape[2]))


@pytest.mark.parametrize("kind,bits", (("Q4_0", 4), ("Q8_0", 8)))
def test_ggml_types_are_ggmls(tmp_path, kind, bits):
    x = made(bits)
    kind = gguf.GGMLQuantizationType[kind]
    stored = gguf.quants.quantize(x.numpy(), kind)
    found, size = coded(tmp_path, f"q{bits}_0", "k", x)
    assert np.array_equal(found.numpy(), gguf.quants.dequantize(stored, kind))
    assert size == stored.nbytes
    h = hadamard(DIM)
    turned = gguf.quants.dequantize(gguf.quants.quantize((x @ h).numpy(), kind), kind)
    assert_same(coded(tmp_path, f"q{bits}_0-hadamard", "v", x)[0], torch.from_numpy(turned) @ h, edges=5e-3)


def test_values_of_llama_cpp_turn_in_blocks_of_64(tmp_path):
    x = made(1, dim=128)
    h = torch.block_diag(hadamard(64), hadamard(64))
    kind = gguf.GGMLQuantizationType.Q8_0
    turned = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize((x @ h).numpy(), kind), kind))
    assert_same(coded(tmp_path, "q8_0-hadamard", "v", x)[0], turned @ h, edges=5e-3)


def test_fp8_is_pytorchs(tmp_path):
    x = made(3) * 20
    x[0, 0, :4] = torch.tensor([448.0, -447.0, 1e-3, 0.0])
    found, size = coded(tmp_path, "fp8", "k", x)
    assert torch.equal(found, x.clamp(-448, 448).to(torch.float8_e4m3fn).float())
    assert size == x.numel()


@pytest.mark.parametrize("bits", (2, 4))
@pytest.mark.parametrize("group", (32, 128))
def test_kivi(tmp_path, bits, group):
    x = made(group)
    scheme = f"kivi-{bits}-g{group}"
    found, size = coded(tmp_path, scheme, "k", x)
    assert_same(found, ends(by_channel(x, group), bits, 1).reshape(x.shape))
    assert size * 8 == x.numel() * (bits + 32 / group)
    found, _ = coded(tmp_path, scheme, "v", x)
    assert_same(found, ends(by_token(x, group), bits, 3).reshape(x.shape))


def whole_zero(x, bits, dims, low, high, clamp_zero):
    scale = half((high - low) / (2 ** bits - 1))
    zero = (-low / scale).round()
    if clamp_zero:
        zero = zero.clamp(0, 2 ** bits - 1)
    return scale * (((x / scale).round() + zero).clamp(0, 2 ** bits - 1) - zero)


@pytest.mark.parametrize("bits", (2, 3, 4))
def test_quarot(tmp_path, bits):
    x = made(20 + bits)
    y = x @ hadamard(DIM)
    low = 0.95 * y.amin(2, keepdim=True).clamp(max=0)
    high = 0.95 * y.amax(2, keepdim=True).clamp(min=0)
    assert_same(coded(tmp_path, f"quarot-{bits}", "k", x)[0], whole_zero(y, bits, 2, low, high, False) @ hadamard(DIM), 5e-3)
    low, high = 0.95 * y.amin(2, keepdim=True), 0.95 * y.amax(2, keepdim=True)
    assert_same(coded(tmp_path, f"quarot-{bits}", "v", x)[0], whole_zero(y, bits, 2, low, high, False) @ hadamard(DIM), 5e-3)


@pytest.mark.parametrize("bits", (2, 3, 4))
def test_atom_and_flexgen(tmp_path, bits):
    x = made(30 + bits, dim=128)
    groups = by_token(x, 128)
    low, high = groups.amin(3, keepdim=True), groups.amax(3, keepdim=True)
    assert_same(coded(tmp_path, f"atom-{bits}", "k", x)[0], whole_zero(groups, bits, 3, low, high, True).reshape(x.shape))
    groups = by_token(x, 64)
    low, high = groups.amin(3, keepdim=True), groups.amax(3, keepdim=True)
    scale, low = half((2 ** bits - 1) / (high - low)), half(low)
    expected = ((groups - low) * scale).clamp(0, 2 ** bits - 1).round() / scale + low
    assert_same(coded(tmp_path, f"flexgen-{bits}", "v", x)[0], expected.reshape(x.shape))


def varn(tile, bits, iterations=8):
    """METHODS.md 3.2 and 3.3 on [R, C], line by line."""
    def deviations(x):
        return x.std(0), x.std(1)

    def imbalance(x):
        column, row = deviations(x)
        return column.max() / column.min().clamp(min=1e-8) + row.max() / row.min().clamp(min=1e-8)

    columns, rows = torch.zeros(tile.shape[1]), torch.zeros(tile.shape[0])
    current, best, scales = tile, imbalance(tile), (torch.ones(tile.shape[1]), torch.ones(tile.shape[0]))
    for _ in range(iterations):
        columns = (columns + deviations(current)[0].clamp(1e-3, 1e3).log()).clamp(-0.3, 10)
        current = tile / columns.exp() / rows.exp()[:, None]
        rows = (rows + deviations(current)[1].clamp(1e-3, 1e3).log()).clamp(-0.3, 10)
        current = tile / columns.exp() / rows.exp()[:, None]
        if imbalance(current) <= best:
            best, scales = imbalance(current), (columns.exp(), rows.exp())
    column, row = scales
    balanced = tile / column / row[:, None]
    low, high = balanced.amin(1), balanced.amax(1)
    step = ((high - low) / (2 ** bits - 1)).clamp(min=1e-10)
    codes = ((balanced - low[:, None]) / step[:, None]).clamp(0, 2 ** bits - 1).round()
    return (codes * half(row * step)[:, None] + half(row * low)[:, None]) * half(column)


@pytest.mark.parametrize("name,key,value", (("kvarn-2", 2, 2), ("kvarn-k4v2", 4, 2), ("kvarn-k4v4", 4, 4)))
@pytest.mark.parametrize("tile", (64, 128))
def test_kvarn(tmp_path, name, key, value, tile):
    x, h = made(tile + key + value), hadamard(DIM)
    expected_key, expected_value = torch.empty_like(x), torch.empty_like(x)
    for t in range(0, TOKENS, tile):
        for head in range(HEADS):
            turned = x[t:t + tile, head] @ h
            expected_key[t:t + tile, head] = varn(turned.T.contiguous(), key).T @ h
            expected_value[t:t + tile, head] = varn(turned, value) @ h
    # A code or an fp16 scale on an edge moves the whole rotated token, so that each shows in all its channels.
    assert_same(coded(tmp_path, f"{name}-g{tile}", "k", x)[0], expected_key, edges=0.02, tolerance=1e-3)
    assert_same(coded(tmp_path, f"{name}-g{tile}", "v", x)[0], expected_value, edges=0.02, tolerance=1e-3)


@pytest.mark.parametrize("name,share", (("kitty", 0.125), ("kitty-pro", 0.2)))
def test_kitty(tmp_path, name, share):
    x = made(50)
    pages, expected = by_channel(x, 128), []
    wide = int(DIM * share + 1e-6)
    for page in pages:
        greatest = page.abs().double().mean(0).topk(wide, dim=1).indices  # of each head
        mask = torch.zeros(HEADS, DIM, dtype=torch.bool).scatter(1, greatest, True)
        expected.append(torch.where(mask, ends(page, 4, 0), ends(page, 2, 0)))
    assert_same(coded(tmp_path, name, "k", x)[0], torch.cat(expected))
    assert_same(coded(tmp_path, name, "v", x)[0], ends(by_token(x, 128), 2, 3).reshape(x.shape))


def test_what_kvarn_calls_kvquant(tmp_path):
    x = made(51, dim=128)
    expected = []
    for page in by_channel(x, 128):
        greatest = page.abs().double().mean(0).argmax(1)
        mask = torch.nn.functional.one_hot(greatest, 128).bool()
        expected.append(torch.where(mask, half(page), ends(page, 2, 0)))
    assert_same(coded(tmp_path, "kvquant-1%-channels", "k", x)[0], torch.cat(expected))


def test_oscar_norm(tmp_path):
    x, h = made(60), hadamard(DIM)
    turned = x @ h
    norm = half(turned.flatten(1).double().norm(dim=1).float())[:, None, None].clamp(min=1e-8)
    groups = by_channel(turned / norm, 32)
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    expected = whole_zero(groups, 2, 1, low, high, False).reshape(x.shape) * norm @ h
    assert_same(coded(tmp_path, "oscar-norm", "k", x)[0], expected, edges=0.02, tolerance=1e-3)
    groups = by_token(turned, 32)
    low, high = groups.amin(3, keepdim=True), groups.amax(3, keepdim=True)
    expected = whole_zero(groups, 2, 3, low, high, False).reshape(x.shape) @ h
    assert_same(coded(tmp_path, "oscar-norm", "v", x)[0], expected, edges=0.02)


@pytest.mark.parametrize("bits", (3, 4))
def test_turboquant_of_vllm(tmp_path, bits):
    """Gaussian levels of variance 1 / D, Hadamard, decoded vectors of length 1 before the norm."""
    half_levels = {3: [.245094, .756005, 1.343909, 2.151946],
                   4: [.128395, .388048, .656759, .942340, 1.256231, 1.618046, 2.069017, 2.732590]}[bits]
    levels = torch.tensor(sorted([-l for l in half_levels] + half_levels)) / DIM ** 0.5
    x, h = made(70 + bits), hadamard(DIM)
    norm = x.norm(dim=2, keepdim=True)
    codes = torch.bucketize(x / norm @ h, (levels[1:] + levels[:-1]) / 2)
    y = levels[codes]
    expected = y / y.norm(dim=2, keepdim=True) @ h * half(norm)
    assert_same(coded(tmp_path, f"turboquant-vllm-{bits}", "k", x)[0], expected, edges=0.02)
    assert_same(coded(tmp_path, f"turboquant-vllm-{bits}", "v", x)[0], ends(x, bits, 2))


def test_polarquant_pairs(tmp_path):
    x = made(80)
    a, b = x[..., :DIM // 2].double(), x[..., DIM // 2:].double()
    radius, angle = torch.hypot(a, b).float(), torch.atan2(b, a)
    angle = torch.where(angle < 0, angle + 2 * torch.pi, angle).float()

    def middle(y):
        groups = by_channel(y, 128)
        low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
        scale, low = half((high - low) / 16), half(low)
        return (((groups - low) / scale).floor().clamp(0, 15) + 0.5) * scale + low

    radius, angle = middle(radius).reshape(a.shape).double(), middle(angle).reshape(a.shape).double()
    expected = torch.cat([radius * angle.cos(), radius * angle.sin()], 2).float()
    assert_same(coded(tmp_path, "polarquant-a", "k", x)[0], expected, edges=2e-3)
    assert_same(coded(tmp_path, "polarquant-a", "v", x)[0], ends(by_token(x, 128), 4, 3).reshape(x.shape))
