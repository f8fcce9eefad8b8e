"""ThreadSanitizer, which the emulator drives, finds every seeded race and nothing in what has none."""

import os
import pathlib
import subprocess

import pytest

PROGRAM = pathlib.Path(os.environ["KVCC_BUILD"]) / "tests/bin/emulated_races"
RACES = 66  # exit code of a program in which ThreadSanitizer has found something

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="built with other sanitizers: no program for ThreadSanitizer")


def run(bug):
    command = [PROGRAM, bug]
    if subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0:
        command = ["setarch", "-R", *command]  # some kernels' address randomisation is too wide for the sanitizer
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_what_is_ordered_is_not_reported():
    done = run("none")
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize(
    "bug",
    [
        "barrier-after-table",
        "warp-barrier-before-read",
        "warp-barrier-before-write",
        "shuffle-for-a-barrier",
        "wait-after-barrier",
        "barrier-before-reuse",
        "blocks-overlap",
        "counter-not-atomic",
        "fence-before-ticket",
        "fence-after-ticket",
    ],
)
def test_seeded_race_is_reported(bug):
    done = run(bug)
    assert done.returncode == RACES, f"{bug}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert "data race" in done.stderr
    assert "races.cc" in done.stderr  # the line of the kernel
    assert "' (tid=" in done.stderr and "block (" in done.stderr  # which thread of which block
