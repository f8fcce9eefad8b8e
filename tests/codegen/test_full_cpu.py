"""Units of the CPU of every shipped row (kernels/list), and of configurations drawn at random: compiled as kvcc compile does it, loaded
and compared with the reference. The seed is new every day; KVCC_SEED repeats a run."""
import datetime
import os
import re
import subprocess

import pytest

from support import BUILD, SOURCE

SEED = int(os.environ.get("KVCC_SEED", datetime.date.today().strftime("%Y%m%d")))
COUNT = 20


def run(units):
    done = subprocess.run([BUILD / "tests/test_codegen", "--gtest_filter=EmittedCpuUnits.OfConfigurationsEqualTheReference"],
                          capture_output=True, text=True, env={**os.environ, "KVCC_UNITS": units})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return re.findall(r"^(\w+): \d units$", done.stdout, re.M)


def test_the_shipped_rows():
    rows = sum(len(re.findall(r"^KVCC_SHIP\w*\(", path.read_text(), re.M))
               for path in (SOURCE / "kernels/list").glob("*.inc"))
    assert len(run("@shipped")) == rows > 30


def test_drawn_configurations():
    print(f"seed {SEED}")
    assert len(run(f"@drawn:{SEED}:{COUNT}")) == COUNT
