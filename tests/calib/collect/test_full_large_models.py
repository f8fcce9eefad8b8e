"""Memory of collecting from models of the shapes that people have, with random bf16 weights: some minutes each.

Their weights (2.5 and 13.5 GB) are made below KVCC_LARGE, or pytest's temporary folder, and removed. With KVCC_LARGE_LAYERS=16 the
7B shape has half its layers, as where a disk or an hour is too small."""
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from made_weights import LLAMA_2_7B, LLAMA_32_1B, write_llama
from resident import watch
from support import BUILD, model_path, random_ids

COLLECT = BUILD / "libexec/kvcc/kvcc-collect"
GIB = 1 << 30


@pytest.fixture
def place(tmp_path):
    folder = Path(os.environ.get("KVCC_LARGE", tmp_path)) / "kvcc-large-models"
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


def collect(folder, model, seqlen, *more):
    """Plans and runs one sample; (plan, what the run took)."""
    random_ids(folder / "ids.npy", 1, seqlen, vocab=32000)
    arguments = [COLLECT, model, "-o", folder / "large.acts", "--ids", folder / "ids.npy", "--samples", 1, "--seqlen", seqlen, *more]
    done = subprocess.run([*map(str, arguments), "--dry-run", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    run = watch(*arguments, "--quiet")
    disk = sum(p.stat().st_size for p in (folder / "large.acts").rglob("*") if p.is_file())
    print(f"\n{model.name}, {seqlen} tokens, {' '.join(more)}: planned {plan['peak_memory_bytes'] / GIB:.2f} GiB, {plan['seconds']:.0f} s; "
          f"took {run['peak'] / GIB:.2f} GiB (anonymous {run['anonymous'] / GIB:.2f}, of files {run['file'] / GIB:.2f}), {run['seconds']:.0f} s, "
          f"{disk / GIB:.2f} GiB of disk")
    assert 0.75 * run["peak"] < plan["peak_memory_bytes"] < 1.25 * run["peak"], (plan, run)
    assert 0.75 * disk < plan["disk_bytes"] < 1.25 * disk, (plan, disk)
    shutil.rmtree(folder / "large.acts")
    return plan, run


def needs(folder, gib):
    if shutil.disk_usage(folder).free < gib * GIB:
        pytest.skip(f"SKIPPED: needs {gib} GiB of disk below {folder} (KVCC_LARGE names another place)")


def test_a_model_of_llama_32_1bs_shape_in_three_gib(place):
    """2,048 tokens; pages of the weights' files are counted while they are in use."""
    needs(place, 4)
    model = write_llama(place / "llama-3.2-1b", LLAMA_32_1B)
    _, run = collect(place, model, 2048, "--max-memory", "3GiB")
    assert run["peak"] < 3 * GIB


def test_a_model_of_llama_2_7bs_shape_in_eight_gib(place):
    """One sample of 512 tokens in less memory than its weights take on disk."""
    layers = int(os.environ.get("KVCC_LARGE_LAYERS", LLAMA_2_7B["num_hidden_layers"]))
    needs(place, 16 * layers // 32 + 2)
    model = write_llama(place / "llama-2-7b", LLAMA_2_7B | {"num_hidden_layers": layers})
    _, run = collect(place, model, 512, "--max-memory", "8GiB")
    assert run["peak"] < 8 * GIB


@pytest.mark.parametrize("recompute", ["off", "on"])
def test_smollm2(place, recompute):
    """Below 2 GiB with layers run twice."""
    _, run = collect(place, model_path(), 2048, "--recompute", recompute)
    if recompute == "on":
        assert run["peak"] < 2 * GIB
