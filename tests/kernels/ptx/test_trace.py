"""Static bars that only running shows: the dense loops' shared memory is free of bank conflicts, codes are read once, in whole
sectors."""
import pytest

from support import BUILD
from unit_trace import PAGE_TOKENS, Traced
from units import Unit

TOKENS, WARPS = 512, 4
DENSE = {
    "key_scores": Unit("key_scores", dim=128, rope="half", rotary=128),
    "value_mix": Unit("value_mix", dim=128, axis="token"),
    "attention": Unit("attention", dim=128, rope="half", rotary=128),
}


@pytest.fixture(scope="module")
def dense(request, nvcc, tmp_path_factory):
    made = Traced(DENSE[request.param], tmp_path_factory.mktemp("trace"), BUILD, nvcc)
    return made.run("group=8", "weights=flat", tokens=TOKENS, heads=1)


@pytest.mark.parametrize("dense", DENSE, indirect=True)
def test_dense_loops_have_no_bank_conflicts(dense):
    """The layout's own widths without any. nvcc may split a load of 128 bits into two of 64, which then meet in banks: at most 2 % of
    the wavefronts."""
    loads = [i for i in dense.dense_instructions() if i["opcode"].startswith("ld.shared")]
    assert len(loads) > 50  # a load a pair of codes
    conflicts = [(i["line"], i["text"], i["wavefronts"], i["least"]) for i in loads if i["wavefronts"] != i["least"] and ".v2." not in i["opcode"]]
    assert not conflicts
    assert sum(i["wavefronts"] for i in loads) <= 1.02 * sum(i["least"] for i in loads)


@pytest.mark.parametrize("dense", DENSE, indirect=True)
def test_codes_are_read_once_in_whole_sectors(dense, request):
    """value_mix reads a warp's first tile twice: it finds the unit of its weights there."""
    name = request.node.callspec.params["dense"]
    tile_bytes, tiles = PAGE_TOKENS * 128 * 3 // 8, TOKENS // PAGE_TOKENS
    read = {}
    for i in dense.instructions():
        for part, count in i["regions"].items():
            if part.endswith(" codes"):
                read[part] = read.get(part, 0) + count
                assert i["region_sectors"][part] * 32 == count, i["text"]
                assert ".v4." in i["opcode"]  # 128 bits a lane
    assert len(read) == (2 if name == "attention" else 1)
    assert set(read.values()) == {tile_bytes * (tiles + WARPS if name == "value_mix" else tiles)}
    assert all(dense.touched[part] == tile_bytes * tiles for part in read)


@pytest.mark.parametrize("dense", DENSE, indirect=True)
def test_global_reads_of_the_dense_loop_waste_no_sectors_that_matter(dense):
    """All that the loop reads, tables and weights too, against the codes: sectors at most a quarter above the bytes."""
    loads = [i for i in dense.dense_instructions() if i["opcode"].startswith("ld.global")]
    assert sum(i["sectors"] for i in loads) * 32 <= 1.25 * sum(i["distinct"] for i in loads)
