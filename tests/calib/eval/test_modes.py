"""kvcc eval's modes against a literal decode in transformers, and its measures against numpy."""
import math

import numpy as np
import pytest

import literal
import oracle
from calib.eval.test_eval import CALM, assert_row, evaluate, run
from support import random_ids, tiny_llama

LENGTH = 80


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modes")
    model = tiny_llama(folder / "model", **CALM)
    windows = random_ids(folder / "windows.npy", 2, LENGTH, seed=1)
    full = [literal.decode(model, ids, None, "prefill-exact", prompt=LENGTH) for ids in windows]
    return folder, model, windows, full


def rows(folder, *arguments):
    document = evaluate(folder / "model", "--ids", folder / "windows.npy", "--seqlen", LENGTH, *arguments)
    return document["results"][1:]


def integer(bits):
    levels = np.tile(oracle.integer_levels(bits), (2, 1))
    return lambda layer, kind, x: oracle.token(x, levels, 0)


def expect(tiny, coder, mode, **keywords):
    _, model, windows, full = tiny
    theirs = [literal.decode(model, ids, coder, mode, **keywords) for ids in windows]
    return [oracle.compare(f[0], t[0], ids) for f, t, ids in zip(full, theirs, windows)], theirs


@pytest.mark.parametrize("mode, exact", (("pseudo-decode", (3, 5)), ("prefill-exact", (3, 5)), ("prefill-exact", (0, 0))))
def test_modes_are_the_literal_decode(tiny, mode, exact):
    sink, tail = exact
    row, = rows(tiny[0], "--scheme", "int2", "--mode", mode, "--block", 16, "--prompt", 30, "--sink", sink, "--tail", tail)
    expected, _ = expect(tiny, integer(2), mode, block=16, prompt=30, sink=sink, residual=tail)
    assert row["mode"] == mode and (row["sink"], row["tail"]) == exact
    assert row.get("block") == (16 if mode == "pseudo-decode" else None)
    assert_row(row, expected)


@pytest.mark.parametrize("mode", ("pseudo-decode", "prefill-exact"))
def test_blocks_of_tokens(tiny, mode):
    """KIVI's layout: keys in blocks of 8 tokens, quantised 16 at a time, values token by token with a tail of 12."""
    def ends(x, axis):
        low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
        scale, low = oracle.half((high - low) / 3), oracle.half(low)
        return np.clip(np.rint((x - low) / scale), 0, 3) * scale + low

    def coder(layer, kind, x):
        if kind == "key":
            return ends(x.reshape(-1, 8, *x.shape[1:]), 1).reshape(x.shape)
        return ends(x.reshape(*x.shape[:2], -1, 8), 3).reshape(x.shape)

    row, = rows(tiny[0], "--scheme", "k=int2@postrope/channel:8,v=int2@token:8,sink=3,residual=12", "--mode", mode, "--block", 20,
                "--prompt", 30)
    expected, _ = expect(tiny, coder, mode, block=20, prompt=30, sink=3, residual=12, key_unit=16)
    assert_row(row, expected)


def test_a_block_of_the_whole_window_is_full_precision(tiny):
    row, = rows(tiny[0], "--scheme", "int2", "--mode", "pseudo-decode", "--block", LENGTH)
    assert abs(row["kl"]) < 1e-6 and row["top1_agreement"] == 1


def test_modes_of_an_artifact(tiny):
    """Keys before RoPE per channel with outliers; two modes at once, whose rows follow each other."""
    import h5py
    folder = tiny[0]
    random_ids(folder / "calibration.npy", 4, 128)
    run("collect", folder / "model", "-o", folder / "t.acts", "--ids", folder / "calibration.npy", "--samples", 4, "--seqlen", 128)
    path = folder / "t.kvcb"
    run("fit", folder / "t.acts", "-o", path, "--scheme", "kvcc-nuq2-1%-sink1")
    with h5py.File(path) as file:
        key, value = ({name: item[()] for name, item in file[kind].items() if isinstance(item, h5py.Dataset)}
                      for kind in ("key", "value"))

    def coder(layer, kind, x):
        if kind == "key":
            return oracle.channel(x, key["codebook"][layer][:, :4], key["scale"][layer], key["zero"][layer],
                                  key["threshold_lower"][layer], key["threshold_upper"][layer])
        return oracle.token(x, value["codebook"][layer][:, :4], oracle.tail_of(0.01, 64))

    found = rows(folder, "--codebook", path, "--mode", "pseudo-decode,prefill-exact", "--block", 16, "--prompt", 30)
    assert [row["mode"] for row in found] == ["pseudo-decode", "prefill-exact"]
    for row in found:
        expected, _ = expect(tiny, coder, row["mode"], block=16, prompt=30, sink=1, prerope=True)
        assert_row(row, expected)
        assert row["scheme"] == "kvcc-nuq2-1%-sink1" and row["needs_calibration"]


def kl_of(full, theirs):
    return [(np.exp(f[0][:-1]) * (f[0][:-1] - t[0][:-1])).sum(1) for f, t in zip(full, theirs)]


def test_quantiles_and_bins_of_kl(tiny):
    row, = rows(tiny[0], "--scheme", "int3", "--mode", "pseudo-decode", "--block", 16)
    _, theirs = expect(tiny, integer(3), "pseudo-decode", block=16)
    kl = kl_of(tiny[3], theirs)
    for name, p in (("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
        own = [np.quantile(k, p) for k in kl]
        assert row[f"kl_{name}"] == pytest.approx(np.quantile(np.concatenate(kl), p), rel=2e-2, abs=1e-6)
        assert row[f"kl_{name}_se"] == pytest.approx(abs(own[0] - own[1]) / 2, rel=5e-2, abs=1e-5)
    begin = row["positions"]["begin"]
    assert begin[0] == 1 and begin[-1] == LENGTH and len(begin) == 17
    for b in range(16):
        part = slice(begin[b] - 1, begin[b + 1] - 1)
        assert row["positions"]["kl"][b] == pytest.approx(np.mean([k[part].mean() for k in kl]), rel=2e-2, abs=1e-6)
    assert row["positions"]["kl"][0] == pytest.approx(0, abs=1e-6)  # the first block sees itself exactly


def test_error_of_keys(tiny):
    """E_M and E_D of the worst tokens, of full precision's keys in the first layer, whose keys are the scheme's own."""
    _, model, windows, _ = tiny
    row, = rows(tiny[0], "--scheme", "int2")
    keys = []
    for ids in windows:
        oracle.simulate(model, ids, after=lambda l, kind, x: keys.append(x) or x if l == 0 else x)
    for k, percent in enumerate(row["key_error"]["worst_percent"]):
        magnitude = total = 0
        for x in keys:
            coded = integer(2)(0, "key", x).astype(float)
            error = ((x - coded) ** 2).sum(-1)
            length = (np.linalg.norm(x.astype(float), axis=-1) - np.linalg.norm(coded, axis=-1)) ** 2
            for h in range(x.shape[1]):
                worst = np.argsort(-error[:, h])[:math.ceil(percent / 100 * LENGTH)]
                magnitude, total = magnitude + length[worst, h].sum(), total + error[worst, h].sum()
        assert row["key_error"]["magnitude_share_by_layer"][0][k] == pytest.approx(magnitude / total, rel=1e-3)
    layers = np.array(row["key_error"]["magnitude_share_by_layer"])
    assert row["key_error"]["magnitude_share"] == pytest.approx(layers.mean(0).tolist())
    assert (layers > 0).all() and (layers < 1).all()


@pytest.mark.parametrize("mode", ("full", "pseudo-decode"))
def test_error_of_attention(tiny, mode):
    """Weights' KL from full precision's own keys; outputs' error in that cache and in the scheme's own pass."""
    folder, model, windows, full = tiny
    row, = rows(folder, "--scheme", "int2", "--mode", mode, "--block", 16, "--attention", 10)
    found = row["attention"]
    assert found["queries"] == [8 * (i + 1) - 1 for i in range(10)]
    heads, dim, group = 4, 32, 2
    kl, still, power, error = (np.zeros((3, heads)) for _ in range(4))
    still_by_query = np.zeros(10)
    for ids in windows:
        seen = {}

        def keep(l, kind, x):
            seen[l, kind] = x
            return x
        queries = {}
        handles = [layer.self_attn.q_proj.register_forward_hook(
            lambda m, a, o, l=l: queries.__setitem__(l, o[0].numpy().reshape(LENGTH, heads, dim)))
            for l, layer in enumerate(model.model.layers)]
        oracle.simulate(model, ids, before=lambda l, kind, x: keep(l, kind, x) if kind == "value" else x, after=keep)
        for handle in handles:
            handle.remove()
        import torch
        from transformers.models.llama import modeling_llama
        for l in range(3):
            q = torch.from_numpy(queries[l]).transpose(0, 1)[None]
            cos, sin = model.model.rotary_emb(q, torch.arange(LENGTH)[None])
            q = modeling_llama.apply_rotary_pos_emb(q, q, cos, sin)[0][0].numpy().astype(float)
            k, v = seen[l, "key"].astype(float), seen[l, "value"].astype(float)
            kq, vq = (integer(2)(l, kind, seen[l, kind]).astype(float) for kind in ("key", "value"))
            for i, t in enumerate(found["queries"]):
                coded = np.arange(t + 1) < (t // 16 * 16 if mode == "pseudo-decode" else LENGTH)
                for h in range(heads):
                    def attend(keys, values):
                        scores = keys[:t + 1, h // group] @ q[h, t] / math.sqrt(dim)
                        p = np.exp(scores - scores.max())
                        p /= p.sum()
                        return p, p @ values[:t + 1, h // group]
                    mixed = [np.where(coded[:, None, None], b[:t + 1], a[:t + 1]) for a, b in ((k, kq), (v, vq))]
                    p, o = attend(k, v)
                    p2, o2 = attend(*mixed)
                    kl[l, h] += (p * np.log(p / p2)).sum()
                    still[l, h] += np.abs(o - o2).mean()
                    power[l, h] += (o ** 2).mean()
                    error[l, h] += ((o - o2) ** 2).mean()
                    still_by_query[i] += np.abs(o - o2).mean() / (3 * heads * 2)
    assert np.allclose(found["kl_by_layer"], kl / 20, rtol=1e-3)
    assert np.allclose(found["static_by_layer"], still / 20, rtol=1e-3)
    assert np.allclose(found["relative_by_layer"], np.sqrt(error / power), rtol=1e-3)
    assert np.allclose(found["static"], still_by_query, rtol=1e-3)
    if mode == "pseudo-decode":
        _, theirs = expect(tiny, integer(2), mode, block=16)
        at = found["queries"]
        differences = [np.abs(np.stack(t[1]) - np.stack(f[1]))[:, at].reshape(3, 10, heads, dim) for f, t in zip(full, theirs)]
        assert np.allclose(found["accumulated_by_layer"], np.mean([d.mean((1, 3)) for d in differences], 0), rtol=1e-2)
        assert np.allclose(found["accumulated"], np.mean([d.mean((0, 2, 3)) for d in differences], 0), rtol=2e-2, atol=1e-6)


def test_repair(tiny):
    """The worst tokens of each layer are put back as they were, or all the others are."""
    _, model, windows, full = tiny
    row, = rows(tiny[0], "--scheme", "int2", "--repair", 10, "--repair", 100)
    assert [r["percent"] for r in row["repair"]] == [10, 100]
    for worst in (True, False):
        def coder(layer, kind, x):
            coded = integer(2)(layer, kind, x)
            order = np.argsort(-((x - coded) ** 2).sum((1, 2)), kind="stable")
            chosen = order[:8] if worst else order[8:]
            coded[chosen] = x[chosen]
            return coded
        theirs = [(oracle.simulate(model, ids, before=lambda l, kind, x: coder(l, kind, x) if kind == "value" else x, after=coder),)
                  for ids in windows]
        expected = np.mean([k.mean() for k in kl_of(full, theirs)])
        assert row["repair"][0]["kl_worst_exact" if worst else "kl_rest_exact"] == pytest.approx(expected, rel=1e-2)
    assert abs(row["repair"][1]["kl_worst_exact"]) < 1e-6  # all of them: full precision
    assert row["repair"][1]["kl_rest_exact"] == pytest.approx(row["kl"], rel=1e-6)


def test_sinks_and_tail_for_all(tiny):
    """Given to all schemes, artifacts included, and counted in the bits; the document says so."""
    folder = tiny[0]
    common = [folder / "model", "--ids", folder / "windows.npy", "--seqlen", LENGTH, "--scheme", "int2", "--scheme", "int3"]
    plain, given = evaluate(*common), evaluate(*common, "--sink", 4, "--tail", 8)
    assert plain["exact_tokens"] != given["exact_tokens"]
    for a, b in zip(plain["results"][1:], given["results"][1:]):
        assert (b["sink"], b["tail"]) == (4, 8) and (a["sink"], a["tail"]) == (0, 0) and a["scheme"] == b["scheme"]
        assert b["kl"] < a["kl"]
        for context in ("2048", "32768", "131072"):
            share = 12 / int(context)
            assert b["effective_bits_at"][context] == pytest.approx(
                share * 16 + (1 - share) * a["effective_bits_at"][context], rel=1e-6)


def test_usage(tiny):
    folder = tiny[0]
    common = [folder / "model", "--ids", folder / "windows.npy", "--seqlen", LENGTH, "--scheme", "int4"]
    assert "no token follows it" in run("eval", *common, "--mode", "prefill-exact", "--prompt", LENGTH, code=2).stderr
    assert "pseudo-decode" in run("eval", *common, "--mode", "pseudo", code=2).stderr
    done = run("eval", *common, "--scheme", "int4", "--scheme", "fp", "--json")
    assert done.stderr.count("it is run once") == 1 and "--scheme int4" in done.stderr


def test_all_schemes_by_name(tiny):
    """Every preset that needs no artifact, in both modes; the table has a line a scheme."""
    done = run("eval", tiny[0] / "model", "--ids", tiny[0] / "windows.npy", "--seqlen", 20, "--windows", 1, "--schemes-all",
               "--block", 8, "--tail", 0)
    header, _, *lines = done.stdout.splitlines()
    assert "ppl full" in header and "ppl pseudo-decode" in header and "E_M 1%" in header
    names = [line.split()[0] for line in lines]
    assert names[0] == "fp" and len(set(names)) == len(names) >= 35
    assert {"int2", "int8", "nf3", "kivi-2", "kivi-4", "kvarn-2", "quarot-3", "turboquant-2.5", "qjl", "kitty", "fp8"} <= set(names)
    assert all(line.split()[1] == "no" for line in lines)
