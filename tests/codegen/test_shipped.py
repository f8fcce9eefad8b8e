"""The shipped rows of layouts mma-1 and vector-1 (kernels/list): each compiles for every architecture without spills, within the registers and the
shared memory that its row states, and under g++ for the emulator."""
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import SOURCE

def compile_for_emulator(source):
    subprocess.run(["c++", "-x", "c++", "-std=c++20", "-DKVCC_EMULATE", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE}", "-fsyntax-only",
                    source], check=True)


ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]


@pytest.fixture(scope="module")
def rows(driver, tmp_path_factory):
    """Name to (registers, bytes of shared memory) of each row, and the folder of the units."""
    folder = tmp_path_factory.mktemp("units")
    lines = [line.split() for line in driver("write_units", folder, "@shipped").splitlines()]
    return {name: (int(registers), int(shared)) for name, registers, shared in lines}, folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("arch", ARCHS)
def test_rows_keep_their_bars(nvcc, driver, cache, rows, arch):
    bars = rows[0]
    over, seen = [], set()
    for line in driver("compile_proof", cache, arch, 1, "@shipped").splitlines():
        name, symbol, registers, spill, shared, min_blocks, stated = line.split()
        seen.add(name)
        assert int(spill) == 0 and min_blocks == stated, f"{line}: it spills with as many blocks as its body states"
        if int(registers) > bars[name][0] or int(shared) > bars[name][1]:
            over.append(f"{symbol}: {registers} registers, {shared} bytes; the row states {bars[name]}")
    assert seen == set(bars) and not over, "\n".join(over)


def test_rows_compile_for_the_emulator(rows):
    bars, folder = rows
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_for_emulator, [folder / f"{name}.cu" for name in bars]))
