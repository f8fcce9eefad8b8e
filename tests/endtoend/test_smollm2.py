"""SmolLM2 with one window: full precision against the known figure, a short calibration, and the packed cache."""
import json
import subprocess

import numpy as np
import pytest

from support import BUILD, data_path, kvcc_json, kvcc, model_path

SCHEMES = [f"kvcc-nuq{b}-1%-sink1" for b in (4, 3, 2)]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2")
    evaluation = np.load(data_path("smollm2/evaluation_ids.npy"))
    np.save(folder / "window1.npy", evaluation[2048:4096].astype(np.int32))
    np.save(folder / "calibration.npy", np.load(data_path("smollm2/calibration_ids.npy"))[:2].astype(np.int32))
    arguments = ["calibrate", model_path(), "-o", folder / "s.kvcb", "--ids", folder / "calibration.npy", "--samples", 2,
                 "--eval", "--eval-ids", folder / "window1.npy", "--windows", 1]
    for scheme in SCHEMES:
        arguments += ["--scheme", scheme]
    return folder, kvcc_json(*arguments)


def test_full_precision_matches_the_reference_window(result):
    """shared/design/CODEBOOKS.md: full-precision NLL of window 1 is 3.1674."""
    assert result[1]["full_precision"]["nll"] == pytest.approx(3.1674, abs=1e-4)


def test_quality_is_ordered_and_near(result):
    """Two samples only, so wide limits: the reference (16 samples, per layer) loses 0.02, 0.08 and 0.40 over 8 windows."""
    rows = result[1]["results"]
    dnll = [row["nll"] - result[1]["full_precision"]["nll"] for row in rows]
    assert dnll[0] < dnll[1] < dnll[2]
    assert dnll[0] < 0.04 and dnll[1] < 0.13 and dnll[2] < 0.6
    assert all(row["kl"] > 0 for row in rows) and rows[0]["kl"] < rows[1]["kl"] < rows[2]["kl"]


@pytest.mark.parametrize("index", range(3))
def test_packed_window_equals_the_simulated_one(result, index):
    """Pack, unpack and dequantise a real window, the sink included; bit-equal to what eval's own SimulatedCache gives."""
    folder, document = result
    driver = BUILD / "tests/bin/pack_window"
    for layer in (0, 13, 29):
        done = subprocess.run([driver, folder / "s.acts" / "s0001" / f"l{layer:04}.h5", document["results"][index]["codebook"],
                               str(layer)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert found["sink"] == 1
        for tensor in (found["key"], found["value"]):
            assert tensor["elements"] == 2048 * 3 * 64 and tensor["differing"] == 0 and tensor["outliers"] > 0
            assert tensor["device"] == 1, "the device text of pack and dequantise was not run, or gives other bytes"
            assert tensor["changed"] > 0.9 * tensor["elements"], "quantising changes nearly every number"


def test_validate_agrees_and_inspect_shows_every_head(result):
    folder, document = result
    kvcc("validate", *[row["codebook"] for row in document["results"]], folder / "s.acts")
    shown = kvcc_json("inspect", document["results"][0]["codebook"])
    assert len(shown["layers"]) == 30 and all(len(layer["key"]) == 3 for layer in shown["layers"])
