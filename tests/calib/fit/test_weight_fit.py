"""Quantised matrices against numpy's sets of exact weights and ckwrap's optimal k-means, row by row; scikit-learn's
k-means, which SqueezeLLM's release uses, is never better."""
import os
import subprocess

import numpy as np
import pytest

DRIVER = os.path.join(os.environ["KVCC_BUILD"], "tests", "bin", "fit_weights")


def fit(weights, fisher, bits, sparse=0.0, sensitive=0.0, threads=1, code=0):
    rows, columns = weights.shape
    done = subprocess.run([DRIVER, *map(str, (rows, columns, bits, sparse, sensitive, threads))], capture_output=True,
                          input=weights.astype("<f4").tobytes() + fisher.astype("<f4").tobytes())
    assert done.returncode == code, done.stderr.decode()
    if code:
        return done.stderr.decode()
    parts, at = [], 0
    for dtype, shape in (("<f4", (rows, columns)), ("<f4", (rows, 1 << bits)), ("u1", (rows, columns)), ("<f8", (4,))):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        parts.append(np.frombuffer(done.stdout[at:at + size], dtype).reshape(shape))
        at += size
    assert at == len(done.stdout)
    return parts


def exact_set(weights, fisher, sparse, sensitive):
    """As formats/spec/weights.md has it."""
    n = weights.size
    flags = np.zeros(n, bool)
    order = np.lexsort((np.arange(n), -fisher.ravel().astype(float)))
    order = order[fisher.ravel()[order] > 0][:int(np.floor(sensitive * n + 0.5))]
    flags[order] = True
    magnitude = np.where(flags, -1, np.abs(weights.ravel().astype(float)))
    order = np.lexsort((np.arange(n), -magnitude))
    order = order[magnitude[order] > 0][:int(np.floor(sparse * n + 0.5)) - flags.sum()]
    flags[order] = True
    return flags.reshape(weights.shape)


def matrix(rows=24, columns=96, seed=0):
    r = np.random.default_rng(seed)
    weights = (r.standard_t(4, (rows, columns)) * 0.05).astype(np.float32)
    fisher = (r.standard_normal((rows, columns)) ** 2 * np.exp(2 * r.standard_normal((rows, columns)))).astype(np.float32)
    return weights, fisher


def objective(x, w, levels):
    return (w * ((x[:, None] - levels.astype(float)) ** 2).min(1)).sum()


@pytest.mark.parametrize("bits", (2, 3, 4))
@pytest.mark.parametrize("sparse,sensitive", ((0.0, 0.0), (0.0045, 0.0005), (0.03, 0.03), (0.03, 0.0)))
def test_levels_are_optimal_and_exact_weights_numpys(bits, sparse, sensitive):
    ckwrap = pytest.importorskip("ckwrap")
    weights, fisher = matrix()
    fisher[3] = 0  # an expert that no token reached
    fisher[4, 10:] = 0  # fewer weights with a say than codes may be
    decoded, levels, flags, sums = fit(weights, fisher, bits, sparse, sensitive)
    kept = exact_set(weights, fisher, sparse, sensitive)
    assert np.array_equal(flags.astype(bool), kept)
    assert np.array_equal(decoded[kept], weights[kept])
    for r in range(len(weights)):
        x, w = weights[r][~kept[r]].astype(float), fisher[r][~kept[r]].astype(float)
        if not w.any():
            w[:] = 1
        used = w > 0
        k = min(1 << bits, used.sum())
        labels = np.asarray(ckwrap.ckmeans(x[used], int(k), weights=w[used]).labels)
        centres = np.array([np.average(x[used][labels == j], weights=w[used][labels == j]) for j in np.unique(labels)])
        best = objective(x[used], w[used], centres)
        # Rounding a level by at most 2^-11 of it moves the objective by sum of w times that, squared.
        slack = (w * (np.abs(x) * 2.0**-11 + 2.0**-25) ** 2).sum()
        assert objective(x[used], w[used], levels[r]) <= best * (1 + 1e-9) + slack, r
        assert np.array_equal(levels[r], levels[r].astype(np.float16).astype(np.float32))
        assert (np.diff(levels[r]) >= 0).all()
        if r in (0, 3, 7):  # well-separated optimum: the same levels but for rounding
            np.testing.assert_allclose(np.unique(levels[r]), np.unique(centres.astype(np.float16)), rtol=2e-3)
        # Every dense weight decodes to the nearest level.
        distance = np.abs(x[:, None] - levels[r].astype(float))
        found = np.abs(x - decoded[r][~kept[r]])
        np.testing.assert_allclose(found, distance.min(1), rtol=1e-6, atol=1e-9)
    error = weights.astype(float) - decoded
    expected = [fisher.sum(dtype=float), (fisher * error**2).sum(), (error**2).sum(), (weights.astype(float) ** 2).sum()]
    np.testing.assert_allclose(sums, expected, rtol=1e-9)


def test_not_worse_than_scikit_learn():
    from sklearn.cluster import KMeans
    weights, fisher = matrix(6, 200, 1)
    _, levels, _, _ = fit(weights, fisher, 4)
    better = 0
    for r in range(len(weights)):
        model = KMeans(16, random_state=0, n_init="auto", max_iter=50).fit(weights[r][:, None], sample_weight=fisher[r])
        theirs = objective(weights[r].astype(float), fisher[r].astype(float), model.cluster_centers_[:, 0])
        ours = objective(weights[r].astype(float), fisher[r].astype(float), levels[r])
        assert ours <= theirs * (1 + 1e-4), r
        better += ours < theirs * 0.99
    assert better > 0


def test_threads_change_no_bit():
    weights, fisher = matrix(50, 70, 2)
    one, many = (fit(weights, fisher, 3, 0.01, 0.002, threads) for threads in (1, 3))
    assert all(np.array_equal(a, b) for a, b in zip(one, many))


def test_ties_go_to_the_first():
    weights, fisher = np.full((2, 50), 0.25, np.float32), np.ones((2, 50), np.float32)
    weights[1] = -0.25
    decoded, _, flags, _ = fit(weights, fisher, 2, 0.05, 0.02)
    assert np.flatnonzero(flags).tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(decoded, weights)


def test_zeros_are_never_exact():
    weights = np.zeros((2, 100), np.float32)
    decoded, levels, flags, _ = fit(weights, np.zeros_like(weights), 4, 0.05, 0.01)
    assert not flags.any() and not levels.any() and not decoded.any()


@pytest.mark.parametrize("change,message", (
    (lambda w, f: w.__setitem__((1, 2), np.nan), "w row 1 column 2: the weight is nan"),
    (lambda w, f: f.__setitem__((0, 5), np.inf), "w row 0 column 5: the Fisher information is inf"),
    (lambda w, f: f.__setitem__((0, 5), -1), "w row 0 column 5: the Fisher information is -1"),
    (lambda w, f: w.__setitem__((1, slice(None)), 1e6), "w row 1: a level of 1000000.0")))
def test_what_cannot_be_is_refused(change, message):
    weights, fisher = matrix(2, 40, 3)
    change(weights, fisher)
    assert message in fit(weights, fisher, 3, code=3)
