"""kvcc eval's journal: an interrupted evaluation goes on where it was, and gives the same figures."""
import fcntl
import json
import os
import signal
import subprocess
import time

import pytest

from calib.eval.test_eval import CALM, PROGRAMS, evaluate, run, without_time
from support import random_ids, tiny_llama


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    folder = tmp_path_factory.mktemp("journal")
    tiny_llama(folder / "model", **CALM)
    random_ids(folder / "windows.npy", 3, 64, seed=1)
    return [folder / "model", "--ids", folder / "windows.npy", "--seqlen", 64, "--scheme", "int4", "--scheme", "int2",
            "--mode", "full,pseudo-decode", "--block", 16, "--repair", 5, "--attention", 4]


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_F45_a_killed_evaluation_goes_on(command, tmp_path):
    """Whatever the journal was cut to, the figures are those of one run, and nothing that is there is done again."""
    whole_path = tmp_path / "whole.jsonl"
    whole = evaluate(*command, "--journal", whole_path)
    lines = whole_path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 3 * (1 + 2 * 2)
    for kept, tail in ((1, b""), (7, lines[7][:100])):
        path = tmp_path / f"cut{kept}.jsonl"
        path.write_bytes(b"".join(lines[:kept]) + tail)
        again = evaluate(*command, "--journal", path, "--resume")
        assert path.read_bytes().splitlines(keepends=True)[:kept] == lines[:kept]
        assert len(records(path)) == len(lines) - 1
        assert without_time(again) == without_time(json.loads(json.dumps(whole)))


def test_what_is_there_serves_other_questions(command, tmp_path):
    """More windows and more schemes: records are found by run and by the window's ids."""
    path = tmp_path / "j.jsonl"
    evaluate(*command, "--journal", path, "--windows", 1)
    before = path.read_bytes()
    evaluate(*command, "--journal", path, "--scheme", "int3", "--resume")
    assert path.read_bytes().startswith(before)
    assert len(records(path)) == 3 * (1 + 3 * 2)
    runs = [(r["run"], r["window"]) for r in records(path)]
    assert len(set(runs)) == len(runs)


def test_another_option_is_another_record(command, tmp_path):
    path = tmp_path / "j.jsonl"
    evaluate(*command, "--journal", path, "--windows", 1)
    one = evaluate(*command[:-6], "--block", 32, "--journal", path, "--windows", 1, "--resume")
    fresh = evaluate(*command[:-6], "--block", 32, "--windows", 1)
    assert without_time(one) == without_time(fresh)


def test_no_journal_of_another_model(command, tmp_path):
    path = tmp_path / "j.jsonl"
    evaluate(*command, "--journal", path, "--windows", 1)
    tiny_llama(tmp_path / "other", seed=5, **CALM)
    error = run("eval", tmp_path / "other", *command[1:], "--journal", path, "--resume", code=3).stderr
    assert "another model" in error and "--journal" in error
    path.write_text("hello\n")
    assert "j.jsonl" in run("eval", *command, "--journal", path, "--resume", code=3).stderr
    evaluate(*command, "--journal", path, "--windows", 1)  # without --resume it is started anew
    assert len(records(path)) == 5


def test_a_damaged_record_is_refused(command, tmp_path):
    path = tmp_path / "j.jsonl"
    evaluate(*command, "--journal", path, "--windows", 1)
    lines = path.read_text().splitlines(keepends=True)
    for broken in ("[1]\n", lines[2].replace('"kl":', '"lk":', 1), lines[2].replace('"run":', '"nur":', 1)):
        path.write_text("".join(lines[:2]) + broken + "".join(lines[3:]))
        error = run("eval", *command, "--journal", path, "--windows", 1, "--resume", code=3).stderr
        assert "j.jsonl" in error


def test_interrupt(command, tmp_path):
    """Ctrl-C says how to go on; the journal in the cache folder is what it goes on with, and goes when all is done."""
    cache = tmp_path / "cache"
    arguments = [str(PROGRAMS / "kvcc-eval"), *map(str, command), "--cache-dir", str(cache), "--json"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.time() + 60
    journal = []
    while time.time() < deadline and process.poll() is None:
        journal = list((cache / "eval").glob("*.jsonl")) if (cache / "eval").exists() else []
        if journal and len(journal[0].read_bytes().splitlines()) > 2:
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.002)
    _, errors = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("SKIPPED: it was done before it could be interrupted")
    assert process.returncode == 130 and "--resume" in errors
    assert len(journal[0].read_bytes().splitlines()) >= 3
    resumed = evaluate(*command, "--cache-dir", cache, "--resume")
    assert without_time(resumed) == without_time(evaluate(*command))
    assert not (cache / "eval").exists()


def test_a_journal_has_one_writer(command, tmp_path):
    """A second evaluation is refused while the first lives, whichever way it would use what is there."""
    path = tmp_path / "j.jsonl"
    evaluate(*command, "--journal", path, "--windows", 1)
    before = path.read_bytes()
    with open(path, "r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for resume in ([], ["--resume"]):
            error = run("eval", *command, "--journal", path, "--windows", 1, *resume, code=3).stderr
            assert "j.jsonl: another evaluation is writing it" in error
    assert path.read_bytes() == before
    evaluate(*command, "--journal", path, "--windows", 1, "--resume")
