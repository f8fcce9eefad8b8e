"""kvcc refine: its gradients against PyTorch's own, straight through codes that are written down here; its promises."""
import os
import shutil
import subprocess

import h5py
import numpy as np
import pytest
import torch

from support import BUILD, KVCC, kvcc, kvcc_json, random_ids, tiny_llama

SCHEMES = ["kvcc-1", "kvcc-2-head", "kvcc-2-channels-sink4", "kvcc-1-predict"]
WINDOW = 384


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refine")
    model = tiny_llama(folder / "model", initializer_range=0.12)
    random_ids(folder / "calibration.npy", 8, 96)
    random_ids(folder / "text.npy", 3, WINDOW, seed=1)
    kvcc("collect", folder / "model", "-o", folder / "t.acts", "--ids", folder / "calibration.npy", "--samples", 8, "--seqlen", 96)
    arguments = [part for scheme in SCHEMES for part in ("--scheme", scheme)]
    kvcc("fit", folder / "t.acts", "-o", folder / "t", *arguments)
    return folder, model


def refine(folder, scheme, out, *options, code=0, **keywords):
    return kvcc_json("refine", folder / f"t.{scheme}.kvcb", folder / "model", "-o", out, "--ids", folder / "text.npy",
                     "--seqlen", WINDOW, *options, code=code, **keywords)


class Through:
    """Straight through the codes of one layer's tensor: its vectors and A are parameters, and x gets the output's gradient."""

    def __init__(self, file, kind, layer, sink):
        turn = {name: torch.from_numpy(file[f"rotation/{kind}/{name}"][layer].astype(np.float64)) for name in ("forward", "inverse", "mean")}
        self.turn, self.units, self.sink = turn, len(turn["mean"]), sink
        self.told = None  # of values that are predicted: from the decoded keys, of which it passes no gradient on
        width, bits = file[f"{kind}/group_width"][()], file[f"{kind}/group_bits"][()]
        sizes = [sum(int(w) << int(b) for w, b in zip(width[l].ravel(), bits[l].ravel()) if w) for l in range(len(width))]
        begin = sum(sizes[:layer])
        self.vectors = torch.from_numpy(file[f"{kind}/vectors"][begin:begin + sizes[layer]].astype(np.float64)).requires_grad_()
        n = turn["mean"].shape[1]
        self.added = torch.zeros(self.units, n, n, dtype=torch.float64, requires_grad=True)
        self.groups, at = [], 0
        for unit in range(self.units):
            for first in np.nonzero(width[layer, unit])[0]:
                w, b = int(width[layer, unit, first]), int(bits[layer, unit, first])
                self.groups.append((unit, int(first), w, at, 1 << b))
                at += w << b

    def __call__(self, x):
        flat = x[0].double()
        told = 0 if self.told is None else self.told()
        outs = []
        for unit, part in enumerate((flat - told).detach().chunk(self.units, 1)):
            z = (part - self.turn["mean"][unit]) @ self.turn["forward"][unit].T
            pieces = []
            for of, first, w, at, entries in self.groups:
                if of != unit:
                    continue
                vectors = self.vectors[at:at + w * entries].view(entries, w)
                distance = ((z[:, None, first:first + w] - vectors.detach()[None]) ** 2).sum(-1)
                pieces.append(vectors[distance.argmin(1)])
            coded = torch.cat(pieces, 1) @ (torch.eye(z.shape[1], dtype=torch.float64) + self.added[unit]).T
            outs.append(coded @ self.turn["inverse"][unit].T + self.turn["mean"][unit])
        out = (torch.cat(outs, 1) + told).float()
        self.coded = out.detach()
        exact = flat.detach().half().float()
        keep = (torch.arange(len(flat)) < self.sink)[:, None]
        out = torch.where(keep, exact, out)
        return out[None] + (x - x.detach())


def expected_gradients(model, path, ids):
    with h5py.File(path) as file:
        sink = int(file.attrs["scheme"].decode().split("sink=")[1].split(",")[0])
        layers = [[Through(file, kind, layer, sink) for kind in ("key", "value")] for layer in range(len(model.model.layers))]
        if "rotation/value/from_key" in file:
            for (keys, values), map_ in zip(layers, torch.from_numpy(file["rotation/value/from_key"][()].astype(np.float64))):
                values.told = lambda keys=keys, map_=map_: keys.coded.double() @ map_[0].T
    batch = torch.as_tensor(ids, dtype=torch.long)[None]
    with torch.no_grad():
        wanted = torch.log_softmax(model(batch, use_cache=False).logits[0, :-1].double(), -1)
    handles = []
    for block, tensors in zip(model.model.layers, layers):
        for module, through in zip((block.self_attn.k_proj, block.self_attn.v_proj), tensors):
            handles.append(module.register_forward_hook(lambda m, a, output, through=through: through(output)))
    found = torch.log_softmax(model(batch, use_cache=False).logits[0, :-1].double(), -1)
    for handle in handles:
        handle.remove()
    kl = (wanted.exp() * (wanted - found)).sum(-1)
    kl.sum().backward()
    return kl.mean().item(), [(through.vectors.grad.numpy(), through.added.grad.numpy()) for pair in layers for through in pair]


def probe(folder, path, ids, recompute):
    ids.tofile(folder / "window.bin")
    done = subprocess.run([BUILD / "tests/bin/refine_probe", folder / "model", path, folder / "window.bin", folder / "out.bin", recompute],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout), np.fromfile(folder / "out.bin")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gradients_are_those_of_the_straight_through_divergence(tiny, scheme):
    folder, model = tiny
    path = folder / f"t.{scheme}.kvcb"
    ids = np.load(folder / "text.npy")[0, :64]
    kl, gradients = expected_gradients(model, path, ids)
    found, numbers = probe(folder, path, ids, "0")
    assert found == pytest.approx(kl, rel=2e-3) and kl > 1e-4
    at = 0
    for vectors, added in gradients:
        for wanted in (vectors, added.ravel()):
            own = numbers[at:at + wanted.size]
            at += wanted.size
            # A code that rounding decides otherwise moves one token's share from one vector to another.
            assert np.linalg.norm(own - wanted) < 0.03 * np.linalg.norm(wanted) and np.linalg.norm(wanted) > 0
    assert at == numbers.size
    again, recomputed = probe(folder, path, ids, "1")
    assert again == found and np.allclose(recomputed, numbers, rtol=1e-4, atol=1e-7 * np.abs(numbers).max())


def test_it_is_better_on_text_that_no_step_saw_and_says_what_eval_says(tiny, tmp_path):
    folder, _ = tiny
    before, after = folder / "t.kvcc-1.kvcb", tmp_path / "r.kvcb"
    report = refine(folder, "kvcc-1", after, "--steps", 24, "--held-out", 1)
    assert report["improved"] and report["kl_after"] < 0.95 * report["kl_before"] and report["windows"] == 2
    looks = report["looks"]
    assert [look["step"] for look in looks][:2] == [0, 4] and looks[0]["kl_tuned"] is None
    assert min(look["kl_held_out"] for look in looks) == report["kl_after"]
    with h5py.File(after) as file, h5py.File(before) as old:
        note = dict(file["refinement"].attrs)
        assert note["artifact_sha256"] == old.attrs["content_sha256"] and note["kl_after"] == report["kl_after"]
        assert (note["steps"], note["windows"], note["held_out"], note["rate"]) == (report["steps"], 2, 1, 0.03)
        assert np.array_equal(file["rotation/key/forward"], old["rotation/key/forward"])
        assert not np.array_equal(file["rotation/key/inverse"], old["rotation/key/inverse"])
        assert not np.array_equal(file["key/vectors"], old["key/vectors"])
        assert "predicted_held_out" not in file["key/stats"], "it was of the codebooks before"
    kvcc("validate", after)
    shown = kvcc_json("inspect", after)["refinement"]
    assert shown["kl_after"] == note["kl_after"] and shown["windows"] == 2 and shown["dataset_name"] == note["dataset_name"].decode() and len(shown) == len(note)
    assert f"refined     from {shown['artifact_sha256'][:12]} by {shown['steps']} steps" in kvcc("inspect", after)[0]
    assert "refinement" not in kvcc_json("inspect", before) and "refined" not in kvcc("inspect", before)[0]
    kl = []  # of each window, one of which is the one that was held out
    for ids in np.load(folder / "text.npy"):
        np.save(tmp_path / "w.npy", ids[None])
        rows = kvcc_json("eval", folder / "model", "--ids", tmp_path / "w.npy", "--seqlen", WINDOW, "--codebook", before, "--codebook", after)
        kl.append([row["kl"] for row in rows["results"][1:]])
    assert any(np.allclose(pair, (report["kl_before"], report["kl_after"]), rtol=1e-4) for pair in kl)


def test_equal_runs_give_equal_files_and_transforms_can_stay(tiny, tmp_path):
    folder, _ = tiny
    options = ("--steps", 6, "--held-out", 1, "--threads", 1, "--rate", 0.003)
    for name in ("a", "b"):
        refine(folder, "kvcc-2-head", tmp_path / f"{name}.kvcb", *options)
    assert (tmp_path / "a.kvcb").read_bytes() == (tmp_path / "b.kvcb").read_bytes()
    refine(folder, "kvcc-2-head", tmp_path / "c.kvcb", *options, "--fixed-transforms")
    with h5py.File(tmp_path / "c.kvcb") as file, h5py.File(folder / "t.kvcc-2-head.kvcb") as before:
        assert np.array_equal(file["rotation/key/inverse"], before["rotation/key/inverse"])
        assert not np.array_equal(file["key/vectors"], before["key/vectors"])


def test_steps_are_shorter_above_one_bit_and_a_half(tiny, tmp_path):
    folder, _ = tiny
    assert refine(folder, "kvcc-2-head", tmp_path / "a.kvcb", "--steps", 8, "--held-out", 1)["improved"]
    with h5py.File(tmp_path / "a.kvcb") as file:
        assert file["refinement"].attrs["rate"] == 0.01


def test_what_makes_it_worse_is_not_kept(tiny, tmp_path):
    folder, _ = tiny
    out = tmp_path / "r.kvcb"
    report = refine(folder, "kvcc-2-head", out, "--steps", 1, "--held-out", 1, "--rate", 1)
    assert not report["improved"] and report["steps"] == 0 and report["kl_after"] == report["kl_before"]
    assert out.read_bytes() == (folder / "t.kvcc-2-head.kvcb").read_bytes()
    text, _ = kvcc("refine", folder / "t.kvcc-2-head.kvcb", folder / "model", "-o", out, "--force", "--ids", folder / "text.npy",
                   "--seqlen", WINDOW, "--steps", 1, "--held-out", 1, "--rate", 1)
    assert "as it was" in text and "kept" in text.splitlines()[2]


def test_weights_that_change_under_the_run_tune_nothing(tiny, tmp_path):
    folder, _ = tiny
    shutil.copytree(folder / "model", tmp_path / "model")
    command = [KVCC, "refine", folder / "t.kvcc-1.kvcb", tmp_path / "model", "-o", tmp_path / "r.kvcb", "--ids", folder / "text.npy",
               "--seqlen", WINDOW, "--steps", 4, "--held-out", 1]
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "steps at most" in line:
            break
    with open(tmp_path / "model/model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    told = process.stderr.read()
    assert process.wait() == 3 and "model.safetensors" in told and "changed" in told, told
    assert not (tmp_path / "r.kvcb").exists()


def test_plan_and_refusals(tiny, tmp_path):
    folder, _ = tiny
    out = tmp_path / "r.kvcb"
    plan = refine(folder, "kvcc-1", out, "--dry-run", "--held-out", 1, "--steps", 5)
    assert (plan["windows"], plan["held_out"], plan["steps"]) == (2, 1, 5) and plan["peak_memory_bytes"] > 0 and not out.exists()
    assert "held out" in refine(folder, "kvcc-1", out, "--held-out", 3, code=3)["error"]["message"]
    kvcc("fit", folder / "t.acts", "-o", tmp_path / "s.kvcb", "--scheme", "kvcc-nuq3-1%-sink1")
    told = kvcc_json("refine", tmp_path / "s.kvcb", folder / "model", "-o", out, "--ids", folder / "text.npy", code=2)
    assert "levels" in told["error"]["message"]
    assert "artifact itself" in refine(folder, "kvcc-1", folder / "t.kvcc-1.kvcb", "--force", code=2)["error"]["message"]
    out.write_text("mine")
    assert "exists" in refine(folder, "kvcc-1", out, code=3)["error"]["message"] and out.read_text() == "mine"
    assert "not in range" in refine(folder, "kvcc-1", tmp_path / "x.kvcb", "--rate", "nan", code=2)["error"]["message"]
    weights = tmp_path / "w.kvcw"  # HDF5 too
    with h5py.File(weights, "w") as file:
        file.attrs["format"] = "kvcc-weights"
    before = weights.read_bytes()
    assert "no earlier result" in refine(folder, "kvcc-1", weights, "--force", code=3)["error"]["message"]
    assert weights.read_bytes() == before
    tiny_llama(tmp_path / "other", num_hidden_layers=2)
    told = kvcc_json("refine", folder / "t.kvcc-1.kvcb", tmp_path / "other", "-o", tmp_path / "x.kvcb", "--ids", folder / "text.npy", code=3)
    assert "layers" in told["error"]["message"]
    told = refine(folder, "kvcc-1", tmp_path / "x.kvcb", "--held-out", 1, "--max-memory", "1MiB", code=4)
    assert "memory" in told["error"]["message"].lower() and not (tmp_path / "x.kvcb").exists()
