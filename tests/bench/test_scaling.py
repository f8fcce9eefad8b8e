"""Memory stays flat and disk linear as samples and layers grow (scaling.py measures the rest, and times)."""
import math

import pytest

import scaling

SMALL = {"layers": 2, "heads": 4, "samples": 4, "tokens": 256}


def test_exponent_of_known_curves():
    sizes = [2, 4, 8, 16]
    assert scaling.exponent(sizes, [3 * s for s in sizes]) == pytest.approx(1)
    assert scaling.exponent(sizes, [7 * s**2 for s in sizes]) == pytest.approx(2)
    assert scaling.exponent(sizes, [5.0] * 4) == pytest.approx(0)
    assert math.isnan(scaling.exponent(sizes, [1, 2, 0, 4]))


def test_memory_is_flat_in_samples_and_disk_linear(tmp_path):
    small, large = (scaling.run({**SMALL, "samples": samples}, tmp_path) for samples in (4, 32))
    data = large["collect"]["disk"] - small["collect"]["disk"]
    assert scaling.exponent([4, 32], [small["collect"]["disk"], large["collect"]["disk"]]) == pytest.approx(1, abs=0.05)
    assert large["collect"]["whole_memory"] - small["collect"]["whole_memory"] < data / 2


def test_memory_of_collect_and_scalar_fit_is_flat_in_layers(tmp_path):
    small, large = (scaling.run({**SMALL, "layers": layers}, tmp_path) for layers in (4, 16))
    data = large["collect"]["disk"] - small["collect"]["disk"]
    assert scaling.exponent([4, 16], [small["collect"]["disk"], large["collect"]["disk"]]) == pytest.approx(1, abs=0.05)
    # A layer's inputs are kept; all activations would take 12 times as much as its share.
    assert large["fit"]["whole_memory"] - small["fit"]["whole_memory"] < data / 4
