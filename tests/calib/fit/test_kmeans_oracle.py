"""Exact weighted 1-D k-means against ckwrap (another exact solver), brute force and scikit-learn; merged superpoints
against the exact solver; thresholds against numpy."""

import itertools
import json
import os
import struct
import subprocess

import numpy as np
import pytest

DRIVER = os.path.join(os.environ["KVCC_BUILD"], "tests", "bin", "fit_kmeans")


def run(arguments, numbers):
    done = subprocess.run([DRIVER, *arguments], input=np.asarray(numbers, dtype="<f8").tobytes(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def ours(x, w, k, tolerance=0.0):
    return run([], np.concatenate([[k, tolerance, len(x)], x, w]))


def objective(x, w, centres):
    """Sum of w (x - nearest centre)^2 in extended precision."""
    x, w = np.asarray(x, np.longdouble), np.asarray(w, np.longdouble)
    centres = np.asarray(sorted(set(centres)), np.longdouble)
    cell = np.searchsorted((centres[1:] + centres[:-1]) / 2, x)
    return float(np.sum(w * (x - centres[cell]) ** 2))


def theirs(x, w, k):
    ckwrap = pytest.importorskip("ckwrap")
    labels = np.asarray(ckwrap.ckmeans(np.asarray(x, float), k, weights=np.asarray(w, float)).labels)
    centres = [np.average(x[labels == j], weights=w[labels == j]) for j in np.unique(labels)]
    return objective(x, w, centres)


def distributions(n, seed):
    r = np.random.default_rng(seed)
    gaussian = r.standard_normal(n) / 2.6
    heavy = np.full(n, 1.0)
    heavy[:: max(n // 16, 1)] = 49 * n / 16  # 16 first tokens with 98 % of the Fisher mass
    fisher = r.standard_normal(n) ** 2 * np.exp(3 * r.standard_normal(n))
    zeros = np.where(r.random(n) < 0.7, 0.0, r.random(n))
    return {
        "gaussian": (gaussian, np.ones(n)),
        "gaussian, squared gradients": (gaussian, fisher),
        "gaussian, heavy first tokens": (gaussian, heavy),
        "two blobs": (np.concatenate([-1 + 1e-3 * gaussian[: n // 2], 1 + 1e-3 * gaussian[n // 2 :]]), fisher),
        "repeated values": (np.round(gaussian * 8) / 8, fisher),
        "zero weights": (gaussian, zeros),
        "uniform": (r.uniform(-1, 1, n), np.ones(n)),
        "heavy tails": (np.tanh(r.standard_t(2, n)), fisher),
        "far from zero": (1000 + gaussian, fisher),
        "float32 grid": (gaussian.astype(np.float32).astype(float), fisher),
    }


CASES = [(n, k, name) for n, ks in ((300, (2, 3, 4, 8, 16)), (3000, (4, 8, 16, 32)), (20000, (4, 8, 16)))
         for k in ks for name in distributions(64, 0)]


@pytest.mark.parametrize("n,k,name", CASES)
def test_exact_against_ckwrap(n, k, name):
    x, w = distributions(n, n + k)[name]
    result = ours(x, w, k)
    assert result["gap_bound"] == 0 and result["relative_bound"] == 0
    assert len(result["centres"]) == k and np.all(np.diff(result["centres"]) >= 0)
    own = objective(x, w, result["centres"])
    kept = w > 0
    wanted = theirs(x[kept], w[kept], min(k, len(np.unique(x[kept]))))
    scale = np.sum(w * (x - np.average(x, weights=w)) ** 2)
    assert own <= wanted * (1 + 1e-9) + 1e-18 * scale, (own, wanted)
    assert abs(result["objective"] - own) <= 1e-9 * own + 1e-18 * scale


def test_exact_against_all_partitions():
    r = np.random.default_rng(5)
    for trial in range(40):
        n, k = int(r.integers(2, 11)), int(r.integers(1, 6))
        x = np.sort(r.integers(-6, 7, n) / 4 if trial % 2 else r.standard_normal(n))
        w = r.integers(0, 4, n).astype(float) + (trial % 3 == 0)
        if not w.any():
            continue
        best = np.inf
        for cuts in itertools.combinations_with_replacement(range(n + 1), k - 1):
            ends, cost = [0, *cuts, n], 0.0
            for a, b in zip(ends, ends[1:]):
                if b > a and w[a:b].sum() > 0:
                    cost += np.sum(w[a:b] * (x[a:b] - np.average(x[a:b], weights=w[a:b])) ** 2)
            best = min(best, cost)
        assert ours(x, w, k)["objective"] == pytest.approx(best, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", list(distributions(64, 0)))
def test_scikit_learn_is_never_better(name):
    from sklearn.cluster import KMeans

    x, w = distributions(4000, 9)[name]
    for k in (4, 16):
        k = min(k, len(np.unique(x[w > 0])))
        best = KMeans(k, random_state=0, n_init=5, max_iter=50).fit(x[:, None], sample_weight=w)
        assert ours(x, w, k)["objective"] <= objective(x, w, best.cluster_centers_[:, 0]) * (1 + 1e-9)


@pytest.mark.parametrize("name", list(distributions(64, 0)))
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_merged_superpoints_stay_within_their_bound(name, tolerance):
    x, w = distributions(20000, 3)[name]
    for k in (4, 8, 16):
        exact, merged = ours(x, w, k), ours(x, w, k, tolerance)
        assert merged["superpoints"] <= exact["superpoints"]
        own = objective(x, w, merged["centres"])  # of the points, not of the superpoints
        assert own <= merged["objective"] * (1 + 1e-9)
        assert exact["objective"] * (1 - 1e-9) <= own
        assert merged["objective"] - exact["objective"] <= merged["gap_bound"] + 1e-9 * exact["objective"]
        if exact["objective"] > 0 and merged["gap_bound"] > 0:
            assert merged["objective"] / exact["objective"] - 1 <= merged["relative_bound"] + 1e-9


def test_merging_does_merge():
    x, w = distributions(20000, 3)["gaussian"]
    merged = ours(x, w, 16, 1e-4)
    assert 0 < merged["relative_bound"] < 2e-4 and merged["superpoints"] < 6000


def test_F28_fewer_distinct_values_than_clusters():
    x = np.array([3.0, 1.0, 1.0, 2.0, -5.0, 0.5])
    result = ours(x, np.ones(6), 16)
    assert result["centres"] == [-5.0, 0.5, 1.0, 2.0] + [3.0] * 12
    assert result["objective"] == 0


def test_F31_two_blobs_leave_no_cluster_empty():
    r = np.random.default_rng(1)
    x = np.concatenate([r.normal(-1, 1e-4, 500), r.normal(1, 1e-4, 500)])
    centres = np.array(ours(x, np.ones(1000), 16)["centres"])
    assert np.all(np.isfinite(centres)) and len(set(centres)) == 16


def test_weights_of_zero_alone_count_as_one():
    x = np.random.default_rng(2).standard_normal(500)
    assert ours(x, np.zeros(500), 4) == ours(x, np.ones(500), 4)


def test_one_weight_may_outweigh_all_others():
    x, w = distributions(2000, 4)["gaussian"]
    for factor in (1e6, 1e12):
        w = w.copy()
        w[100] = factor
        result = ours(x, w, 8)
        assert min(abs(np.array(result["centres"]) - x[100])) < 100 / factor
        assert result["objective"] <= theirs(x, w, 8) * (1 + 1e-6)


@pytest.mark.parametrize("bad", [-1e-3, float("nan"), float("inf")])
def test_F25_bad_weights_are_refused(bad):
    numbers = [2, 0, 3, 1.0, 2.0, 3.0, 1.0, bad, 1.0]
    done = subprocess.run([DRIVER], input=struct.pack("<9d", *numbers), capture_output=True)
    assert done.returncode == 3
    assert b"weight 1" in done.stderr and b"expects squared gradients" in done.stderr


@pytest.mark.parametrize("n", [1, 2, 3, 101, 5000, 32768])
@pytest.mark.parametrize("sparse", [0.0, 0.01, 0.02, 0.1, 0.49])
def test_thresholds_are_numpys_quantiles(n, sparse):
    r = np.random.default_rng(n)
    for x in (r.standard_normal(n), np.round(r.standard_normal(n) * 2), np.full(n, 0.7), np.sort(r.standard_t(2, n))):
        x = x.astype(np.float32).astype(float)
        got = run(["quantiles"], np.concatenate([[sparse, n], x]))
        wanted = np.percentile(x, [100 * (sparse / 2), 100 * (1 - sparse / 2)])
        np.testing.assert_allclose([got["lower"], got["upper"]], wanted, rtol=1e-12, atol=1e-12)
