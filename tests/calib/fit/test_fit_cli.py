"""kvcc fit on small made activations: files, JSON, reruns, resuming, refusals."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

BUILD = Path(os.environ["KVCC_BUILD"])
FIT = BUILD / "libexec" / "kvcc" / "kvcc-fit"
VALIDATE = BUILD / "libexec" / "kvcc" / "kvcc-validate"
WIDTHS = [f"kvcc-nuq{bits}-1%-sink1" for bits in (4, 3, 2)]
UNWEIGHTED = "k=nuq2@prerope/channel,v=nuq2@token,sparse=1%,weight=none"


def make(folder, samples=3, seqlen=64, layers=3, seed=1, *flags):
    subprocess.run([BUILD / "tests" / "bin" / "make_activations", folder, *map(str, (samples, seqlen, layers, seed)),
                    *flags], check=True)
    return folder


def fit(acts, output, schemes, *options, code=0):
    arguments = [x for scheme in schemes for x in ("--scheme", scheme)]
    done = subprocess.run([FIT, acts, "-o", output, *arguments, *map(str, options)], capture_output=True, text=True)
    assert done.returncode == code, f"exit {done.returncode}, wanted {code}\n{done.stdout}\n{done.stderr}"
    return done


def fit_json(*arguments, **kw):
    return json.loads(fit(*arguments, "--json", **kw).stdout)  # F53: nothing else on stdout


@pytest.fixture(scope="module")
def acts(tmp_path_factory):
    return make(tmp_path_factory.mktemp("fit") / "made.acts")


def shard(acts, sample, layer):
    """File of a shard, by the numbers the model gives its layers."""
    found = [p for p in (acts / f"s{sample:04d}").glob("l*.h5") if int(p.stem[1:]) == layer]
    assert len(found) == 1
    return found[0]


def tensor(acts, name, layers=3, samples=3):
    """[L, N, H, D] of a dataset of the shards."""
    read = lambda s, l: h5py.File(shard(acts, s, 2 * l))[name][()]
    return np.stack([np.concatenate([read(s, l) for s in range(samples)]) for l in range(layers)])


def test_artifact_holds_what_the_activations_say(acts, tmp_path):
    out = tmp_path / "one.kvcb"
    result = fit_json(acts, out, ["kvcc-nuq3-1%-sink1"])["results"][0]
    if VALIDATE.exists():
        subprocess.run([VALIDATE, out], check=True, capture_output=True)
    key, grad = tensor(acts, "key"), tensor(acts, "key_grad")
    with h5py.File(out) as f:
        assert f.attrs["content_sha256"] in (result["content_sha256"], result["content_sha256"].encode())
        assert f["key/codebook"].shape == (3, 2, 8) and f["value/codebook"].shape == (3, 2, 8)
        assert f["key/scale"].shape == (3, 2, 8) and "value/scale" not in f
        assert list(f["layer_index"][()]) == [0, 2, 4]  # F50: the model's own numbers
        rest = np.delete(key, [0, 64, 128], axis=1).astype(float)
        lower, upper = np.percentile(rest, [0.5, 99.5], axis=1)
        np.testing.assert_allclose(f["key/threshold_lower"][()], lower, rtol=1e-6)
        np.testing.assert_allclose(f["key/threshold_upper"][()], upper, rtol=1e-6)
        np.testing.assert_allclose(f["key/scale"][()], (upper - lower) / 2, rtol=1e-6)
        np.testing.assert_allclose(f["key/stats/mean"][()], key.mean(1), atol=1e-5)
        np.testing.assert_allclose(f["key/stats/fisher"][()], (grad.astype(float) ** 2).mean(1), rtol=1e-6)
        outside = ((rest < lower[:, None]) | (rest > upper[:, None])).mean((1, 3))
        np.testing.assert_allclose(f["key/outlier_fraction"][()], outside, atol=1e-6)
        levels = f["key/codebook"][()]
        assert np.all(np.diff(levels) >= 0) and np.all(np.abs(levels) <= 1)
        assert result["max_gap_bound"] < 1e-4
        assert result["key_outlier_fraction"] == pytest.approx(outside.mean(), abs=1e-6)
        # Full reconstruction of the keys, by the definition.
        scale, zero = f["key/scale"][()][:, None], f["key/zero"][()][:, None]
        y = (key - zero) / scale
        code = (y[..., None] > ((levels[..., 1:] + levels[..., :-1]) / 2)[:, None, :, None]).sum(-1)
        back = np.take_along_axis(levels[:, None, :, None, :], code[..., None], -1)[..., 0] * scale + zero
        outlier = (key < lower[:, None].astype(np.float32)) | (key > upper[:, None].astype(np.float32))
        back = np.where(outlier, key.astype(np.float16), back)
        error = (grad.astype(float) ** 2 * (key - back) ** 2)
        error[:, [0, 64, 128]] = 0  # sinks are exact
        np.testing.assert_allclose(f["key/stats/weighted_sse"][()], error.sum((1, 3)), rtol=1e-3)
        provenance = dict(f["provenance"].attrs)
        assert provenance["samples"] == 3 and provenance["seqlen"] == 64 and provenance["tokens"] == 192
        assert "date" not in provenance


def test_several_schemes_are_named_after_themselves(acts, tmp_path):
    document = fit_json(acts, tmp_path / "many.kvcb", [*WIDTHS, UNWEIGHTED])
    assert [r["scheme"] for r in document["results"][:3]] == WIDTHS
    names = {p.name for p in tmp_path.iterdir()}
    assert {f"many.{w}.kvcb" for w in WIDTHS} <= names and len(names) == 4
    assert all(Path(r["output"]).exists() and not r["skipped"] for r in document["results"])
    assert document["results"][0]["fit_seconds"] > 0


def test_F41_same_bytes_for_any_threads_and_any_company(acts, tmp_path):
    wanted = None
    for threads in (1, 2, 5):
        for turn in range(2):
            folder = tmp_path / f"{threads}-{turn}"
            folder.mkdir()
            fit(acts, folder / "x", WIDTHS, "--threads", threads)
            bytes_now = [(folder / f"x.{w}.kvcb").read_bytes() for w in WIDTHS]
            wanted = wanted or bytes_now
            assert bytes_now == wanted
    for w, expected in zip(WIDTHS, wanted):
        fit(acts, tmp_path / "alone.kvcb", [w], "--force")
        assert (tmp_path / "alone.kvcb").read_bytes() == expected


def test_resume_keeps_what_is_done(acts, tmp_path):
    out = tmp_path / "x"
    fit(acts, out, WIDTHS)
    first = {w: (tmp_path / f"x.{w}.kvcb").read_bytes() for w in WIDTHS}
    refused = fit(acts, out, WIDTHS, code=3)
    assert "--force" in refused.stderr and "--resume" in refused.stderr
    (tmp_path / f"x.{WIDTHS[1]}.kvcb").unlink()
    damaged = tmp_path / f"x.{WIDTHS[2]}.kvcb"
    damaged.write_bytes(first[WIDTHS[2]][:1000])
    kept = tmp_path / f"x.{WIDTHS[0]}.kvcb"
    stamp = kept.stat().st_mtime_ns
    results = fit_json(acts, out, WIDTHS, "--resume")["results"]
    assert [r["skipped"] for r in results] == [True, False, False]
    assert kept.stat().st_mtime_ns == stamp
    assert {w: (tmp_path / f"x.{w}.kvcb").read_bytes() for w in WIDTHS} == first
    assert all(r["content_sha256"] and r["max_gap_bound"] < 1e-4 for r in results)


def test_F47_resume_over_other_activations_is_refused(acts, tmp_path):
    other = make(tmp_path / "other.acts", 3, 64, 3, 2)
    out = tmp_path / "x.kvcb"
    fit(acts, out, WIDTHS[:1])
    before = out.read_bytes()
    refused = fit(other, out, WIDTHS[:1], "--resume", code=3)
    assert "activations_sha256 is" in refused.stderr and "--force" in refused.stderr
    refused = fit(acts, out, WIDTHS[1:2], "--resume", code=3)
    assert "scheme is" in refused.stderr
    assert out.read_bytes() == before
    fit(other, out, WIDTHS[:1], "--force")
    assert out.read_bytes() != before


def test_F47_resume_with_other_samples_held_out_is_refused(acts, tmp_path):
    out = tmp_path / "x.kvcb"
    fit(acts, out, ["kvcc-2"], "--held-out", 1)
    before = out.read_bytes()
    assert fit_json(acts, out, ["kvcc-2"], "--held-out", 1, "--resume")["results"][0]["skipped"]
    assert "held_out is 1, now 0" in fit(acts, out, ["kvcc-2"], "--resume", code=3).stderr  # none of three by default
    assert out.read_bytes() == before


def test_force_replaces_artifacts_alone(acts, tmp_path):
    """Other HDF5 files are no artifacts: quantised weights, someone's model."""
    for name, format in (("w.kvcw", "kvcc-weights"), ("model.h5", "")):
        with h5py.File(tmp_path / name, "w") as file:
            file.attrs["format"] = format
        before = (tmp_path / name).read_bytes()
        assert "no earlier result of kvcc fit" in fit(acts, tmp_path / name, ["kvcc-2"], "--force", code=3).stderr
        assert (tmp_path / name).read_bytes() == before


def test_activations_without_gradients(tmp_path):
    acts = make(tmp_path / "plain.acts", 2, 40, 2, 1, "no-fisher")
    refused = fit(acts, tmp_path / "x.kvcb", WIDTHS[:1], code=3)
    assert "--no-fisher" in refused.stderr and "weight=none" in refused.stderr
    # Levels that are given need no weights.
    fit(acts, tmp_path / "int.kvcb", ["int4-channel-prerope"])
    assert (tmp_path / "int.kvcb").exists()
    fit(acts, tmp_path / "x.kvcb", [UNWEIGHTED])
    assert (tmp_path / "x.kvcb").exists()


def test_F37_missing_shards_and_silent_heads_are_listed_at_once(tmp_path):
    acts = make(tmp_path / "a.acts", 2, 40, 3, 1, "silent-head")
    told = fit(acts, tmp_path / "x.kvcb", WIDTHS[:1]).stderr
    assert "layer 2 key head 1" in told and "layer 2 value head 1" in told and "2 of 12" in told
    shard(acts, 0, 2).unlink()
    shard(acts, 1, 4).unlink()
    refused = fit(acts, tmp_path / "y.kvcb", WIDTHS[:1], code=3)
    assert "0002.h5" in refused.stderr and "0004.h5" in refused.stderr
    assert not (tmp_path / "y.kvcb").exists()


def test_F37_tokens_that_reached_a_head_are_stored_and_told(tmp_path):
    acts = make(tmp_path / "a.acts", 2, 150, 3, 1, "thin-head")
    told = fit(acts, tmp_path / "x.kvcb", WIDTHS[:1]).stderr
    assert "layer 2 key head 1 (at 1 tokens)" in told and "layer 2 value head 1 (at 1 tokens)" in told and "2 of 12" in told
    with h5py.File(tmp_path / "x.kvcb") as f:
        for name in ("key", "value"):
            wanted = (tensor(acts, f"{name}_grad", samples=2) != 0).any(-1).sum(1)
            np.testing.assert_array_equal(f[f"{name}/stats/reached"][()], wanted)
            assert wanted[1, 1] == 1 and wanted.sum() == 1 + 5 * 300
    document = json.loads(subprocess.run([BUILD / "libexec/kvcc/kvcc-inspect", tmp_path / "x.kvcb", "--json"], capture_output=True,
                                         check=True).stdout)
    flags = {(layer["layer"], kind, head["head"]): head["flags"] for layer in document["layers"] for kind in ("key", "value")
             for head in layer[kind]}
    assert {place for place, found in flags.items() if "thin" in found} == {(2, "key", 1), (2, "value", 1)}
    plain = make(tmp_path / "plain.acts", 2, 150, 2, 1, "no-fisher")
    assert "gradients reached" not in fit(plain, tmp_path / "y.kvcb", [UNWEIGHTED]).stderr
    with h5py.File(tmp_path / "y.kvcb") as f:
        assert (f["key/stats/reached"][()] == 300).all()


def test_F36_non_finite_activations_are_named(tmp_path):
    acts = make(tmp_path / "nan.acts", 2, 40, 2, 1, "nan")
    for threads in (1, 3):
        refused = fit(acts, tmp_path / "x.kvcb", WIDTHS, "--threads", threads, code=3)
        assert "layer 2 key, head 1, sample 1, token 5, channel 3: NaN" in refused.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["nan.acts"]


def test_wrong_usage(acts, tmp_path):
    assert "nothing to fit" in fit(acts, tmp_path / "x", ["int4"], code=2).stderr
    assert "given twice" in fit(acts, tmp_path / "x", [WIDTHS[0], WIDTHS[0]], code=2).stderr
    assert "snik1" in fit(acts, tmp_path / "x", ["kvcc-nuq4-1%-snik1"], code=2).stderr
    missing = json.loads(fit(tmp_path / "none.acts", tmp_path / "x", WIDTHS[:1], "--json", code=3).stdout)
    assert missing["error"]["code"] == 3 and "none.acts" in missing["error"]["message"]


def test_dry_run_and_explain(acts, tmp_path):
    plan = fit_json(acts, tmp_path / "x", WIDTHS, "--dry-run")
    assert plan["layers"] == 3 and plan["tokens"] == 192 and plan["read_bytes"] > 3 * 192 * 2 * 28 * 4
    assert len(plan["outputs"]) == 3 and not list(tmp_path.iterdir())
    told = fit(acts, tmp_path / "x", WIDTHS, "--dry-run", "--explain").stdout
    assert "quantiles 0.005 and 0.995" in told and "squared gradient times squared scale" in told


def test_F51_non_ascii_paths(acts, tmp_path):
    folder = tmp_path / "Загрузки" / "モデル é"
    folder.mkdir(parents=True)
    shutil.copytree(acts, folder / "a.acts")
    result = fit_json(folder / "a.acts", folder / "new" / "x.kvcb", WIDTHS[:1])["results"][0]
    assert result["output"] == str(folder / "new" / "x.kvcb") and Path(result["output"]).exists()


VECTORS = ["kvcc-1", "kvcc-2", "kvcc-3-head", "kvcc-2-channels"]


def test_vector_codebooks_are_fitted_together_and_kept_to_their_budget(tmp_path):
    """Files, accounting and predictions; 2 KV heads of 8 and 6 channels, so that transforms alone cost little."""
    acts = make(tmp_path / "m.acts", 8, 96, 3)
    document = fit_json(acts, tmp_path / "v", VECTORS, "--threads", 2)
    results = {r["scheme"]: r for r in document["results"]}
    assert results["kvcc-1"]["predicted_dnll_fitted"] > results["kvcc-2"]["predicted_dnll_fitted"] > 0
    for name in VECTORS:
        row = results[name]
        path = tmp_path / f"v.{name}.kvcb"
        assert row["held_out_samples"] == 1 and row["predicted_dnll_held_out"] > 0
        budget = float(name.split("-")[1]) + 0.05
        assert budget - 0.3 < row["effective_bits"] <= budget + 1e-9
        subprocess.run([VALIDATE, path], check=True, capture_output=True)
        with h5py.File(path) as f:
            bits = sum(int(f[f"{t}/group_bits"][()].sum()) for t in ("key", "value"))
            assert bits / (3 * 2 * 14) == pytest.approx(row["code_bits"])
            assert f["provenance"].attrs["held_out"] == 1
            held = sum(float(f[f"{t}/stats/predicted_held_out"][()].sum()) for t in ("key", "value"))
            assert held == pytest.approx(row["predicted_dnll_held_out"], rel=1e-5)
            assert "key/codebook" not in f and f["key/stats/fisher"].shape == (3, 2, 8)
            # The inverse undoes the transform, and a group's coordinates tile the unit.
            forward, inverse = f["rotation/key/forward"][()], f["rotation/key/inverse"][()]
            np.testing.assert_allclose(inverse @ forward, np.broadcast_to(np.eye(forward.shape[-1]), forward.shape), atol=2e-3)
            assert (f["key/group_width"][()].sum(-1) == forward.shape[-1]).all()
    one = fit_json(acts, tmp_path / "one.kvcb", ["kvcc-2"], "--threads", 1)["results"][0]  # F41
    assert (tmp_path / "one.kvcb").read_bytes() == (tmp_path / "v.kvcc-2.kvcb").read_bytes()
    assert one["content_sha256"] == results["kvcc-2"]["content_sha256"]


def test_budget_and_held_out_are_options(tmp_path):
    acts = make(tmp_path / "m.acts", 3, 64, 1)
    row = fit_json(acts, tmp_path / "a.kvcb", ["kvcc-2"], "--budget", 1.25, "--held-out", 0)["results"][0]
    assert "budget=1.25" in row["scheme_text"] and row["effective_bits"] <= 1.25
    assert row["held_out_samples"] == 0 and row["predicted_dnll_held_out"] is None
    refused = fit(acts, tmp_path / "b.kvcb", ["kvcc-nuq2"], "--budget", 2, code=2)
    assert "vector codebooks" in refused.stderr
    for held in (3, 4):  # of three samples
        refused = fit(acts, tmp_path / "b.kvcb", ["kvcc-2"], "--held-out", held, "--dry-run", code=3)
        assert f"of which {held} are held out" in refused.stderr and "--held-out" in refused.stderr
    assert "kvcc-2" in fit(acts, tmp_path / "b.kvcb", ["kvcc-nuq2"], "--held-out", 1, code=2).stderr
    assert "--budget: Value nan" in fit(acts, tmp_path / "b.kvcb", ["kvcc-2"], "--budget", "nan", code=2).stderr
    assert not (tmp_path / "b.kvcb").exists()
    told = fit(acts, tmp_path / "c.kvcb", ["kvcc-2-channels"], "--explain").stdout
    assert "correlated" in told and "2.05 effective bits" in told
