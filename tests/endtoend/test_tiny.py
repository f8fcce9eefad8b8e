"""The whole chain on a tiny random model made on the spot: collect, fit, compile, eval, inspect, validate, export."""
import json
import subprocess
import time

import h5py
import numpy as np
import pytest

from support import BUILD, kvcc, kvcc_json, random_ids, tiny_llama

SCHEMES = [f"kvcc-nuq{b}-1%-sink1" for b in (4, 3, 2)]
HAVE_NVCC = kvcc_json("--version")["nvcc"] != ""  # wherever `kvcc compile` finds it


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A calibrated tiny model, in folders with spaces and letters beyond ASCII (F51)."""
    folder = tmp_path_factory.mktemp("e2e") / "Загрузки モデル é"
    folder.mkdir()
    tiny_llama(folder / "tiny")
    random_ids(folder / "calibration.npy", 4, 128)
    random_ids(folder / "evaluation.npy", 3, 128, seed=1)
    return folder


def calibrate(work, *more, **kw):
    arguments = ["calibrate", work / "tiny", "-o", work / "out" / "tiny.kvcb", "--ids", work / "calibration.npy",
                 "--samples", 4, "--seqlen", 128, "--eval", "--eval-ids", work / "evaluation.npy", "--windows", 3,
                 "--eval-seqlen", 128]
    for scheme in SCHEMES:
        arguments += ["--scheme", scheme]
    if HAVE_NVCC:
        arguments += ["--compile", "sm_80"]
    return kvcc_json(*arguments, *more, **kw)


def test_chain(work):
    document = calibrate(work)
    rows = document["results"]
    assert [row["scheme"] for row in rows] == SCHEMES
    for row, bits in zip(rows, (4, 3, 2)):
        assert row["nominal_bits"] == bits
        assert bits < row["effective_bits"] < bits + 1.5
        assert row["kl"] > 0 and row["perplexity"] > 1 and 0 < row["top1_agreement"] <= 1
        assert row["artifact_bytes"] > 1000 and row["fit_seconds"] >= 0
    assert rows[0]["kl"] < rows[1]["kl"] < rows[2]["kl"], "more bits must not be worse on this data"
    kvcc("validate", *[row["codebook"] for row in rows])


def test_the_artifact_opens_with_h5py(work):
    rows = calibrate(work)["results"]
    with h5py.File(rows[1]["codebook"]) as f:
        assert f.attrs["format"] in ("kvcc-codebook", b"kvcc-codebook")
        assert f["key/codebook"].shape == (3, 2, 8) and f["key/scale"].shape == (3, 2, 32)
        levels = f["value/codebook"][:]
        assert np.all(np.diff(levels, axis=-1) >= 0) and np.all(np.abs(levels) <= 1)
        assert np.all(f["key/threshold_lower"][:] <= f["key/threshold_upper"][:])


def test_a_second_run_redoes_nothing(work):
    calibrate(work)
    stamps = {p: p.stat().st_mtime_ns for p in work.rglob("*") if p.is_file()}
    start = time.time()
    calibrate(work)
    assert {p: p.stat().st_mtime_ns for p in work.rglob("*") if p.is_file()} == stamps
    assert time.time() - start < 30


def test_same_bytes_again_and_for_any_threads(work, tmp_path):
    rows = calibrate(work)["results"]
    for threads in (1, 3):
        kvcc("fit", work / "out" / "tiny.acts", "--scheme", SCHEMES[2], "-o", tmp_path / "again.kvcb", "--threads", threads,
             "--force")
        assert (tmp_path / "again.kvcb").read_bytes() == open(rows[2]["codebook"], "rb").read()


def test_eval_agrees_with_calibrate(work):
    rows = calibrate(work)["results"]
    document = kvcc_json("eval", work / "tiny", "--codebook", rows[0]["codebook"], "--scheme", "int4", "--ids",
                         work / "evaluation.npy", "--windows", 3, "--seqlen", 128)
    found = {row["scheme"]: row for row in document["results"]}
    assert found["fp"]["effective_bits"] == 16
    assert found[SCHEMES[0]]["nll"] == pytest.approx(rows[0]["nll"], abs=1e-12)
    assert found["int4"]["perplexity"] == pytest.approx(np.exp(found["int4"]["nll"]))


def test_a_limit_not_met_is_exit_5(work):
    rows = calibrate(work)["results"]
    kvcc("eval", work / "tiny", "--codebook", rows[0]["codebook"], "--ids", work / "evaluation.npy", "--windows", 1, "--seqlen",
         128, "--max-ppl", "1.01", code=5)


def test_an_artifact_of_another_geometry_is_refused(work, tmp_path):
    rows = calibrate(work)["results"]
    tiny_llama(tmp_path / "other", num_key_value_heads=4)
    _, err = kvcc("eval", tmp_path / "other", "--codebook", rows[0]["codebook"], "--ids", work / "evaluation.npy",
                  "--windows", 1, "--seqlen", 128, code=3)
    assert "kv_heads" in err or "KV heads" in err


def test_inspect_and_export(work, tmp_path):
    rows = calibrate(work)["results"]
    document = kvcc_json("inspect", rows[0]["codebook"])
    assert document["kind"] == "codebook" and len(document["layers"]) == 3
    head = document["layers"][2]["key"][1]
    assert head["head"] == 1 and len(head["codebook"]) == 16 and head["sqnr_db"] > 10
    kvcc("export", rows[0]["codebook"], "--to", "safetensors", "-o", tmp_path / "x.safetensors")
    from safetensors.numpy import load_file
    with h5py.File(rows[0]["codebook"]) as f:
        exported = load_file(tmp_path / "x.safetensors")
        np.testing.assert_array_equal(exported["key/codebook"], f["key/codebook"][:])
        np.testing.assert_array_equal(exported["key/scale"], f["key/scale"][:])


def test_a_damaged_artifact_is_named(work, tmp_path):
    rows = calibrate(work)["results"]
    data = bytearray(open(rows[0]["codebook"], "rb").read())
    (tmp_path / "cut.kvcb").write_bytes(data[: len(data) // 2])
    _, err = kvcc("validate", tmp_path / "cut.kvcb", code=3)
    with h5py.File(rows[0]["codebook"]) as f:
        offset = f["key/scale"].id.get_offset()
    data[offset + 5] ^= 0x10
    (tmp_path / "flipped.kvcb").write_bytes(data)
    out, err = kvcc("validate", tmp_path / "flipped.kvcb", code=3)
    assert "flipped.kvcb" in out + err


def test_usage_errors_are_exit_2_with_a_suggestion(work):
    _, err = kvcc("calibrat", code=2)
    assert "calibrate" in err
    _, err = kvcc("calibrate", work / "tiny", "--scheme", "kvcc-nuq4-1%-sinc1", code=2)
    assert "sink" in err
    out, _ = kvcc("fit", "nowhere.acts", "--scheme", SCHEMES[0], "-o", "x.kvcb", "--json", code=3)
    assert json.loads(out)["error"]["code"] == 3


@pytest.mark.skipif(not HAVE_NVCC, reason="SKIPPED: no nvcc ('make nvcc' gets one)")
def test_kernels_are_there(work):
    for row in calibrate(work)["results"]:
        manifest = json.loads(open(f"{row['kernels']}/kernels.json").read())
        families = {kernel["family"] for kernel in manifest["kernels"]}
        assert {"key_scores", "value_mix", "pack_key", "pack_value"} <= families
        assert all(kernel["spill_bytes"] == 0 for kernel in manifest["kernels"])
        assert manifest["content_sha256"] == row["content_sha256"]


def test_an_installed_tree_works_elsewhere(work, tmp_path):
    rows = calibrate(work)["results"]
    subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(tmp_path / "tree")], check=True, capture_output=True)
    program = tmp_path / "moved" / "bin" / "kvcc"
    (tmp_path / "tree").rename(tmp_path / "moved")
    for line in (tmp_path / "moved/libexec/kvcc").iterdir():
        runpath = subprocess.run(["readelf", "-d", str(line)], capture_output=True, text=True).stdout
        assert str(BUILD) not in runpath, f"{line.name} looks for libraries in the build folder"
    kvcc("inspect", rows[0]["codebook"], kvcc_program=program)
    kvcc("eval", work / "tiny", "--codebook", rows[0]["codebook"], "--ids", work / "evaluation.npy", "--windows", 1, "--seqlen", 128,
         kvcc_program=program)
    kvcc("compile", rows[0]["codebook"], "--arch", "sm_80", "-o", tmp_path / "units", "--emit-only", kvcc_program=program)
    assert list((tmp_path / "units").glob("*.cu"))


def test_default_schemes_are_vector_codebooks(work, tmp_path):
    arguments = ["calibrate", work / "tiny", "-o", tmp_path / "d.kvcb", "--ids", work / "calibration.npy", "--samples", 4, "--seqlen", 128]
    document = kvcc_json(*arguments)
    assert [row["scheme"] for row in document["results"]] == ["kvcc-2", "kvcc-3"]
    for row in document["results"]:
        assert row["effective_bits"] <= float(row["scheme"][-1]) + 0.05 + 1e-9 and row["fit_seconds"] > 0
        kvcc("validate", row["codebook"])
    _, err = kvcc(*arguments, "--scheme", "kvcc-2", "--compile", "sm_80", code=2)
    assert "units of vector codebooks are built into the CPU runtime" in err
