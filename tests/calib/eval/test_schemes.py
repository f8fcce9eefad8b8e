"""Schemes of published systems inside kvcc eval, against the same written down in numpy inside transformers."""
import json
import math
import subprocess

import h5py
import numpy as np
import pytest

import oracle
from support import BUILD, random_ids, tiny_llama

PROGRAMS = BUILD / "libexec/kvcc"
WINDOW, GROUP, SINK = 80, 16, 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemes")
    model = tiny_llama(folder / "model", initializer_range=0.12)  # small, so that a flipped rounding stays small
    return folder, model, random_ids(folder / "windows.npy", 2, WINDOW, seed=1)


def evaluate(folder, *schemes):
    arguments = [PROGRAMS / "kvcc-eval", folder / "model", "--ids", folder / "windows.npy", "--seqlen", str(WINDOW), "--json"]
    for scheme in schemes:
        arguments += ["--scheme", scheme]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["results"]


def ends(x, bits, axis):
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    scale, low = oracle.half((high - low) / (2 ** bits - 1)), oracle.half(low)
    return np.clip(np.rint((x - low) / scale), 0, 2 ** bits - 1) * scale + low


@pytest.mark.parametrize("residual", (0, 20))
def test_blocks_of_tokens_and_exact_ends(tiny, residual):
    """KIVI: keys after RoPE in blocks from the end of the sinks on, whole ones alone; values token by token."""
    folder, model, windows = tiny
    unit = max(GROUP, math.ceil(residual / GROUP) * GROUP)
    key_end = SINK + (WINDOW - SINK) // unit * unit
    assert key_end < WINDOW, "some keys stay exact"

    def values(layer, kind, x):
        if kind == "key":
            return x
        out = oracle.half(x)
        body = x[SINK:WINDOW - residual]
        out[SINK:WINDOW - residual] = ends(body.reshape(*body.shape[:2], -1, GROUP), 2, 3).reshape(body.shape)
        return out

    def keys(layer, kind, x):
        out = oracle.half(x)
        body = x[SINK:key_end]
        out[SINK:key_end] = ends(body.reshape(-1, GROUP, *body.shape[1:]), 2, 1).reshape(body.shape)
        return out

    expected = []
    for ids in windows:
        full = oracle.simulate(model, ids)
        expected.append(oracle.compare(full, oracle.simulate(model, ids, before=values, after=keys), ids))
    row = evaluate(folder, f"k=int2@postrope/channel:{GROUP},v=int2@token:{GROUP},sink={SINK},residual={residual}")[1]
    nll, kl, _ = (np.mean(x) for x in zip(*expected))
    assert kl > 0.01, "two bits show"
    assert row["nll"] == pytest.approx(nll, rel=2e-4)
    assert row["kl"] == pytest.approx(kl, rel=2e-2)


def test_every_kind_runs_and_more_bits_are_better(tiny):
    """Tiles and groups small enough that the window has some; a method's place in the table is not asserted."""
    folder, _, _ = tiny

    def kvarn(bits):
        return (f"k=int{bits}@postrope/channel:16,v=int{bits}@token:head,k-rotate=hadamard,v-rotate=hadamard,"
                f"k-norm=varn8:16,v-norm=varn8:16")

    def lloyd(bits):
        return (f"k=lloyd{bits}@postrope/token:head,v=lloyd{bits}@token:head,k-rotate=random,v-rotate=random,k-norm=head,"
                "v-norm=head")

    pairs = [("quarot-2", "quarot-4"), ("atom-2", "atom-4"), ("flexgen-2", "flexgen-4"), ("q4_0", "q8_0"),
             (kvarn(2), kvarn(4)), (lloyd(2), lloyd(4)), ("turboquant-2.5", "turboquant-3.5"),
             ("turboquant-2-prod", "turboquant-4-prod"),
             ("k=polar2@postrope/channel:16,v=int2@token:32", "k=polar5@postrope/channel:16,v=int4@token:32")]
    alone = ["fp8", "polarquant-b", "oscar-norm", "k=sign1@postrope/channel:16,v=int2@token:32,k-sketch=4",
             "k=int2@postrope/channel:16,v=int2@token:32,k-wide=12.5%:4"]
    names = [name for pair in pairs for name in pair] + alone
    rows = dict(zip(names, evaluate(folder, *names)[1:]))
    assert all(math.isfinite(row["nll"]) and row["kl"] > 0 for row in rows.values())
    for few, many in pairs:
        assert rows[many]["kl"] < rows[few]["kl"], (few, many)
        assert rows[many]["effective_bits"] > rows[few]["effective_bits"]
    assert not any(row["needs_calibration"] for row in rows.values())


@pytest.fixture(scope="module")
def fitted(tiny):
    """Artifacts of KVQuant's variants: codebook by layer or head, weight F or F s^2, capped outliers, Q-Norm."""
    folder, _, _ = tiny
    random_ids(folder / "calibration.npy", 4, 128)
    schemes = [f"kvquant-nuq2-5%{options}-sink1" for options in ("", "-fs2", "-head", "-fs2-head", "-cap", "-qnorm",
                                                                 "-cap-qnorm-fs2-head")]
    subprocess.run([PROGRAMS / "kvcc-collect", folder / "model", "-o", folder / "t.acts", "--ids", folder / "calibration.npy",
                    "--samples", "4", "--seqlen", "128"], check=True, capture_output=True)
    arguments = [PROGRAMS / "kvcc-fit", folder / "t.acts", "-o", folder / "t"]
    for scheme in schemes:
        arguments += ["--scheme", scheme]
    subprocess.run(arguments, check=True, capture_output=True)
    return {scheme: folder / f"t.{scheme}.kvcb" for scheme in schemes}


def read(path):
    with h5py.File(path) as file:
        return ({kind: {name: item[()] for name, item in file[kind].items() if isinstance(item, h5py.Dataset)}
                 for kind in ("key", "value")}, file.attrs["format_version"])


def exact_decode(levels, decoded, y, scale, zero):
    boundaries = (np.float32(0.5) * (levels[:-1] + levels[1:])).astype(np.float32)
    return oracle.decode(decoded[np.searchsorted(boundaries, y, side="left")], scale, zero)


def simulate_artifact(model, ids, parts, capped):
    """KVQuant's quantiser with the numbers of an artifact; the first token exact."""
    tail = oracle.tail_of(0.05, 64)

    def quantise(layer, kind, x):
        part = {name: value[layer] for name, value in parts[kind].items()}
        heads, tokens = x.shape[1], x.shape[0]
        levels = part["codebook"][:, :4]
        scale, offset = part.get("norm_scale", np.ones(heads, np.float32)), part.get("norm_offset", np.zeros(heads, np.float32))
        decoded = (levels.astype(np.float64) * scale[:, None] + offset[:, None]).astype(np.float32)
        out = np.empty_like(x)
        if kind == "key":
            y = (x - part["zero"]) / part["scale"]
            for h in range(heads):
                out[:, h] = exact_decode(levels[h], decoded[h], y[:, h], part["scale"][h], part["zero"][h])
            if capped:
                order = np.argsort(y.reshape(tokens, -1), axis=1, kind="stable")
                exact = np.zeros((tokens, y[0].size), bool)
                np.put_along_axis(exact, np.concatenate([order[:, :tail], order[:, -tail:]], 1), True, 1)
                exact = exact.reshape(x.shape)
            else:
                exact = (x < part["threshold_lower"]) | (x > part["threshold_upper"])
            out = np.where(exact, oracle.half(x), out)
        else:
            for t, row in enumerate(x.reshape(tokens, -1)):
                order = np.argsort(row, kind="stable")
                outliers, inliers = np.concatenate([order[:tail], order[-tail:]]), row[order[tail:-tail]]
                half_width, zero = oracle.half(np.float32([0.5 * (inliers.max() - inliers.min()), 0.5 * (inliers.max() + inliers.min())]))
                y = ((row - zero) / half_width).reshape(heads, -1)
                done = np.stack([exact_decode(levels[h], decoded[h], y[h], half_width, zero) for h in range(heads)]).ravel()
                done[outliers] = oracle.half(row[outliers])
                out[t] = done.reshape(heads, -1)
        out[0] = oracle.half(x[0])
        return out

    return oracle.simulate(model, ids, before=quantise)


def test_kvquants_variants(tiny, fitted):
    folder, model, windows = tiny
    arguments = [PROGRAMS / "kvcc-eval", folder / "model", "--ids", folder / "windows.npy", "--seqlen", str(WINDOW), "--json"]
    for path in fitted.values():
        arguments += ["--codebook", path]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = {row["scheme"]: row for row in json.loads(done.stdout)["results"][1:]}
    assert set(rows) == set(fitted)
    for scheme, path in fitted.items():
        parts, version = read(path)
        assert (version if isinstance(version, str) else version.decode()) == ("1.3" if "cap" in scheme or "qnorm" in scheme else "1.2")
        assert ("norm_scale" in parts["key"]) == ("qnorm" in scheme)
        shared = all((parts["key"]["codebook"][:, h] == parts["key"]["codebook"][:, 0]).all() for h in range(2))
        assert shared == ("head" not in scheme)
        expected = []
        for ids in windows:
            full = oracle.simulate(model, ids)
            expected.append(oracle.compare(full, simulate_artifact(model, ids, parts, "cap" in scheme), ids))
        nll, kl, _ = (np.mean(x) for x in zip(*expected))
        assert rows[scheme]["nll"] == pytest.approx(nll, rel=2e-4), scheme
        assert rows[scheme]["kl"] == pytest.approx(kl, rel=2e-2), scheme
    assert len({row["nll"] for row in rows.values()}) == len(rows), "each is a scheme of its own"


def test_exports_that_do_not_know_them_are_refused(fitted, tmp_path):
    for scheme, path in fitted.items():
        extended = "cap" in scheme or "qnorm" in scheme
        for kind in ("safetensors", "json"):
            done = subprocess.run([PROGRAMS / "kvcc-export", path, "--to", kind, "-o", tmp_path / f"out.{kind}"], capture_output=True, text=True)
            refused = extended and kind == "safetensors"
            assert done.returncode == (2 if refused else 0), done.stderr
            assert not refused or "without cap and qnorm" in done.stderr
