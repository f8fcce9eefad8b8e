"""Legal configurations of layout mma-1 that are in no list, drawn at random, compile: without spills, if need be with fewer blocks on a
multiprocessor than their bodies state, or with spills that are counted. The seed is new every day; KVCC_SEED repeats a run."""
import datetime
import os
import subprocess

import pytest

from support import SOURCE

from codegen.bars import ARCHS

SEED = int(os.environ.get("KVCC_SEED", datetime.date.today().strftime("%Y%m%d")))
COUNT = 60
REPEATED = 5  # a draw may give one again


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_drawn_configurations(nvcc, driver, cache, arch):
    print(f"seed {SEED}")
    lines = driver("compile_proof", cache, arch, 1, f"@drawn:{SEED}:{COUNT}").splitlines()
    assert len({line.split()[0] for line in lines}) >= COUNT - REPEATED
    lowered, spilling = [], []
    for line in lines:
        name, symbol, registers, spill, shared, min_blocks, stated = line.split()
        assert int(registers) <= 255 and int(shared) <= 99 * 1024 and 1 <= int(min_blocks) <= int(stated), line
        if int(spill) > 0:
            assert min_blocks == "1", f"{line}: spills, and was given no more registers"
            spilling.append(line)
        elif min_blocks != stated:
            lowered.append(line)
    print(f"{arch}: of {len(lines)} entries {len(lowered)} with fewer blocks, {len(spilling)} spill with one:")
    print("\n".join(lowered + spilling))


@pytest.mark.parametrize("arch", ARCHS)
def test_blocks_that_take_each_page_together_never_spill(nvcc, driver, cache, arch):
    print(f"seed {SEED}")
    lines = driver("compile_proof", cache, arch, 1, f"@by_block:{SEED}:20").splitlines()
    assert len({line.split()[0] for line in lines}) >= 20 - REPEATED
    for line in lines:
        name, symbol, registers, spill, shared, min_blocks, stated = line.split()
        assert int(spill) == 0 and int(registers) <= 255 and int(shared) <= 99 * 1024, line
        assert min_blocks == stated, f"{line}: it spills with as many blocks as its body states"


def test_drawn_configurations_compile_for_the_emulator(driver, tmp_path):
    for line in driver("write_units", tmp_path, f"@drawn:{SEED}:{COUNT}").splitlines():
        subprocess.run(["c++", "-x", "c++", "-std=c++20", "-DKVCC_EMULATE", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE}", "-fsyntax-only",
                        tmp_path / f"{line.split()[0]}.cu"], check=True)
