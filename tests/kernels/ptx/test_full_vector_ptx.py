"""The PTX of vector codebooks on tensor cores, as test_ptx.py executes that of the other units (`make full`: translations of units this
large compile for minutes)."""
import pytest

from support import BUILD
from units import VectorUnit, from_source, ptx_run, to_ptx, translated

CASES = {
    "vector-1 attention": (VectorUnit("attention", dim=64, rotary=64, four_bits=6, room=(4, 128, 8), value_room=(6, 128, 8)),
                           ["lengths=131,70,1", "group=3", "sink=1", "residual=20", "splits=2"]),
    "vector-1 key_scores": (VectorUnit("key_scores", form="channels", dim=64, rotary=32, four_bits=6, room=(4, 128, 8)),
                            ["lengths=131,70,1", "group=3", "sink=1", "residual=20", "splits=2"]),
}


@pytest.mark.parametrize("case", CASES)
def test_ptx_gives_the_bits_of_its_source(case, nvcc, tmp_path):
    unit, options = CASES[case]
    source = from_source(unit, tmp_path, BUILD)
    libraries = [translated(to_ptx(unit, tmp_path, BUILD, nvcc, arch)) for arch in ("compute_80", "compute_90")]
    for order in ("sequential", "random"):
        outputs = ptx_run(BUILD, source, libraries, unit, f"order={order}", *options)
        size = sum(size for size, _ in outputs.values())
        assert sum(written for _, written in outputs.values()) > size // 32  # what was compared is results
