"""tests/gpu/run.sh without a GPU: it builds, counts its tests as skipped, refuses what is wrong; and in the emulator, where
the same cases and the same timing code run, and a broken kernel is named."""
import json
import os
import re
import shutil
import subprocess

import pytest

from support import BUILD, SOURCE

RUN = SOURCE / "tests/gpu/run.sh"
READERS = {"key_scores", "value_mix", "attention"}
OTHERS = {f"{family}_{tensor}" for family in ("dequantise", "pack_prefill", "pack_append", "copy_pages")
          for tensor in ("key", "value")}


def run(*arguments, code=0, script=RUN, **env):
    done = subprocess.run([str(script), *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **env})
    assert done.returncode == code, f"exit {done.returncode}, wanted {code}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """The whole script in the emulator: its output and its document."""
    path = tmp_path_factory.mktemp("gpu") / "emulated.json"
    out, _ = run("--emulate", "--build", BUILD / "gpu-emulated", "--json", path)
    return out, json.loads(path.read_text())


def test_every_case_passes_in_the_emulator(emulated):
    out, document = emulated
    parity = document["parity"]
    assert document["schema_version"] == 1 and document["device"]["name"] == "emulator"
    assert parity["total"] >= 500 and parity["passed"] == parity["total"]
    assert f"parity: {parity['total']} tests, {parity['total']} passed, 0 failed, 0 skipped" in out
    names = run("--emulate", "--build", BUILD / "gpu-emulated", "--list")[0].splitlines()
    assert len(names) == len(set(names)) == parity["total"]


def test_every_family_is_launched_as_it_would_be_timed(emulated):
    out, document = emulated
    assert document["not_timed"] == [] and document["copy_gb_per_s"] is None
    for model, heads, group in (("Llama-2-7B", 2, 1), ("Llama-3-8B", 1, 4)):
        rows = [row for row in document["times"] if row["model"] == model]
        families = {}
        for row in rows:
            assert (row["kv_heads"], row["group"], row["head_dim"], row["tokens"]) == (heads, group, 128, 192)
            assert row["bytes"] > 0 and row["ms"] is None and row["ratio_to_fp16"] is None
            families.setdefault(row["kernel"], set()).add(row["family"])
        assert families["fp16"] == READERS
        for bits in (3, 4):
            assert families[f"KVQuant-like {bits} bits, as deployed"] == {"key_scores", "value_mix"}
            assert families[f"KVQuant-like {bits} bits, as benchmarked"] == {"key_scores"}
        for name in ("q2_d128", "q4_d128", "q3_dense_d128"):
            assert families[name] == READERS
        assert families["q3_d128"] == READERS | OTHERS
        assert families["linear_q3_d128"] == READERS - {"attention"} | OTHERS
        # 16 bits against 3 and the sparse part
        size = {row["kernel"]: row["bytes"] for row in rows if row["family"] == "attention"}
        assert 4 < size["fp16"] / size["q3_d128"] < size["fp16"] / size["q3_dense_d128"] < 16 / 3
    assert "Llama-3-8B, 1 KV heads x 4 queries, head_dim 128, 192 tokens" in out


def test_times_and_ratios_by_a_made_up_clock(tmp_path):
    """The emulator's clock says ten milliseconds a kernel: medians, launches a repetition and ratios follow."""
    path = tmp_path / "out.json"
    out, _ = run("--emulate", "--build", BUILD / "gpu-emulated", "--only", "q3_d128", "--tokens", "64", "--json", path,
                 KVCC_GPU_FAKE_CLOCK="1")
    rows = json.loads(path.read_text())["times"]
    found = {(row["family"], row["kernel"]): row for row in rows if row["model"] == "Llama-3-8B"}
    deployed = "KVQuant-like 3 bits, as deployed"
    for family, kernel, ms, to_fp16, to_kvquant in (
            ("key_scores", "fp16", 10, None, None), ("key_scores", deployed, 20, 0.5, 1),
            ("value_mix", deployed, 20, 0.5, 1), ("key_scores", "q3_d128", 10, 1, 2), ("value_mix", "q3_d128", 10, 1, 2),
            ("attention", "q3_d128", 10, 1, 4), ("pack_append_value", "q3_d128", 20, None, None),
            ("dequantise_key", "linear_q3_d128", 10, None, None)):
        row = found[family, kernel]
        assert (row["ms"], row["ratio_to_fp16"], row["ratio_to_kvquant"]) == (ms, to_fp16, to_kvquant), row
        # bytes are rounded to whole ones in the document, an average over heads is not in the rate
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / ms * 1e-6, rel=1e-5, abs=0.51 / ms * 1e-6)
    assert re.search(r"attention +q3_d128 +0\.\d\d +10000\.0 .* 1\.00 +4\.00", out)


def test_without_a_device_all_tests_are_skipped(emulated, tmp_path):
    path = tmp_path / "none.json"
    out, _ = run("--build", BUILD / "gpu", "--arch", "sm_80", "--json", path)
    document = json.loads(path.read_text())
    if document["parity"] is None:
        pytest.skip(f"SKIPPED: {document['reason']} ('make nvcc' gets one)")
    total = emulated[1]["parity"]["total"]
    assert document["device"] is None and document["reason"] in out
    assert document["parity"] == {"total": total, "passed": 0, "failed": 0, "skipped": total, "failures": []}
    assert document["times"] == []
    assert f"parity: {total} tests, 0 passed, 0 failed, {total} skipped" in out


def test_a_broken_kernel_is_named(tmp_path):
    """A copy of what the script needs, in which copy_pages takes the target's lists to lie as the source's do."""
    for folder in ("formats/core", "formats/codec", "formats/layout", "kernels", "tests/gpu"):
        shutil.copytree(SOURCE / folder, tmp_path / folder)
    (tmp_path / "tests/kernels").mkdir()
    for name in ("cases.h", "mma_cases.h"):
        shutil.copy(SOURCE / "tests/kernels" / name, tmp_path / "tests/kernels" / name)
    broken = tmp_path / "kernels/device/copy_pages.cuh"
    text = broken.read_text()
    assert text.count("run * runs.target_stride") == 1, "mutate copy_pages.cuh otherwise"
    broken.write_text(text.replace("run * runs.target_stride", "run * runs.source_stride"))
    path = tmp_path / "out.json"
    out, _ = run("--emulate", "--only", "q3_d64", "--build", tmp_path / "build", "--json", path, code=1,
                 script=tmp_path / "tests/gpu/run.sh")
    document = json.loads(path.read_text())
    assert document["parity"]["failed"] >= 1
    assert document["parity"]["passed"] + document["parity"]["failed"] == document["parity"]["total"]
    assert re.search(r"FAILED q3_d64, \d+ heads.*: copy_pages of keys: bytes of the pages, element \d+: \d+; wanted \d+",
                     out)
    assert "times: not taken of kernels that fail" in out and document["times"] == []


def test_options():
    assert "usage: tests/gpu/run.sh" in run("--help")[0]
    assert "--fast: an unknown option" in run("--fast", code=2)[1]
    assert "--json: wants a value" in run("--json", code=2)[1]
    assert "--tokens: 100; wanted multiples of 64" in run("--tokens", "128,100", code=2)[1]
    assert "--seconds: soon; wanted a number" in run("--seconds", "soon", code=2)[1]
    words = ("--emulate", "--build", BUILD / "gpu-emulated", "--only", "baseline_xyz")
    assert '--only: no case has "baseline_xyz" in its name' in run(*words, code=2)[1]


def test_without_nvcc(tmp_path):
    out, _ = run("--json", tmp_path / "out.json", KVCC_NVCC="/nowhere/nvcc")
    assert "KVCC_NVCC is /nowhere/nvcc, which is no program: nothing was built, all tests are skipped" in out
    assert json.loads((tmp_path / "out.json").read_text())["parity"] is None
    odd = '/no "where\\\t/nvcc'
    run("--json", tmp_path / "odd.json", KVCC_NVCC=odd)
    assert json.loads((tmp_path / "odd.json").read_text())["reason"] == f"no nvcc: KVCC_NVCC is {odd}, which is no program"


def test_an_arch_that_nvcc_does_not_know(tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\n[ $1 = --list-gpu-code ] || exit 9\nprintf 'sm_80\\nsm_90\\n'\n")
    nvcc.chmod(0o755)
    for arch in ("sm_42", "sm_8", "80", "sm_80 sm_90", "compute_80"):
        assert f"--arch: {arch}; wanted one of sm_80 sm_90 (" in run("--arch", arch, code=2, KVCC_NVCC=str(nvcc))[1]


def test_the_list_needs_no_nvcc(tmp_path):
    out, err = run("--list", "--only", "q3_d64", "--build", tmp_path, KVCC_NVCC="/nowhere/nvcc")
    assert "sources for the emulator" in err and not list(tmp_path.glob("*q4*"))
    assert out.splitlines() and all("q3_d64" in line for line in out.splitlines())
