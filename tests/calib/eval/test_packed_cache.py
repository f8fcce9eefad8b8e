"""The packed cache under a decoder: against the simulated one, and both against eval's own, over given tokens."""
import subprocess

import numpy as np
import pytest

from packed import assert_same_choice, evaluation_ids, smollm2_codebook, teacher_force
from support import BUILD, model_path, random_ids, tiny_llama

PROGRAMS = BUILD / "libexec/kvcc"
REST = ",codebook=head,weight=f,first-thresholds=in,first-kmeans=out"
# name: scheme, changes of the model
TINY = {
    "preset": ("kvcc-nuq3-1%-sink1", {}),
    "dense": ("kvcc-nuq4", {}),
    "window": ("k=nuq3@prerope/channel,v=nuq2@token,sparse=2%,sink=2,residual=7" + REST, {}),
    "window_longer_than_a_page": ("k=nuq2@prerope/channel,v=nuq4@token,sparse=1%,residual=70" + REST, {}),
    "after_rope": ("k=int4@postrope/token,v=nuq3@token,sparse=4%,sink=1" + REST, {}),
    "keys_by_token": ("k=nf4@prerope/token,v=nuq3@token,sparse=4%" + REST, {}),
    "mha": ("kvcc-nuq3-1%-sink1", dict(num_key_value_heads=4)),
    "mqa": ("kvcc-nuq3-1%-sink1", dict(num_key_value_heads=1)),
}


def run(verb, *arguments):
    done = subprocess.run([str(PROGRAMS / f"kvcc-{verb}"), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module", params=TINY)
def tiny(request, tmp_path_factory):
    scheme, changes = TINY[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    tiny_llama(folder / "model", initializer_range=0.12, **changes)
    random_ids(folder / "calibration.npy", 4, 128)
    run("collect", folder / "model", "-o", folder / "t.acts", "--ids", folder / "calibration.npy", "--samples", 4, "--seqlen", 128)
    run("fit", folder / "t.acts", "-o", folder / "t.kvcb", "--scheme", scheme)
    return request.param, folder


@pytest.mark.parametrize("prefill", ("exact", "quantised"))
def test_tiny_models(tiny, prefill):
    """200 tokens: more than three pages of 64. What the caches give back is the same bits."""
    name, folder = tiny
    ids = np.random.default_rng(5).integers(0, 256, 200)
    found = teacher_force(folder, folder / "model", folder / "t.kvcb", ids, 90, prefill, "led")
    assert found["rows"] > 0 and found["differing_rows"] == 0
    assert_same_choice(found)
    assert 0 < found["difference"].max() < 1e-4
    np.testing.assert_allclose(found["packed_nll"], found["simulated_nll"], atol=1e-4)
    if prefill == "quantised" and "window" not in name:  # eval quantises all but the last tokens of the whole text
        assert_same_choice(found, "full", "full_difference")
        assert found["full_difference"].max() < 1e-4


@pytest.mark.parametrize("prefill", ("exact", "quantised"))
def test_smollm2(tmp_path, prefill):
    """60 tokens at 3 bits; test_full_generate.py has 500 at all widths."""
    found = teacher_force(tmp_path, model_path(), smollm2_codebook(3), evaluation_ids(2048, 125), 65, prefill, "led")
    assert found["differing_rows"] == 0
    assert_same_choice(found)
    assert found["difference"].max() < 5e-4
    if prefill == "quantised":
        assert_same_choice(found, "full", "full_difference")
        assert found["full_difference"].max() < 1e-3


@pytest.mark.parametrize("prefill", ("exact", "quantised"))
def test_tiny_models_in_double(tiny, prefill):
    """--arithmetic f64: each cache keeps its own rows, and they stay the same bits."""
    name, folder = tiny
    ids = np.random.default_rng(5).integers(0, 256, 200)
    found = teacher_force(folder, folder / "model", folder / "t.kvcb", ids, 90, prefill, "free", "f64")
    assert found["rows"] > 0 and found["differing_rows"] == 0
    assert_same_choice(found)
    assert found["difference"].max() < 1e-5


def test_fixed_point_is_near(tmp_path):
    """--arithmetic i16 rounds weights and levels to 16 bits, which shows in the logits, and little."""
    found = teacher_force(tmp_path, model_path(), smollm2_codebook(3), evaluation_ids(2048, 90), 65, "quantised", "led", "i16")
    assert found["differing_rows"] == 0
    assert_same_choice(found, margin=0.05)
    assert found["difference"].max() < 0.05
    assert abs(found["packed_nll"].mean() - found["simulated_nll"].mean()) < 1e-3
