"""Shell scripts of the tree parse, can be run by their names, and are clean for shellcheck where it is installed."""
import os
import re
import shutil
import subprocess

import pytest

from support import SOURCE

FOLDERS = ("calib", "codegen", "datasets", "formats", "kernels", "tests")
SCRIPTS = sorted(path for folder in FOLDERS for path in (SOURCE / folder).rglob("*.sh"))


def test_there_are_scripts():
    assert {"tests/fuzz/run.sh", "tests/gpu/run.sh"} <= {str(path.relative_to(SOURCE)) for path in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_bash_parses_it(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert script.read_text().startswith("#!/usr/bin/env bash\n") and os.access(script, os.X_OK), "make runs it by its name"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_shellcheck_finds_nothing(script):
    if shutil.which("shellcheck") is None:
        pytest.skip("SKIPPED: no shellcheck (Debian: shellcheck)")
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


FUZZER = """#!/usr/bin/env bash
if [ -z "${KVCC_FUZZ_TARGET:-}" ]; then printf '%s\\n' TARGETS; exit; fi
here=$(dirname "$0")
echo "$KVCC_FUZZ_TARGET $*" >> "$here/calls"
input=${*: -1}
if [ -f "$input" ]; then [ "$KVCC_FUZZ_TARGET" != hangs ]; exit; fi
echo "#8 cov: 12 ft: 34 corp: 1"
echo "stat::number_of_executed_units: 5"
case $KVCC_FUZZ_TARGET in
  bad) echo "it broke"; exit 77 ;;
  hangs | other)
    if [ "$KVCC_FUZZ_TARGET" = hangs ] || [ "$(grep -c ^other "$here/calls")" = 1 ]; then
      touch "$here/../finds/$KVCC_FUZZ_TARGET-timeout-0af"
      echo "Test unit written to $here/../finds/$KVCC_FUZZ_TARGET-timeout-0af"
      exit 70
    fi ;;
esac
"""


@pytest.fixture
def build(tmp_path):
    """A build folder whose fuzzers are stand-ins with the targets `good`, `bad` (breaks), `hangs`, `other` (has a timeout once, which
    does not come again), `more` and `last`."""
    (tmp_path / "tests").mkdir()
    for name, targets in (("model", "good bad hangs"), ("store", "other"), ("cache", "more"), ("data", "last")):
        program = tmp_path / f"tests/fuzz_{name}"
        program.write_text(FUZZER.replace("TARGETS", targets))
        program.chmod(0o755)
    return tmp_path


def fuzz(*arguments):
    return subprocess.run([SOURCE / "tests/fuzz/run.sh", *map(str, arguments)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("jobs", [1, 3])
def test_fuzzing_runs_every_target_and_tells_what_was_found(build, jobs):
    done = fuzz(build, 90, "", jobs)
    calls = (build / "tests/calls").read_text()
    assert sorted(line.split()[0] for line in calls.splitlines()) == ["bad", "good", *["hangs"] * 2, "last", "more", *["other"] * 3]
    assert "-max_total_time=90 " in calls and f"{SOURCE}/tests/corpus/good" in calls
    for name, runs in (("good", 5), ("other", 10), ("more", 5), ("last", 5)):
        assert re.search(rf"^{name}: \d+ s, {runs} runs, cov: 12 ft: 34, nothing found$", done.stdout, re.M), done.stdout
    assert "bad: FOUND" in done.stdout and "it broke" in done.stdout and "hangs: FOUND" in done.stdout and done.returncode == 1
    assert [path.name for path in (build / "finds").iterdir()] == ["hangs-timeout-0af"]


def test_fuzzing_one_target(build):
    done = fuzz(build, 90, "more")
    assert done.returncode == 0 and done.stdout.startswith("more: ") and done.stdout.count("\n") == 1
    assert fuzz(build, 90, "nonsense").returncode == 2
