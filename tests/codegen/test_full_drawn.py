"""Legal configurations of layout mma-1 that are in no list, drawn at random, compile without spills. The seed is new every day;
KVCC_SEED repeats a run."""
import datetime
import os
import subprocess

import pytest

from support import SOURCE

SEED = int(os.environ.get("KVCC_SEED", datetime.date.today().strftime("%Y%m%d")))
COUNT = 60


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_drawn_configurations(nvcc, driver, cache, arch):
    print(f"seed {SEED}")
    lines = driver("compile_proof", cache, arch, 1, f"@drawn:{SEED}:{COUNT}").splitlines()
    print("\n".join(lines))
    assert len(lines) >= COUNT
    assert all(int(line.split()[3]) == 0 and int(line.split()[4]) <= 99 * 1024 for line in lines)


def test_drawn_configurations_compile_for_the_emulator(driver, tmp_path):
    for line in driver("write_units", tmp_path, f"@drawn:{SEED}:{COUNT}").splitlines():
        subprocess.run(["c++", "-x", "c++", "-std=c++20", "-DKVCC_EMULATE", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE}", "-fsyntax-only",
                        tmp_path / f"{line.split()[0]}.cu"], check=True)
