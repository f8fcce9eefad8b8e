"""kvcc fit-weights against torch autograd, and what runs on its weights against transformers with them put in."""
import json
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch

from support import BUILD, SOURCE, random_ids, tiny_llama

for folder in ("calib/eval", "calib/model", "calib/fit"):
    sys.path.insert(0, str(SOURCE / "tests" / folder))
import oracle  # noqa: E402
from test_weight_fit import exact_set, objective  # noqa: E402

PROGRAMS = BUILD / "libexec/kvcc"
SAMPLES = ["--samples", 3, "--seqlen", 64]


def run(verb, *arguments, code=0):
    done = subprocess.run([str(PROGRAMS / f"kvcc-{verb}"), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def read(path):
    """{tensor: (decoded weights, flags of the exact ones, the four sums)}, by h5py as the page says."""
    found = {}
    with h5py.File(path) as f:
        bits = int(f.attrs["bits"])
        for layer in f["layers"].values():
            names = layer.attrs["matrices"]
            names = (names.decode() if isinstance(names, bytes) else names).split("\n")
            data = {name: layer[name][()] for name in layer}
            row = word = 0
            for i, name in enumerate(names):
                rows, columns = map(int, data["shape"][i])
                words = -(-columns * bits // 32)
                packed = data["codes"][word:word + rows * words].reshape(rows, words).view(np.uint8)
                codes = np.unpackbits(packed, axis=1, bitorder="little")[:, :columns * bits].reshape(rows, columns, bits)
                codes = (codes.astype(np.int64) << np.arange(bits)).sum(2)
                levels = data["levels"][row:row + rows].view(np.float16).astype(np.float32)
                w, flags = np.take_along_axis(levels, codes, axis=1), np.zeros((rows, columns), bool)
                if "value" in data:
                    ends = np.concatenate([[0], data["row_end"]])[row:row + rows + 1]
                    for r in range(rows):
                        at = slice(ends[r], ends[r + 1])
                        w[r, data["column"][at]], flags[r, data["column"][at]] = data["value"][at], True
                found[name] = w, flags, data["error"][i]
                row, word = row + rows, word + rows * words
    return found


def fisher_of(model, ids):
    """Sum over samples of squared gradients of the summed cross-entropy, of every parameter."""
    sums = {name: np.zeros(tuple(p.shape)) for name, p in model.named_parameters()}
    for row in ids:
        model.zero_grad()
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        batch = torch.as_tensor(row, dtype=torch.long)
        logits = model(batch[None], use_cache=False).logits[0]
        torch.nn.functional.cross_entropy(logits[:-1], batch[1:], reduction="sum").backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                sums[name] += parameter.grad.double().numpy() ** 2
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
    return sums


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    model = tiny_llama(folder / "model", initializer_range=0.12, attention_bias=True)
    ids = random_ids(folder / "ids.npy", 3, 64)
    windows = random_ids(folder / "windows.npy", 2, 80, seed=1)
    run("fit-weights", folder / "model", "-o", folder / "w", "--bits", "4,3", "--sparse", "1%", "--ids", folder / "ids.npy",
        *SAMPLES, "--threads", 1)
    fitted = {4: folder / "w.w4-s1.kvcw", 3: folder / "w.w3-s1.kvcw"}
    return folder, model, ids, windows, fitted


def replaced(folder, path):
    """transformers' model with the file's weights."""
    from transformers import LlamaForCausalLM
    model = LlamaForCausalLM.from_pretrained(folder / "model").eval()
    state = model.state_dict()
    for name, (weights, _, _) in read(path).items():
        state[name].copy_(torch.from_numpy(weights))
    return model


def test_fisher_exact_weights_and_levels(tiny):
    ckwrap = pytest.importorskip("ckwrap")
    folder, model, ids, _, fitted = tiny
    fisher, parameters = fisher_of(model, ids), dict(model.named_parameters())
    for bits, path in fitted.items():
        found = read(path)
        projections = {n for n in parameters if n.endswith("_proj.weight")}
        assert set(found) == projections and len(projections) == 21
        for name, (decoded, flags, sums) in found.items():
            w, f = parameters[name].detach().numpy(), fisher[name]
            kept = exact_set(w, f, 0.01, 0.01 / 9)
            assert np.array_equal(flags, kept), name
            assert np.array_equal(decoded[kept], w[kept])
            error = w.astype(float) - decoded
            np.testing.assert_allclose(sums, [f.sum(), (f * error**2).sum(), (error**2).sum(), (w.astype(float)**2).sum()],
                                       rtol=1e-4, err_msg=name)
            assert all(len(np.unique(row[~k])) <= 1 << bits for row, k in zip(decoded, kept))
        for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"):
            decoded, kept, _ = found[name]
            w, f = parameters[name].detach().numpy().astype(float), fisher[name]
            for row in range(0, len(w), 7):
                x, weight = w[row][~kept[row]], f[row][~kept[row]]
                labels = np.asarray(ckwrap.ckmeans(x, 1 << bits, weights=weight).labels)
                centres = [np.average(x[labels == j], weights=weight[labels == j]) for j in np.unique(labels)]
                best = objective(x, weight, np.array(centres))
                ours = objective(x, weight, np.unique(decoded[row][~kept[row]]))
                assert ours <= best * 1.002 + 1e-6 * (weight * x**2).sum(), (name, row)


def test_threads_and_memory_change_no_byte(tiny):
    folder, _, _, _, fitted = tiny
    common = [folder / "model", "--bits", 3, "--sparse", "1%", "--ids", folder / "ids.npy", *SAMPLES]
    run("fit-weights", *common, "-o", folder / "t.kvcw", "--threads", 3)
    assert (folder / "t.kvcw").read_bytes() == fitted[3].read_bytes()
    plan = json.loads(run("fit-weights", *common, "-o", folder / "m.kvcw", "--dry-run", "--json").stdout)
    assert plan["passes"] == 1 and plan["tokens"] == 192 and not (folder / "m.kvcw").exists()
    # A buffer of two layers: two passes, and the same sums.
    less = plan["peak_memory_bytes"] - 50000
    told = run("fit-weights", *common, "-o", folder / "m.kvcw", "--max-memory", less).stderr
    assert "2 passes" in told
    assert (folder / "m.kvcw").read_bytes() == fitted[3].read_bytes()
    told = run("fit-weights", *common, "-o", folder / "n.kvcw", "--max-memory", "100MiB", code=4).stderr
    assert "--max-memory" in told and "--seqlen" in told and not (folder / "n.kvcw").exists()


def test_alone_and_with_a_cache(tiny):
    """The reference stays full precision: KL of both together."""
    folder, model, _, windows, fitted = tiny
    run("collect", folder / "model", "-o", folder / "a.acts", "--ids", folder / "ids.npy", *SAMPLES)
    run("fit", folder / "a.acts", "--scheme", "kvcc-nuq3-1%", "-o", folder / "k.kvcb")
    document = json.loads(run("eval", folder / "model", "--weights", fitted[3], "--scheme", "int4", "--codebook", folder / "k.kvcb",
                              "--ids", folder / "windows.npy", "--seqlen", 80, "--json").stdout)
    plain = json.loads(run("eval", folder / "model", "--ids", folder / "windows.npy", "--seqlen", 80, "--json").stdout)
    fp, alone, coded, integer = document["results"]
    assert fp["nll"] == plain["results"][0]["nll"] and "weights" not in fp  # whose weights stay the model's
    assert [r["weights"] for r in (alone, coded, integer)] == ["w3-s1"] * 3
    assert alone["scheme"] == "fp" and coded["codebook"] == str(folder / "k.kvcb") and integer["scheme"] == "int4"
    assert document["weights"]["path"] == str(fitted[3]) and document["weights"]["exact_share"] == pytest.approx(0.01, rel=0.05)
    quantised = replaced(folder, fitted[3])
    with h5py.File(folder / "k.kvcb") as file:
        key, value = ({n: d[()] for n, d in file[kind].items() if isinstance(d, h5py.Dataset)} for kind in ("key", "value"))

    def by_codebook(layer, kind, x):
        if kind == "value":
            return oracle.token(x, value["codebook"][layer], oracle.tail_of(0.01, x.shape[1] * x.shape[2]))
        return oracle.channel(x, key["codebook"][layer], *(key[n][layer] for n in ("scale", "zero", "threshold_lower", "threshold_upper")))

    levels = np.tile(oracle.integer_levels(4), (2, 1))
    for row, before, after, tolerance in (
            (alone, None, None, 1e-4), (coded, by_codebook, None, 5e-3),
            (integer, lambda l, kind, x: oracle.token(x, levels, 0) if kind == "value" else x,
             lambda l, kind, x: oracle.token(x, levels, 0), 5e-3)):
        expected = []
        for ids in windows:
            full = oracle.simulate(model, ids)
            expected.append(oracle.compare(full, oracle.simulate(quantised, ids, before, after), ids))
        nll, kl, top1 = np.array(expected).T
        assert row["nll"] == pytest.approx(nll.mean(), rel=1e-4), row["scheme"]
        assert row["kl"] == pytest.approx(kl.mean(), rel=tolerance), row["scheme"]  # a value between two levels may fall on either side
        assert row["top1_agreement"] == pytest.approx(top1.mean(), abs=0.01)
        assert row["kl"] > 0.001
    table = run("eval", folder / "model", "--weights", fitted[3], "--ids", folder / "windows.npy", "--seqlen", 80, "--repair", "10",
                "--attention", 8, "--mode", "full,pseudo-decode").stdout
    assert "w3-s1 + fp" in table and "bits a quantised weight" in table


def test_a_cache_is_fitted_to_the_weights(tiny):
    """kvcc collect --weights: keys before RoPE are those of transformers with the weights in."""
    folder, _, ids, _, fitted = tiny
    common = [folder / "model", "-o", folder / "q.acts", "--ids", folder / "ids.npy", *SAMPLES]
    run("collect", *common, "--weights", fitted[3])
    quantised = replaced(folder, fitted[3])
    keys = []
    for layer in quantised.model.layers:
        layer.self_attn.k_proj.register_forward_hook(lambda module, arguments, output: keys.append(output[0]))
    with torch.no_grad():
        quantised(torch.as_tensor(ids[1], dtype=torch.long)[None])
    for layer, key in enumerate(keys):
        with h5py.File(folder / f"q.acts/s0001/l{layer:04}.h5") as shard:
            np.testing.assert_allclose(shard["key"][()].reshape(64, -1), key.numpy(), rtol=1e-4, atol=1e-5)
    with h5py.File(fitted[3]) as file:
        sha256 = file.attrs["content_sha256"]
    settings = json.loads((folder / "q.acts/manifest.json").read_text())["settings"]
    assert settings["decoder"]["quantised_weights"] == (sha256.decode() if isinstance(sha256, bytes) else sha256)
    run("fit", folder / "q.acts", "--scheme", "kvcc-nuq3-1%", "-o", folder / "q.kvcb")
    document = json.loads(run("inspect", folder / "q.kvcb", "--json").stdout)
    assert document["provenance"]["quantised_weights"] == settings["decoder"]["quantised_weights"]
    assert "of the quantised weights" in run("inspect", folder / "q.kvcb").stdout
    where = [folder / "model", "--codebook", folder / "q.kvcb", "--ids", folder / "windows.npy", "--seqlen", 80, "--windows", 1]
    for weights, warns in (([], True), (["--weights", fitted[4]], True), (["--weights", fitted[3]], False)):
        assert ("that it is not run on" in run("eval", *where, *weights).stderr) == warns
    for other in ([], ["--weights", fitted[4]]):  # not to be joined with activations of other weights
        told = run("collect", *common, *other, "--resume", code=3).stderr
        assert "decoder" in told


def test_inspect_and_validate(tiny):
    folder, _, _, _, fitted = tiny
    text = run("inspect", fitted[4]).stdout
    assert "w4-s1: 21 matrices" in text and "effective" in text and len(text.splitlines()) > 12
    document = json.loads(run("inspect", fitted[4], "--json").stdout)
    assert document["kind"] == "weights" and len(document["layers"]) == 3 and document["provenance"]["samples"] == 3
    found = read(fitted[4])
    for layer in document["layers"]:
        for matrix in layer["matrices"]:
            _, flags, sums = found[matrix["name"]]
            rows, columns = flags.shape
            assert matrix["shape"] == [rows, columns] and matrix["exact"] == flags.sum()
            bits = rows * -(-columns * 4 // 32) * 32 + 16 * 16 * rows + 48 * flags.sum() + 32 * rows
            assert matrix["effective_bits"]["total"] == pytest.approx(bits / flags.size)
            assert matrix["relative_error"] == pytest.approx(sums[2] / sums[3])
            assert matrix["fisher_error"] == sums[1]
    rows = run("inspect", fitted[4], "--layer", 1).stdout.splitlines()
    assert sum("model.layers.1." in row for row in rows) == 7
    run("inspect", fitted[4], "--layer", 3, code=2)
    run("inspect", fitted[4], "--head", 1, code=2)
    assert "sound (weights)" in run("validate", fitted[4]).stdout
    spoilt = folder / "spoilt.kvcw"
    shutil.copy(fitted[4], spoilt)
    with h5py.File(spoilt, "r+") as file:
        file["layers/0001/codes"][5] ^= 1
    assert "content_sha256" in run("validate", spoilt, code=3).stdout
    assert "content_sha256" in run("eval", folder / "model", "--weights", spoilt, "--ids", folder / "windows.npy", "--seqlen", 80,
                                   code=3).stderr


def test_refusals(tiny, tmp_path):
    folder, _, _, _, fitted = tiny
    common = [folder / "model", "--ids", folder / "ids.npy", *SAMPLES]
    assert "--force" in run("fit-weights", *common, "-o", fitted[3], code=3).stderr
    note = tmp_path / "note"
    note.write_text("kept\n")
    assert f"{note}: is there and no earlier result" in run("fit-weights", *common, "-o", note, "--force", code=3).stderr
    assert note.read_text() == "kept\n"
    artifact = tmp_path / "a.kvcb"  # HDF5 too
    with h5py.File(artifact, "w") as file:
        file.attrs["format"] = "kvcc-codebook"
    before = artifact.read_bytes()
    assert "no earlier result of kvcc fit-weights" in run("fit-weights", *common, "-o", artifact, "--force", code=3).stderr
    assert artifact.read_bytes() == before
    assert "--sensitive" in run("fit-weights", *common, "-o", tmp_path / "w", "--sparse", "1%", "--sensitive", "2%", code=2).stderr
    assert "--sparse" in run("fit-weights", *common, "-o", tmp_path / "w", "--sparse", "some", code=2).stderr
    run("fit-weights", *common, "-o", tmp_path / "w", "--bits", 9, code=2)
    np.save(tmp_path / "ids.npy", np.full((3, 64), 256, np.int32))  # of a model that has more tokens
    told = run("fit-weights", folder / "model", "--ids", tmp_path / "ids.npy", *SAMPLES, "-o", tmp_path / "w", "--dry-run", code=3).stderr
    assert "ids.npy: sample 0, token 0: id 256; wanted 0 to 255" in told
    tiny_llama(tmp_path / "other", initializer_range=0.12, attention_bias=True, seed=5)
    for verb, more in (("eval", ["--seqlen", 64]), ("collect", ["-o", tmp_path / "a.acts", *SAMPLES])):
        told = run(verb, tmp_path / "other", "--weights", fitted[3], "--ids", folder / "ids.npy", *more, code=3).stderr
        assert "made from the weights of model" in told and "fit-weights" in told
    model = tiny_llama(tmp_path / "broken")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    model.save_pretrained(tmp_path / "broken")
    told = run("fit-weights", tmp_path / "broken", "-o", tmp_path / "w", "--ids", folder / "ids.npy", *SAMPLES, code=1).stderr
    assert "model.layers.1.mlp.up_proj.weight row 3" in told and not (tmp_path / "w").exists()


@pytest.mark.parametrize("case", ("phi3", "mixtral", "deepseek_v3", "lfm2", "gemma2"))
def test_every_kind_of_layer(tmp_path, case):
    """Fused matrices, experts, latents, convolutions: the Fisher mass of each layer's projections is autograd's."""
    import tiny_models
    model = tiny_models.make(case, tmp_path / "model")
    ids = random_ids(tmp_path / "ids.npy", 2, 24, vocab=101)
    run("fit-weights", tmp_path / "model", "-o", tmp_path / "w.kvcw", "--ids", tmp_path / "ids.npy", "--samples", 2, "--seqlen", 24)
    wanted, count = {}, {}
    for name, fisher in fisher_of(model, ids).items():
        parts = name.split(".")
        projection = fisher.ndim == 2 or "experts" in name
        if "layers" not in parts or not projection or name.endswith(("mlp.gate.weight", "block_sparse_moe.gate.weight")):
            continue
        layer = int(parts[parts.index("layers") + 1])
        wanted[layer] = wanted.get(layer, 0) + fisher.sum()
        count[layer] = count.get(layer, 0) + fisher.size
    found, there = {}, {}
    for name, (decoded, _, sums) in read(tmp_path / "w.kvcw").items():
        layer = int(name.split(".")[2])
        found[layer] = found.get(layer, 0) + sums[0]
        there[layer] = there.get(layer, 0) + decoded.size
    assert there == count
    assert found == pytest.approx(wanted, rel=1e-3)
    document = json.loads(run("eval", tmp_path / "model", "--weights", tmp_path / "w.kvcw", "--ids", tmp_path / "ids.npy", "--seqlen", 24,
                              "--json").stdout)
    assert document["results"][1]["kl"] > 0
