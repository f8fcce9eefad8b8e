"""What the sparse part adds: what warps issue with it against without, from runs of the PTX. Up to about 1.5 % of outliers, where a warp's
lanes take a patch's records at once, that is an amount an element, not an outlier."""
import pytest

from support import BUILD
from unit_trace import Traced, outlier_cost
from units import Unit

# The unit with and without, the options that give somewhat less than 1 % of outliers, lane instructions an element it may add.
CASES = {
    "keys": (lambda sparse: Unit("key_scores", dim=128, rope="half", rotary=128, sparse=sparse), "csr", ["threshold=3.0"], 1.9),
    "values": (lambda sparse: Unit("value_mix", dim=128, axis="token", sparse=sparse), "tail", ["tail=1"], 2.0),
}


@pytest.mark.parametrize("case", CASES)
def test_cost_of_an_outlier(case, nvcc, tmp_path):
    made, sparse, options, bar = CASES[case]
    dense, with_outliers = (Traced(made(kind), tmp_path, BUILD, nvcc) for kind in ("none", sparse))
    cost, share = outlier_cost(dense, with_outliers, "group=8", "weights=flat", *options)
    print(f"\n{case}: {cost:.0f} lane instructions an outlier; at {share:.2%} outliers {cost * share:.2f} an element")
    assert 0.004 < share < 0.02
    assert 0 < cost * share <= bar
