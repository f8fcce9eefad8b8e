"""Where nvcc is, for the tests that compile."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support import BUILD, SOURCE


def _nvcc():
    places = [shutil.which("nvcc")]
    places += [Path(root) / "bin/nvcc" for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if root]
    places += (SOURCE / ".venv/lib").glob("python3*/site-packages/nvidia/cu13/bin/nvcc")
    return next((str(place) for place in places if place and Path(place).exists()), None)


@pytest.fixture(scope="session")
def nvcc():
    path = _nvcc()
    if path is None:
        pytest.skip("SKIPPED: no nvcc, nothing was compiled ('make nvcc' gets one)")
    return path


@pytest.fixture(scope="session")
def driver():
    """Runs a driver of tests/codegen/drivers and returns its output; fails with its words."""
    def run(name, *arguments):
        done = subprocess.run([str(BUILD / "tests/bin" / name), *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout
    return run
