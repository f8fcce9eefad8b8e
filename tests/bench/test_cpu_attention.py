"""The benchmark of decode attention on the CPU runs, and its contestants compute what the reference does. No times."""
import json
import os
import subprocess
from pathlib import Path

PROGRAM = Path(os.environ["KVCC_BUILD"]) / "tests/bin/cpu_attention"
CONTESTANTS = {"fp16", "fp32"} | {f"nuq{b}{s} {a}" for b in (4, 3, 2) for s in ("", "-1%") for a in ("f32", "i16")}


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=600)


def test_contestants_agree_with_the_reference():
    done = run("--check", "--threads", 1, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert done.stdout.count("error") == 2 * 2 * len(CONTESTANTS)


def test_figures(tmp_path):
    out = tmp_path / "figures.json"
    done = run("--tokens", 200, "--rounds", 2, "--threads", 2, "--bytes", 1 << 22, "--json", out)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["results"]
    assert {r["contestant"] for r in rows} == CONTESTANTS
    assert {r["mode"] for r in rows} == {"memory", "layers", "cache"}
    for row in rows:
        assert 0 < row["seconds"] <= row["median_seconds"]
        same = [r for r in rows if all(r[k] == row[k] for k in ("shape", "mode"))]
        half = next(r for r in same if r["contestant"] == "fp16")
        assert row["times_fp16"] == half["seconds"] / row["seconds"]
    # What is read, by hand: 2 tensors, 200 tokens, 3 heads of 64 channels.
    small = {r["contestant"]: r["bytes"] for r in rows if r["shape"].startswith("SmolLM2") and r["mode"] == "memory"}
    elements = 2 * 200 * 3 * 64
    assert small["fp16"] == 2 * elements and small["fp32"] == 4 * elements
    pages = 256 * 3 * 64
    assert small["nuq4 f32"] == 2 * pages // 2 + 256 * 4  # whole pages, and a range of 4 bytes a token of the values
    assert small["nuq2-1% i16"] == small["nuq2-1% f32"]
    assert small["nuq2 f32"] < small["nuq2-1% f32"] < small["nuq3 f32"]


def test_bad_arguments():
    assert run("--tokens", 0).returncode != 0
    done = run("--tokens", 200, "--rounds", 1, "--threads", 1, "--bytes", 1 << 20, "--json", "/nowhere/figures.json")
    assert done.returncode != 0 and "/nowhere/figures.json" in done.stderr
