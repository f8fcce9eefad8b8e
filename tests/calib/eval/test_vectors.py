"""Artifacts of vector codebooks inside kvcc eval, against formats/spec/codebook.md written down in numpy inside transformers."""
import json
import subprocess

import h5py
import numpy as np
import pytest

import oracle
from support import BUILD, random_ids, tiny_llama

PROGRAMS = BUILD / "libexec/kvcc"
WINDOW = 72
SCHEMES = ["kvcc-1", "kvcc-2", "kvcc-4", "kvcc-2-head", "kvcc-2-channels", "kvcc-2-head-sink4", "kvcc-2-predict", "kvcc-2-head-predict"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    model = tiny_llama(folder / "model", initializer_range=0.12)
    windows = random_ids(folder / "windows.npy", 2, WINDOW, seed=1)
    random_ids(folder / "calibration.npy", 8, 128)
    subprocess.run([PROGRAMS / "kvcc-collect", folder / "model", "-o", folder / "t.acts", "--ids", folder / "calibration.npy",
                    "--samples", "8", "--seqlen", "128"], check=True, capture_output=True)
    arguments = [PROGRAMS / "kvcc-fit", folder / "t.acts", "-o", folder / "t"]
    for scheme in SCHEMES:
        arguments += ["--scheme", scheme]
    subprocess.run(arguments, check=True, capture_output=True)
    return folder, model, windows


def evaluate(folder, *options):
    arguments = [PROGRAMS / "kvcc-eval", folder / "model", "--ids", folder / "windows.npy", "--seqlen", str(WINDOW), "--json", *options]
    for scheme in SCHEMES:
        arguments += ["--codebook", folder / f"t.{scheme}.kvcb"]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {row["scheme"]: row for row in json.loads(done.stdout)["results"][1:]}


def groups_of(file, kind):
    """By (layer, unit): lists of (first coordinate, width, vectors [2^bits, width])."""
    width, bits, vectors = (file[f"{kind}/{name}"][()] for name in ("group_width", "group_bits", "vectors"))
    found, at = {}, 0
    for layer, unit in np.ndindex(width.shape[:2]):
        for first in np.nonzero(width[layer, unit])[0]:
            w, b = int(width[layer, unit, first]), int(bits[layer, unit, first])
            found.setdefault((layer, unit), []).append((first, w, vectors[at:at + (w << b)].reshape(-1, w)))
            at += w << b
    assert at == len(vectors)
    return found


def decoder(path, sink):
    with h5py.File(path) as file:
        groups = {kind: groups_of(file, kind) for kind in ("key", "value")}
        turns = {kind: {name: file[f"rotation/{kind}/{name}"][()] for name in ("forward", "inverse", "mean")}
                 for kind in ("key", "value")}
        from_key = file["rotation/value/from_key"][()] if "rotation/value/from_key" in file else None
    keys = {}  # of each layer, as decoded: they come before its values

    def quantise(layer, kind, x):
        tokens = len(x)
        turn, flat = turns[kind], x.reshape(tokens, -1)
        told = 0
        if kind == "value" and from_key is not None:
            parts = np.split(keys.pop(layer), from_key.shape[1], axis=1)
            told = np.concatenate([part @ map_.T for part, map_ in zip(parts, from_key[layer])], 1)
            flat = flat - told
        units = turn["mean"].shape[1]
        out = []
        for unit, part in enumerate(np.split(flat, units, axis=1)):
            z = (part - turn["mean"][layer, unit]) @ turn["forward"][layer, unit].T
            for first, width, vectors in groups[kind][layer, unit]:
                distance = ((z[:, None, first:first + width] - vectors[None]) ** 2).sum(-1)
                z[:, first:first + width] = vectors[distance.argmin(1)]
            out.append(z @ turn["inverse"][layer, unit].T + turn["mean"][layer, unit])
        out = (np.concatenate(out, 1) + told).reshape(x.shape).astype(np.float32)
        out[:sink] = oracle.half(x[:sink])
        if kind == "key":
            keys[layer] = out.reshape(tokens, -1)
        return out

    return quantise


def test_full_mode_is_the_specification(tiny):
    folder, model, windows = tiny
    rows = evaluate(folder)
    assert set(rows) == set(SCHEMES)
    for scheme in SCHEMES:
        sink = 4 if scheme.endswith("sink4") else 1
        quantise = decoder(folder / f"t.{scheme}.kvcb", sink)
        expected = []
        for ids in windows:
            full = oracle.simulate(model, ids)
            expected.append(oracle.compare(full, oracle.simulate(model, ids, before=quantise), ids))
        nll, kl, _ = (np.mean(x) for x in zip(*expected))
        assert rows[scheme]["nll"] == pytest.approx(nll, rel=2e-4), scheme
        assert rows[scheme]["kl"] == pytest.approx(kl, rel=2e-2), scheme
    assert rows["kvcc-2"]["kl"] < rows["kvcc-1"]["kl"], "so few tokens to fit to give a wider codebook nothing to learn"


def test_other_modes_and_effective_bits(tiny):
    folder, _, _ = tiny
    rows = evaluate(folder, "--mode", "pseudo-decode", "--block", "16")
    assert 0 < rows["kvcc-2"]["kl"] < rows["kvcc-1"]["kl"]
    for scheme in SCHEMES:
        assert rows[scheme]["effective_bits"] <= float(scheme.split("-")[1]) + 0.05 + 1e-9
        assert rows[scheme]["needs_calibration"]


@pytest.mark.parametrize("scheme", ["kvcc-2", "kvcc-2-predict"])
def test_generation_sees_what_the_specification_says(tiny, scheme):
    """Tokens one by one through the cache that grows, values from keys included, against whole passes of the oracle."""
    folder, model, windows = tiny
    np.save(folder / "prompt.npy", windows[:1])
    done = subprocess.run([PROGRAMS / "kvcc-generate", folder / "model", "--codebook", folder / f"t.{scheme}.kvcb", "--ids", folder / "prompt.npy",
                           "--tokens", "6", "--cache", "simulated", "--prefill", "quantised", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    generated = json.loads(done.stdout)["ids"]
    assert len(generated) == 6
    ids = np.concatenate([windows[0], generated]).astype(windows.dtype)
    logits = oracle.simulate(model, ids, before=decoder(folder / f"t.{scheme}.kvcb", 1))
    plain = oracle.simulate(model, ids)
    assert np.abs(logits[WINDOW - 1:] - plain[WINDOW - 1:]).max() > 0.05
    for step, token in enumerate(generated):
        row = logits[WINDOW - 1 + step]
        assert row.max() - row[token] < 5e-3, (step, token, row.argmax())
