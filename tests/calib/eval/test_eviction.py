"""kvcc eval --evict against a literal decode: exact attention and eviction in numpy, on transformers' own queries, keys
and values layer by layer."""
import math

import h5py
import numpy as np
import pytest
import torch

import oracle
from calib.eval.test_eval import CALM, evaluate, run
from support import random_ids, tiny_llama

LENGTH, PROMPT, BLOCK, HEADS, KV, DIM = 72, 40, 16, 4, 2, 32
GROUP = HEADS // KV


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evict")
    model = tiny_llama(folder / "model", **CALM)
    windows = random_ids(folder / "windows.npy", 2, LENGTH, seed=1)
    return folder, model, windows, [oracle.simulate(model, ids) for ids in windows]


def budget_of(kind, budget, window, layer, layers, tokens):
    """METHODS.md 8."""
    if tokens <= budget:
        return tokens
    room = budget - window
    if kind != "pyramidkv" or tokens < 2 * room:
        return budget
    least = room // 20
    most = 2 * room - least
    if most >= tokens - window:
        most = tokens - window
        least = 2 * room - most
    return min(tokens, most - layer * ((most - least) // (layers - 1)) + window)


def choose(kind, budget, window, layer, weights, kept):
    """weights: list over queries of [Hq, M] rows so far (M grows); kept [KV, M]. Which stay."""
    length = kept.shape[1]
    stays = budget_of(kind, budget, window, layer, 3, int(kept[0].sum()))
    if stays >= kept[0].sum():
        return kept
    last = budget - budget // 2 if kind == "h2o" else window
    rows = weights if kind == "h2o" else weights[-window:]
    scores = np.zeros((KV, length))
    for row in rows:
        scores[:, :row.shape[1]] += row.reshape(KV, GROUP, -1).sum(1)
    scores = scores[:, :length - last]
    if kind != "h2o":
        padded = np.pad(scores, ((0, 0), (2, 2)))
        scores = np.mean([padded[:, i:i + scores.shape[1]] for i in range(5)], 0)
    out = np.zeros_like(kept)
    for h in range(KV):
        allowed = np.where(kept[h, :length - last])[0]
        best = allowed[np.argsort(-scores[h, allowed], kind="stable")][:stays - last]
        out[h, best] = True
        out[h, length - last:] = True
    return out


def attend(q, keys, values, seen):
    """q [Hq, D]; keys, values [M, KV, D]; seen [KV, M]. Output [Hq * D], weights [Hq, M]."""
    outputs, weights = [], []
    for h in range(HEADS):
        g = h // GROUP
        scores = np.where(seen[g], keys[:, g] @ q[h] / math.sqrt(DIM), -np.inf)
        p = np.exp(scores - scores.max())
        p /= p.sum()
        weights.append(p)
        outputs.append(p @ values[:, g])
    return np.concatenate(outputs), np.array(weights)


class Evicting:
    """Attention of a layer in place of transformers': queries, keys after RoPE and values [T, heads, D], keys before it
    and its cosines and sines [T, D]. `prerope`: keys are coded before RoPE and turned at their own positions."""

    def __init__(self, kind, budget, mode, coder, prerope=False):
        self.kind, self.budget, self.mode, self.coder, self.prerope = kind, budget, mode, coder, prerope
        self.window = min(32, budget - 1)

    def __call__(self, layer, q, k, v, before, angles):
        q, k, v = (x.astype(float) for x in (q, k, v))
        self.before, self.angles = before, angles
        return self.prompt(layer, q, k, v) if self.mode == "prefill-exact" else self.blocks(layer, q, k, v)

    def code_key(self, layer, k, index):
        """Of rows index[h] of each head [KV, M]; k [T, KV, D] after RoPE."""
        chosen = lambda x: np.stack([x[index[h], h] for h in range(KV)], 1)
        if not self.prerope:
            return self.code(layer, "key", chosen(k))
        rows = self.code(layer, "key", chosen(self.before))
        cos, sin = (np.stack([part[index[h]] for h in range(KV)], 1) for part in self.angles)
        other = np.concatenate([-rows[..., DIM // 2:], rows[..., :DIM // 2]], -1)
        return rows * cos + other * sin

    def code(self, layer, kind, x):
        return (self.coder(layer, kind, x.astype(np.float32)) if self.coder else oracle.half(x.astype(np.float32))).astype(float)

    def choose(self, layer, weights, kept):
        return choose(self.kind, self.budget, self.window, layer, weights, kept)

    def prompt(self, layer, q, k, v):
        out, weights = [], []
        for t in range(PROMPT):
            o, w = attend(q[t], k[:t + 1], v[:t + 1], np.ones((KV, t + 1), bool))
            out.append(o)
            weights.append(w)
        kept = self.choose(layer, weights, np.ones((KV, PROMPT), bool))
        index = np.array([np.concatenate([np.where(kept[h])[0], np.arange(PROMPT, LENGTH)]) for h in range(KV)])
        rows = index.shape[1]
        compact = np.stack([v[index[h], h] for h in range(KV)], 1)
        coded = [self.code_key(layer, k, index), self.code(layer, "value", compact)]
        first = rows - (LENGTH - PROMPT)
        # The attention so far, in the compacted rows.
        moved = []
        for w in weights:
            wide = np.pad(w, ((0, 0), (0, PROMPT - w.shape[1])))
            moved.append(np.stack([wide[h, index[h // GROUP, :first]] for h in range(HEADS)]))
        kept = np.ones((KV, first), bool)
        for t in range(PROMPT, LENGTH):
            kept = np.concatenate([kept, np.ones((KV, 1), bool)], 1)
            row = first + t - PROMPT
            o, w = attend(q[t], coded[0][:row + 1], coded[1][:row + 1], kept)
            out.append(o)
            moved.append(w)
            if self.kind == "h2o":
                kept = self.choose(layer, moved, kept)
        return np.array(out)

    def blocks(self, layer, q, k, v):
        coded = [self.code_key(layer, k, np.tile(np.arange(LENGTH), (KV, 1))), self.code(layer, "value", v)]
        out, weights, kept = [], [], np.ones((KV, 0), bool)
        for begin in range(0, LENGTH, BLOCK):
            end = min(LENGTH, begin + BLOCK)
            kept = np.concatenate([kept, np.ones((KV, end - begin), bool)], 1)
            for t in range(begin, end):
                keys, values = (np.concatenate([c[:begin], x[begin:t + 1]]) for c, x in zip(coded, (k, v)))
                o, w = attend(q[t], keys, values, kept[:, :t + 1])
                out.append(o)
                weights.append(w)
            kept = self.choose(layer, weights, kept)
        return np.array(out)


def simulate(model, ids, evicting):
    """Log-probabilities with that attention."""
    from transformers.models.llama import modeling_llama
    handles, seen, now = [], {}, [0]
    plain = modeling_llama.apply_rotary_pos_emb

    def rotary(q, k, cos, sin, *arguments, **keywords):
        seen["before"], seen["angles"] = k[0].transpose(0, 1).numpy(), (cos[0].numpy(), sin[0].numpy())
        q, k = plain(q, k, cos, sin, *arguments, **keywords)
        seen["q"], seen["k"] = (x[0].transpose(0, 1).numpy() for x in (q, k))
        return q, k

    for l, layer in enumerate(model.model.layers):
        handles.append(layer.self_attn.v_proj.register_forward_hook(
            lambda m, a, o: seen.__setitem__("v", o[0].numpy().reshape(LENGTH, KV, DIM))))
        handles.append(layer.self_attn.o_proj.register_forward_pre_hook(
            lambda m, a, l=l: (torch.from_numpy(evicting(l, *(seen[x] for x in ("q", "k", "v", "before", "angles"))).astype(np.float32))[None],)))
    modeling_llama.apply_rotary_pos_emb = rotary
    return oracle.hooked_log_probabilities(model, ids, handles, plain)


@pytest.mark.parametrize("evict, mode", (("h2o:20", "prefill-exact"), ("h2o:20", "pseudo-decode"), ("snapkv:34", "prefill-exact"),
                                         ("pyramidkv:36", "prefill-exact"), ("pyramidkv:36", "pseudo-decode")))
def test_eviction_with_any_scheme(tiny, evict, mode):
    folder, model, windows, full = tiny
    kind, budget = evict.split(":")
    levels = np.tile(oracle.integer_levels(3), (2, 1))
    document = evaluate(folder / "model", "--ids", folder / "windows.npy", "--seqlen", LENGTH, "--scheme", "int3", "--mode", mode,
                        "--evict", evict, "--prompt", PROMPT, "--block", BLOCK)
    alone, row = document["results"][1:]
    assert (alone["scheme"], row["scheme"]) == ("fp", "int3") and row["eviction"] == evict and 0.3 < row["kept"] < 1
    for found, coder in ((alone, None), (row, lambda layer, kind, x: oracle.token(x, levels, 0))):
        theirs = [simulate(model, ids, Evicting(kind, int(budget), mode, coder)) for ids in windows]
        expected = [oracle.compare(f, t, ids) for f, t, ids in zip(full, theirs, windows)]
        assert found["kl"] == pytest.approx(np.mean([e[1] for e in expected]), rel=1e-2)
        assert found["window_nll"] == pytest.approx([e[0] for e in expected], rel=1e-3)
    assert alone["kl"] > 1e-4  # something was evicted that mattered


@pytest.mark.parametrize("evict, mode", (("h2o:20", "prefill-exact"), ("snapkv:34", "prefill-exact"), ("pyramidkv:36", "pseudo-decode")))
def test_artifacts_before_rope_keep_original_positions(tiny, evict, mode):
    """KVQuant's keys are stored before RoPE: each head's survivors are turned at positions of their own."""
    folder, model, windows, full = tiny
    path = folder / "t.kvcb"
    if not path.exists():
        random_ids(folder / "calibration.npy", 4, 128)
        run("collect", folder / "model", "-o", folder / "t.acts", "--ids", folder / "calibration.npy", "--samples", 4, "--seqlen", 128)
        run("fit", folder / "t.acts", "-o", path, "--scheme", "kvcc-nuq3-2%")
    with h5py.File(path) as file:
        parts = {kind: {name: item[()] for name, item in file[kind].items() if isinstance(item, h5py.Dataset)} for kind in ("key", "value")}

    def coder(layer, kind, x):
        part = {name: numbers[layer] for name, numbers in parts[kind].items()}
        levels = part["codebook"][:, :8]
        if kind == "value":
            return oracle.token(x, levels, oracle.tail_of(0.02, KV * DIM))
        return oracle.channel(x, levels, part["scale"], part["zero"], part["threshold_lower"], part["threshold_upper"])

    kind, budget = evict.split(":")
    row = evaluate(folder / "model", "--ids", folder / "windows.npy", "--seqlen", LENGTH, "--codebook", path, "--mode", mode, "--evict", evict,
                   "--prompt", PROMPT, "--block", BLOCK)["results"][2]
    assert row["codebook"] == str(path) and row["kept"] < 1
    theirs = [simulate(model, ids, Evicting(kind, int(budget), mode, coder, prerope=True)) for ids in windows]
    expected = [oracle.compare(f, t, ids) for f, t, ids in zip(full, theirs, windows)]
    assert row["kl"] == pytest.approx(np.mean([e[1] for e in expected]), rel=1e-2)
    assert row["window_nll"] == pytest.approx([e[0] for e in expected], rel=1e-3)


@pytest.mark.parametrize("mode", ("prefill-exact", "pseudo-decode"))
def test_every_preset_goes_with_eviction(tiny, mode):
    """Those that code blocks of tokens and those before RoPE among them."""
    folder, _, _, _ = tiny
    rows = evaluate(folder / "model", "--ids", folder / "windows.npy", "--seqlen", LENGTH, "--windows", 1, "--schemes-all", "--scheme", "kivi-2-r32",
                    "--scheme", "kvarn-2-g32-sink4", "--scheme", "atom-4-prerope", "--mode", mode, "--evict", "snapkv:34", "--prompt", PROMPT,
                    "--block", BLOCK)["results"][1:]
    assert rows[0]["scheme"] == "fp" and len(rows) > 35
    assert {row["kept"] for row in rows} == {rows[0]["kept"]}
    kl = {row["scheme"]: row["kl"] for row in rows}
    # On so small a model what is evicted weighs more than what is quantised: eight bits change nothing, two do.
    assert kl["int8"] == pytest.approx(kl["fp"], rel=0.02)
    for scheme in ("int2", "kivi-2-r32", "kvarn-2-g32-sink4", "atom-2", "quarot-2", "turboquant-2"):
        assert abs(kl[scheme] / kl["fp"] - 1) > 1e-4, scheme
    assert len(set(kl.values())) > 25


def test_room_for_all_is_no_eviction(tiny):
    folder, _, _, _ = tiny
    common = [folder / "model", "--ids", folder / "windows.npy", "--seqlen", LENGTH, "--scheme", "int3", "--mode", "prefill-exact"]
    plain, evicted = evaluate(*common), evaluate(*common, "--evict", "snapkv:72")
    assert evicted["results"][2]["kl"] == pytest.approx(plain["results"][1]["kl"], rel=1e-5)
    assert evicted["results"][2]["kept"] == 1


def test_usage(tiny):
    folder, _, _, _ = tiny
    common = [folder / "model", "--ids", folder / "windows.npy", "--seqlen", LENGTH, "--scheme", "int4"]
    assert "pseudo-decode" in run("eval", *common, "--evict", "h2o:20", code=2).stderr
    for text in ("lru:20", "h2o", "h2o:x", "snapkv:1"):
        assert text in run("eval", *common, "--evict", text, "--mode", "pseudo-decode", code=2).stderr
    run("eval", *common, "--evict", "h2o:20", "--mode", "pseudo-decode", "--repair", 5, code=2)
