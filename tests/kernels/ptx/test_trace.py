"""Static bars that only running shows: the dense loops' shared memory is free of bank conflicts, codes are read once, in whole
sectors. And what an outlier costs."""
import pytest

from support import BUILD
from trace import PAGE_TOKENS, trace
from units import Unit

TOKENS = 512
DENSE = {
    "key_scores": Unit("key_scores", dim=128, rope="half", rotary=128),
    "value_mix": Unit("value_mix", dim=128, axis="token"),
    "attention": Unit("attention", dim=128, rope="half", rotary=128),
}


@pytest.fixture(scope="module")
def dense(request, nvcc, tmp_path_factory):
    return trace(DENSE[request.param], tmp_path_factory.mktemp("trace"), BUILD, nvcc, "group=8", tokens=TOKENS, heads=1)


@pytest.mark.parametrize("dense", DENSE, indirect=True)
def test_dense_loops_have_no_bank_conflicts(dense):
    loads = [i for i in dense.dense_instructions() if i["opcode"].startswith("ld.shared")]
    assert len(loads) > 50  # a load a pair of codes
    conflicts = [(i["line"], i["text"], i["wavefronts"], i["least"]) for i in loads if i["wavefronts"] != i["least"]]
    assert not conflicts


@pytest.mark.parametrize("dense", DENSE, indirect=True)
def test_codes_are_read_once_in_whole_sectors(dense, request):
    tensors = 2 if "attention" in request.node.name else 1
    tile_bytes = PAGE_TOKENS * 128 * 3 // 8
    read = {}
    for i in dense.instructions():
        for name, count in i["regions"].items():
            read[name] = read.get(name, 0) + count
            assert i["region_sectors"][name] * 32 == count, i["text"]
            assert ".v4." in i["opcode"]  # 128 bits a lane
    assert len(read) == tensors and set(read.values()) == {TOKENS // PAGE_TOKENS * tile_bytes}


@pytest.mark.parametrize("dense", DENSE, indirect=True)
def test_global_reads_of_the_dense_loop_waste_no_sectors_that_matter(dense):
    """All that the loop reads, tables and weights too, against the codes: sectors at most a quarter above the bytes."""
    loads = [i for i in dense.dense_instructions() if i["opcode"].startswith("ld.global")]
    assert sum(i["sectors"] for i in loads) * 32 <= 1.25 * sum(i["distinct"] for i in loads)
