"""The benchmark of decode attention on the CPU runs, and its contestants compute what the reference does. No times."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cpu_instructions import bounds, kinds

PROGRAM = Path(os.environ["KVCC_BUILD"]) / "tests/bin/cpu_attention"
CONTESTANTS = {"fp16 /64", "fp16 /16", "fp32 /64", "fp32 /16"} | {f"nuq{b}{s} {a}" for b in (4, 3, 2) for s in ("", "-1%") for a in ("f32", "i16")} | {f"vq2-{form} f32" for form in ("head", "channels", "channels-head", "pairs")}


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
        half = min(r["seconds"] for r in same if r["contestant"].startswith("fp16"))
        assert row["times_fp16"] == half / row["seconds"]
    # What is read, by hand: 2 tensors, 200 tokens, 3 heads of 64 channels.
    small = {r["contestant"]: r["bytes"] for r in rows if r["shape"].startswith("SmolLM2") and r["mode"] == "memory"}
    elements = 2 * 200 * 3 * 64
    assert small["fp16 /64"] == 2 * elements and small["fp32 /16"] == 4 * elements
    pages = 256 * 3 * 64
    assert small["nuq4 f32"] == 2 * pages // 2 + 256 * 4  # whole pages, and a range of 4 bytes a token of the values
    assert small["vq2-head f32"] == small["vq2-channels f32"] == small["vq2-pairs f32"] == 2 * pages // 4
    assert small["nuq2-1% i16"] == small["nuq2-1% f32"]
    assert small["nuq2 f32"] < small["nuq2-1% f32"] < small["nuq3 f32"]


def test_bad_arguments():
    assert run("--tokens", 0).returncode != 0
    done = run("--tokens", 200, "--rounds", 1, "--threads", 1, "--bytes", 1 << 20, "--json", "/nowhere/figures.json")
    assert done.returncode != 0 and "/nowhere/figures.json" in done.stderr


@pytest.mark.parametrize("text, wanted", [
    ("vfmadd231ps (%rax,%rsi,2),%zmm4,%zmm12", ["multiply", "load"]),
    ("vpdpwssd %zmm1,%zmm2,%zmm3", ["multiply"]),
    ("vpmulhrsw 0x40(%rsp),%zmm2,%zmm3", ["multiply", "load"]),
    ("vcvtph2ps (%rdx),%zmm2", ["convert", "load"]),
    ("vpermw %zmm1,%zmm2,%zmm3", ["shuffle"]),
    ("vpmultishiftqb (%rax),%zmm2,%zmm3", ["shuffle", "load"]),
    ("vaddps %zmm1,%zmm2,%zmm3", ["vector"]),
    ("vblendmpd %zmm12,%zmm7,%zmm30{%k1}", ["vector"]),
    ("vmovaps (%r12),%zmm3", ["load"]),
    ("vmovdqu16 0x10(%r12),%zmm0{%k1}{z}", ["load"]),
    ("vmovaps %zmm0,-0x40(%r10)", ["store"]),
    ("vmovups %zmm0,(%r10){%k1}", ["store"]),
    ("vbroadcastss 0x600(%rsp,%rax,4),%zmm1", ["load"]),
    ("prefetcht0 0x40(%rax)", ["prefetch"]),
    ("mov 0x9f0(%rsp),%rax", ["scalar", "load"]),
    ("mov %rax,0x9f0(%rsp)", ["scalar", "store"]),
    ("cmp $0x3f,0x8(%r14)", ["scalar", "load"]),
    ("lea (%rdi,%rdx,1),%ebx", ["scalar"]),
    ("jne 645 <x>", ["branch"]),
])
def test_kinds_of_instructions(text, wanted):
    assert kinds(*text.split(" ", 1)) == wanted


def test_bounds():
    counts = dict.fromkeys(["multiply", "vector", "shuffle", "convert", "load", "narrow load", "prefetch", "store"], 0.0)
    assert bounds(16, counts)["issue"] == 2
    assert bounds(16, {**counts, "multiply": 3.0})["multiply"] == 1.5
    assert bounds(16, {**counts, "load": 4.0, "narrow load": 2.0})["load"] == 1.5
