"""kvcc collect --dtype bf16: near the f32 activations, the same bytes in every way of running, and never taken for f32."""
import json
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from support import BUILD, kvcc, random_ids, tiny_llama

COLLECT = BUILD / "libexec/kvcc/kvcc-collect"


def has_bf16():
    flags = Path("/proc/cpuinfo").read_text()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def collect(*arguments, code=0):
    done = subprocess.run([str(COLLECT), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Activations of one model in f32 and in bf16, and the arguments that made them."""
    folder = tmp_path_factory.mktemp("bf16")
    tiny_llama(folder / "model", initializer_range=0.1)
    random_ids(folder / "ids.npy", 2, 64)
    common = [folder / "model", "--ids", folder / "ids.npy", "--samples", 2, "--seqlen", 64]
    collect(*common, "-o", folder / "f32.acts")
    if has_bf16():
        collect(*common, "-o", folder / "bf16.acts", "--dtype", "bf16")
    return folder, common


def shards(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.h5"))}


@pytest.mark.skipif(has_bf16(), reason="SKIPPED: the processor has bf16")
def test_refused_where_the_processor_has_none(both):
    folder, common = both
    error = collect(*common, "-o", folder / "none.acts", "--dtype", "bf16", code=2).stderr
    assert "--dtype bf16" in error and "AVX-512-BF16" in error and not (folder / "none.acts").exists()


def test_the_processor_is_asked():
    done = subprocess.run([BUILD / "tests/bin/arithmetic_probe"], capture_output=True, text=True, check=True)
    found, refused = done.stdout.splitlines()
    assert (found != "none") == has_bf16()
    assert refused.startswith("2 ") and "--dtype bf16" in refused and "AVX-512-BF16" in refused


needs_bf16 = pytest.mark.skipif(not has_bf16(), reason="SKIPPED: the processor has neither AVX-512-BF16 nor AMX")


@needs_bf16
def test_near_f32_and_said_in_the_manifest(both):
    folder, _ = both
    decoder = {name: json.loads((folder / f"{name}.acts/manifest.json").read_text())["settings"]["decoder"] for name in ("f32", "bf16")}
    assert decoder["bf16"].pop("products") == "bf16" and decoder["bf16"] == decoder["f32"]
    for shard in sorted((folder / "f32.acts").rglob("*.h5")):
        with h5py.File(shard) as exact, h5py.File(folder / "bf16.acts" / shard.relative_to(folder / "f32.acts")) as rounded:
            for name in exact:
                difference = np.linalg.norm(exact[name][()] - rounded[name][()]) / np.linalg.norm(exact[name][()])
                # Eight bits of significand, and sums of a few layers.
                assert 1e-5 < difference < 0.05, (shard.name, name, difference)


@needs_bf16
def test_the_same_bytes_in_every_way_of_running(both):
    folder, common = both
    for number, more in enumerate((["--recompute", "on"], ["--threads", 1], ["--max-memory", "1GiB", "--recompute", "on"])):
        collect(*common, "-o", folder / f"again{number}.acts", "--dtype", "bf16", *more)
        assert shards(folder / f"again{number}.acts") == shards(folder / "bf16.acts"), more


@needs_bf16
def test_never_mixed_with_f32(both):
    folder, common = both
    error = collect(*common, "-o", folder / "bf16.acts", "--resume", code=3).stderr
    assert "decoder" in error
    error = kvcc("merge", folder / "f32.acts", folder / "bf16.acts", "-o", folder / "c.acts", code=3)[1]
    assert "decoder" in error
