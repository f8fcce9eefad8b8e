"""oscar-qk: rotations and clips that kvcc eval makes from calibration text, against numpy on transformers' own queries,
keys and values."""
import math

import numpy as np
import pytest
import torch

import oracle
from calib.eval.test_eval import CALM, evaluate, run
from support import random_ids, tiny_llama

LENGTH, HEADS, KV, DIM = 64, 4, 2, 32
GROUP = HEADS // KV


def spelt(bits):
    return f"k=int{bits}@postrope/token:head,v=int{bits}@token:head,k-rotate=spectral,v-rotate=spectral"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rotations")
    model = tiny_llama(folder / "model", **CALM)
    calibration = random_ids(folder / "calibration.npy", 4, LENGTH, seed=2)
    return folder, model, calibration, random_ids(folder / "windows.npy", 2, LENGTH, seed=1)


def exact_rows(model, ids):
    """By layer: queries and keys after RoPE, values and outputs of attention, [T, heads, D] each."""
    from transformers.models.llama import modeling_llama
    rows, seen, handles, plain = [], {}, [], modeling_llama.apply_rotary_pos_emb

    def rotary(q, k, *arguments, **keywords):
        q, k = plain(q, k, *arguments, **keywords)
        seen["q"], seen["k"] = (x[0].transpose(0, 1).numpy() for x in (q, k))
        return q, k

    def keep(module, arguments):
        rows.append((seen["q"], seen["k"], seen["v"], arguments[0][0].numpy().reshape(LENGTH, HEADS, DIM)))

    for layer in model.model.layers:
        handles.append(layer.self_attn.v_proj.register_forward_hook(
            lambda m, a, o: seen.__setitem__("v", o[0].numpy().reshape(LENGTH, KV, DIM))))
        handles.append(layer.self_attn.o_proj.register_forward_pre_hook(keep))
    modeling_llama.apply_rotary_pos_emb = rotary
    oracle.hooked_log_probabilities(model, ids, handles, plain)
    return rows


def rotation(covariance):
    """(U H P)^T: eigenvectors by falling eigenvalue, greatest component positive; Hadamard; channels by reversed bits."""
    vectors = np.linalg.eigh(covariance)[1][:, ::-1]
    vectors = vectors * np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(0)[None], 0))
    hadamard = np.ones((1, 1))
    while len(hadamard) < DIM:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    bits = int(math.log2(DIM))
    reverse = [int(f"{c:0{bits}b}"[::-1], 2) for c in range(DIM)]
    return (vectors @ hadamard / math.sqrt(DIM))[:, reverse].T.astype(np.float32)


def quantise(x, matrices, bits, clip):
    """x [n, KV, D]: a range a token and head, of the turned vector."""
    y = np.einsum("hij,nhj->nhi", matrices, x).astype(np.float32)
    low, high = (y.min(-1) * np.float32(clip)), (y.max(-1) * np.float32(clip))
    scale, zero = (oracle.half(v)[..., None] for v in ((high - low) / np.float32((1 << bits) - 1), low))
    codes = np.rint(np.clip((y - zero) / scale, 0, (1 << bits) - 1))
    return np.einsum("hij,nhi->nhj", matrices, oracle.decode(codes, scale, zero)).astype(np.float32)


def fit(model, windows, bits):
    """[layer][kind] of (matrices, clip)."""
    by_window = [exact_rows(model, ids) for ids in windows]
    fitted = []
    for layer in zip(*by_window):
        q, k, v, o = (np.concatenate(part) for part in zip(*layer))
        moment = lambda x: np.stack([x[:, h * GROUP:(h + 1) * GROUP].reshape(-1, DIM).astype(float).T @ x[:, h * GROUP:(h + 1) * GROUP].reshape(-1, DIM) for h in range(KV)])
        read, given = moment(q), moment(o)
        tensors = {}
        for kind, x, covariance, weight in (("key", k, read, read), ("value", v, given, np.tile(np.eye(DIM), (KV, 1, 1)))):
            matrices = np.stack([rotation(c) for c in covariance])
            errors = []
            for i in range(11):
                e = (quantise(x, matrices, bits, (20 - i) / 20) - x).astype(float)
                errors.append(np.einsum("nhi,hij,nhj->", e, weight, e))
            tensors[kind] = matrices, (20 - int(np.argmin(errors))) / 20
        fitted.append(tensors)
    return fitted


@pytest.mark.parametrize("bits", (2, 4))
def test_rotations_are_those_of_the_definition(tiny, bits):
    folder, model, calibration, windows = tiny
    fitted = fit(model, calibration, bits)
    assert len({clip for tensors in fitted for _, clip in tensors.values()} - {1.0}) > 0  # clipping is chosen somewhere

    def code(layer, kind, x):
        return quantise(x, *(lambda matrices, clip: (matrices, bits, clip))(*fitted[layer][kind]))

    row = evaluate(folder / "model", "--ids", folder / "windows.npy", "--seqlen", LENGTH, "--scheme", spelt(bits), "--calibration",
                   folder / "calibration.npy", "--calibration-samples", 4)["results"][1]
    assert row["needs_calibration"] and row["effective_bits"] == pytest.approx(bits + 1, abs=0.1)  # fp16 scale and zero for 32 channels
    expected = []
    for ids in windows:
        full = oracle.simulate(model, ids)
        theirs = oracle.simulate(model, ids, before=lambda l, kind, x: code(l, kind, x) if kind == "value" else x, after=code)
        expected.append(oracle.compare(full, theirs, ids))
    assert row["kl"] == pytest.approx(np.mean([e[1] for e in expected]), rel=2e-2)
    assert row["nll"] == pytest.approx(np.mean([e[0] for e in expected]), rel=1e-3)


def test_modes_tasks_and_journal(tiny, tmp_path):
    """Other calibration text gives other rotations, which a journal tells apart; every mode and all presets' row have them."""
    folder, _, calibration, _ = tiny
    np.save(tmp_path / "other.npy", np.asarray(calibration)[::-1, ::-1].astype(np.int32))
    common = [folder / "model", "--ids", folder / "windows.npy", "--seqlen", LENGTH, "--calibration-samples", 2]
    first, second = (evaluate(*common, "--scheme", spelt(2), "--journal", tmp_path / "j.jsonl", "--resume", "--calibration", file)["results"][1]
                     for file in (folder / "calibration.npy", tmp_path / "other.npy"))
    assert first["kl"] != second["kl"]
    rows = evaluate(*common, "--scheme", "oscar-qk", "--sink", 2, "--tail", 4, "--calibration", folder / "calibration.npy", "--mode",
                    "full,pseudo-decode,prefill-exact", "--block", 16)["results"][1:]
    assert [row["scheme"] for row in rows] == ["oscar-qk"] * 3 and all(row["kl"] > 0 for row in rows) and len({row["kl"] for row in rows}) == 3
    names = [row["scheme"] for row in evaluate(*common, "--schemes-all", "--windows", 1, "--mode", "full", "--calibration", folder / "calibration.npy")["results"]]
    assert "oscar-qk" in names and "oscar-norm" in names
    assert "kvcc eval" in run("calibrate", folder / "model", "--scheme", "oscar-qk", "-o", tmp_path / "x.kvcb", code=2).stderr
