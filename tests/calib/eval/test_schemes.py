"""Schemes of published systems inside kvcc eval, against the same written down in numpy inside transformers."""
import json
import math
import subprocess

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
