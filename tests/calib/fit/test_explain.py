"""kvcc fit --explain of one head, and kvcc inspect of the activations: numbers against fits of their own and numpy."""
import json
import subprocess

import h5py
import numpy as np
import pytest

from support import BUILD, kvcc, kvcc_json

BASE = "kvcc-nuq3-1%-sink1"


@pytest.fixture(scope="module")
def acts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain") / "made.acts"
    subprocess.run([BUILD / "tests/bin/make_activations", folder, "3", "64", "3", "1"], check=True)
    return folder


def explain(acts, *options, **kw):
    return kvcc_json("fit", acts, "--scheme", BASE, "--explain", *options, **kw)


def test_every_candidate_is_what_a_fit_of_its_scheme_measures(acts, tmp_path):
    document = explain(acts, "--layer", 2, "--head", 1)
    assert (document["layer"], document["head"]) == (2, 1) and not list(tmp_path.iterdir())
    candidates = document["schemes"][0]["candidates"]
    assert len(candidates) == 24, "keys and values; int, nf, two k-means, each with two codebooks; without and with outliers"
    wanted = {(levels, codebook, outliers) for levels, books in (("int", [None]), ("nf", [None]), ("k-means", ["layer", "head"]),
                                                                 ("k-means Fisher", ["layer", "head"]))
              for codebook in books for outliers in (False, True)}
    for kind in ("key", "value"):
        own = [c for c in candidates if c["kind"] == kind]
        assert {(c["levels"], c["codebook"], c["outliers"]) for c in own} == wanted and len(own) == len(wanted)
        chosen = [c for c in own if c["chosen"]]
        assert len(chosen) == 1 and chosen[0]["levels"] == "k-means Fisher" and chosen[0]["codebook"] == "head"
        assert chosen[0]["outliers"] and chosen[0]["times_chosen"] == 1
        for c in own:
            assert c["times_chosen"] == pytest.approx(c["weighted_sse"] / chosen[0]["weighted_sse"])
            assert (c["outlier_fraction"] > 0) == c["outliers"]
    for c in candidates[::5]:
        out = tmp_path / "x.kvcb"
        # An artifact holds both kinds; what the other one is does not matter.
        scheme = c["scheme"].replace("k=fp", "k=nuq3@prerope/channel").replace("v=fp", "v=nuq3@token")
        kvcc("fit", acts, "--scheme", scheme, "-o", out, "--force")
        with h5py.File(out) as file:
            stats = file[c["kind"]]["stats"]
            assert stats["weighted_sse"][1, 1] == pytest.approx(c["weighted_sse"], rel=1e-6)
            assert stats["sqnr_db"][1, 1] == pytest.approx(c["sqnr_db"], rel=1e-6)


def test_ingredients_buy_what_they_should(acts):
    """A codebook of one's own and Fisher weights never cost error where they are what the k-means minimises."""
    for head in (0, 1):
        found = explain(acts, "--layer", 0, "--head", head, "--kind", "value")["schemes"][0]["candidates"]
        error = {(c["levels"], c["codebook"], c["outliers"]): c["weighted_sse"] for c in found}
        assert len(error) == 12
        for outliers in (False, True):
            best = error["k-means Fisher", "head", outliers]
            assert best <= min(value for key, value in error.items() if key[2] == outliers) * 1.0001


def test_explain_as_text_and_what_it_refuses(acts):
    out, _ = kvcc("fit", acts, "--scheme", BASE, "--explain", "--layer", 2, "--head", 1, "--kind", "key")
    assert out.startswith(f"{BASE}: layer 2 head 1\n") and max(map(len, out.splitlines())) <= 80
    assert out.count("k-means Fisher") == 4 and out.count("*  ") == 1 and "value" not in out.split("error:")[0]
    assert "0 to 1" in kvcc("fit", acts, "--scheme", BASE, "--explain", "--layer", 2, "--head", 2, code=2)[1]
    assert "--layer 1" in kvcc("fit", acts, "--scheme", BASE, "--explain", "--layer", 1, "--head", 0, code=2)[1]
    kvcc("fit", acts, "--scheme", BASE, "--layer", 2, "--head", 1, code=2)
    kvcc("fit", acts, "--scheme", BASE, "--explain", "--layer", 2, code=2)
    assert "-o" in kvcc("fit", acts, "--scheme", BASE, code=2)[1]


def shards(acts, name, layer):
    return np.stack([h5py.File(acts / f"s{s:04d}/l{layer:04d}.h5")[name][()] for s in range(3)])  # [S, T, H, D]


def test_activations_are_inspected_with_their_ranges_after_rope(acts, tmp_path):
    document = kvcc_json("inspect", acts)
    assert document["kind"] == "activations" and document["samples_read"] == 3 == document["samples_asked"]
    kvcc("fit", acts, "--scheme", BASE, "-o", tmp_path / "a.kvcb")
    artifact = kvcc_json("inspect", tmp_path / "a.kvcb", "--activations", acts)
    rope = document["model"]["rope"]
    assert rope["kind"] == "half-split" and rope["scaling"] == "none"
    half = rope["rotary_dim"] // 2
    angle = np.arange(64)[:, None] * rope["theta"] ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[None, :, None], np.sin(angle)[None, :, None]
    for at, layer in enumerate(document["layers"]):
        key, value, grad = (shards(acts, name, layer["layer"]) for name in ("key", "value", "key_grad"))
        a, b = key[..., :half], key[..., half:2 * half]
        turned = np.concatenate([a * cos - b * sin, b * cos + a * sin, key[..., 2 * half:]], -1)
        for h in range(2):
            for head in (layer["key"][h], artifact["layers"][at]["key"][h]):
                channels = head["channels"]
                np.testing.assert_allclose(channels["range_min"], key[:, :, h].min((0, 1)), rtol=1e-6)
                np.testing.assert_allclose(channels["rotated_min"], turned[:, :, h].min((0, 1)), rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(channels["rotated_max"], turned[:, :, h].max((0, 1)), rtol=1e-4, atol=1e-4)
                assert head["fisher_mass"] == pytest.approx((grad[:, :, h].astype(float) ** 2).sum(), rel=1e-5)
            own = layer["value"][h]
            assert "rotated_min" not in own["channels"] and own["weighted_sse"] is None and own["codebook"] == []
            np.testing.assert_allclose(own["channels"]["max"], value[:, :, h].max((0, 1)), rtol=1e-6)
    first = kvcc_json("inspect", acts, "--samples", 1, "--layer", 0, "--head", 0, "--kind", "key")
    assert first["samples_read"] == 1 and len(first["layers"]) == 1
    head = first["layers"][0]["key"][0]
    np.testing.assert_allclose(head["channels"]["max"], shards(acts, "key", 0)[0, :, 0].max(0), rtol=1e-6)
    assert "of the first 1 of 3 samples" in kvcc("inspect", acts, "--samples", 1)[0]


def test_what_was_asked_for_and_not_had_is_told(acts, tmp_path):
    """Samples that a run was asked for and did not get: through fit and merge to the warning."""
    import shutil
    thin = tmp_path / "thin.acts"
    shutil.copytree(acts, thin)
    manifest = json.loads((thin / "manifest.json").read_text())
    (thin / "manifest.json").write_text(json.dumps(manifest | {"samples_asked": 5}))
    plain, asked = kvcc_json("inspect", acts), kvcc_json("inspect", thin)
    assert plain["content_sha256"] == asked["content_sha256"], "it decides no bytes"
    assert (plain["samples_asked"], asked["samples_asked"]) == (3, 5)
    kvcc("fit", thin, "--scheme", BASE, "-o", tmp_path / "a.kvcb")
    document = kvcc_json("inspect", tmp_path / "a.kvcb")
    warning = next(w for w in document["warnings"] if w["name"] == "thin-data")
    assert warning["cause"] == "3 samples of 64 tokens, 5 asked for" and document["provenance"]["samples_asked"] == 5
    assert "few-tokens" in [w["name"] for w in document["warnings"]], "192 tokens are too few for 1 %"
    other = tmp_path / "other.acts"
    subprocess.run([BUILD / "tests/bin/make_activations", other, "3", "64", "3", "2", "other-text"], check=True)
    kvcc("merge", thin, other, "-o", tmp_path / "both.acts")
    assert kvcc_json("inspect", tmp_path / "both.acts")["samples_asked"] == 8
