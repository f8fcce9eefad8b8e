"""The PTX that nvcc emits, executed: for the main families equal in every output bit to the same text compiled by g++, on the emulator,
for two virtual architectures. What stays unproved is ptxas and the machine."""
import pytest

from support import BUILD
from units import Unit, from_source, ptx_run, to_ptx, translated

ARCHS = ("compute_80", "compute_90")
BATCH = "lengths=131,70,0,1"  # a ragged batch in shuffled pages: whole and partial tiles, nothing, one token
CASES = {
    "attention": (Unit("attention", rope="half", rotary=64, sparse="csr", value_sparse="tail"),
                  [BATCH, "group=3", "sink=1", "residual=20", "splits=2"]),
    "attention, wide groups": (Unit("attention", bits=4, value_bits=2, dim=128, rope="interleaved", rotary=64, group_tile=16, dtype="bf16"),
                               [BATCH, "group=16", "window=100"]),
    "attention, by block": (Unit("attention", axis="token", sparse="tail", value_bits=2, value_axis="channel", value_sparse="csr", dim=192,
                                 rope="half", rotary=96, group_tile=16),
                            [BATCH, "group=11", "sink=1", "residual=20", "splits=2"]),
    "key_scores": (Unit("key_scores", rope="half", rotary=64, sparse="csr"), [BATCH, "group=3", "sink=1", "residual=20", "splits=2"]),
    "key_scores, token axis": (Unit("key_scores", bits=8, axis="token", sparse="tail", dim=80), [BATCH, "group=2", "window=40"]),
    "key_scores, by block": (Unit("key_scores", bits=2, sparse="csr", dim=192, rope="interleaved", rotary=192, group_tile=16),
                             [BATCH, "group=9", "sink=1", "residual=20"]),
    "value_mix": (Unit("value_mix", axis="token", sparse="tail"), [BATCH, "group=3", "sink=1", "residual=20", "splits=2"]),
    "value_mix, by block": (Unit("value_mix", bits=4, axis="token", sparse="tail", dim=256, group_tile=16, dtype="bf16"),
                            [BATCH, "group=16", "window=100"]),
    "pack_key": (Unit("pack_key", sparse="csr"), ["lengths=131,90", "sink=1", "calls=50"]),
    "pack_value": (Unit("pack_value", axis="token", sparse="tail"), ["lengths=131,90", "sink=1", "calls=50"]),
    "dequantise_key": (Unit("dequantise_key", sparse="csr"), [BATCH, "sink=1", "residual=20"]),
    "dequantise_value": (Unit("dequantise_value", bits=2, axis="token", sparse="tail"), [BATCH, "sink=1", "residual=20"]),
    "linear-1 key_scores": (Unit("key_scores", layout="linear-1", sparse="csr", rope="half", rotary=64, group_tile=3),
                            ["group=3", "sink=1", "residual=20"]),
    "linear-1 pack_value": (Unit("pack_value", layout="linear-1", axis="token", sparse="tail", dtype="f32"), ["sink=1"]),
}


@pytest.mark.parametrize("case", CASES)
def test_ptx_gives_the_bits_of_its_source(case, nvcc, tmp_path):
    unit, options = CASES[case]
    source = from_source(unit, tmp_path, BUILD)
    libraries = [translated(to_ptx(unit, tmp_path, BUILD, nvcc, arch)) for arch in ARCHS]
    for order in ("sequential", "random"):
        outputs = ptx_run(BUILD, source, libraries, unit, f"order={order}", *options)
        size = sum(size for size, _ in outputs.values())
        assert sum(written for _, written in outputs.values()) > size // 32  # what was compared is results


def test_a_translation_that_differs_is_seen(nvcc, tmp_path):
    """The comparison itself: the multiplications of the PTX made additions."""
    unit, options = CASES["linear-1 key_scores"]
    ptx = to_ptx(unit, tmp_path, BUILD, nvcc, "compute_80")
    text = ptx.read_text()
    assert "mul.rn.f32" in text
    ptx.write_text(text.replace("mul.rn.f32", "add.rn.f32"))
    with pytest.raises(AssertionError, match="scores differs from the source's at byte"):
        ptx_run(BUILD, from_source(unit, tmp_path, BUILD), [translated(ptx)], unit, *options)
