"""kvcc eval's journal: an interrupted evaluation goes on where it was, and gives the same figures."""
import fcntl
import hashlib
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


@pytest.fixture(scope="module")
def journal(command, tmp_path_factory):
    """Lines of the journal of one window."""
    path = tmp_path_factory.mktemp("whole") / "j.jsonl"
    evaluate(*command, "--journal", path, "--windows", 1)
    return path.read_text().splitlines(keepends=True)


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
    evaluate(*command, "--journal", path, "--windows", 1)  # without --resume it is started anew
    assert len(records(path)) == 5


@pytest.mark.parametrize("text", ["hello\n", "hello", '{"kind":"another journal"}\n'])
@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_what_is_no_journal_is_left_as_it_is(command, tmp_path, text, resume):
    """An artifact, say, whose name was given by mistake."""
    path = tmp_path / "j.jsonl"
    path.write_text(text)
    assert f"{path}: is there and no journal" in run("eval", *command, "--journal", path, *resume, code=3).stderr
    assert path.read_text() == text


def test_killed_in_the_first_line(command, journal, tmp_path):
    path = tmp_path / "j.jsonl"
    for cut in (0, len(journal[0]) - 1):
        path.write_text(journal[0][:cut])
        evaluate(*command, "--journal", path, "--windows", 1, "--resume")
        assert len(records(path)) == 5 and path.read_text().startswith(journal[0])


def test_a_second_writer_is_refused_by_name(command, journal, tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text("".join(journal))
    before = path.read_bytes()
    with open(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert f"{path}: another process is writing it" in run("eval", *command, "--journal", path, code=3).stderr
    assert path.read_bytes() == before


def test_a_damaged_record_is_refused(command, journal, tmp_path):
    """Other JSON, members that are missing, twice there or of other types, and any digit that is another: by line."""
    path, lines, line = tmp_path / "j.jsonl", journal, journal[2]
    place = line.index('"kl":"') + 20
    other = line[:place] + ("0" if line[place] != "0" else "1") + line[place + 1:]
    for broken in ("[1]\n", "[" * 100000 + "\n", line.replace('"kl":', '"lk":', 1), line.replace('"run":', '"nur":', 1),
                   line.replace('"run":', '"run":"a","run":', 1), line.replace('"run":"', '"run":1,"was":"', 1), other):
        path.write_text("".join(lines[:2]) + broken + "".join(lines[3:]))
        error = run("eval", *command, "--journal", path, "--windows", 1, "--resume", code=3).stderr
        assert "j.jsonl line 3" in error, error


def sealed(line):
    """The line with the checksum of what it holds now."""
    entry = json.loads(line)
    record = json.dumps(entry["record"], separators=(",", ":"))
    entry["sha256"] = hashlib.sha256(f"{entry['run']}\n{entry['window']}\n{record}".encode()).hexdigest()
    return json.dumps(entry, separators=(",", ":")) + "\n"


@pytest.mark.parametrize("name, change", [
    ("nll", lambda r: r.__setitem__("nll", r["nll"][:-8])), ("nll", lambda r: r.__setitem__("nll", r["nll"][:-3])),
    ("nll", lambda r: r.__setitem__("nll", "-" + r["nll"][1:])), ("kl", lambda r: r.__setitem__("kl", "")),
    ("agreed", lambda r: r.__setitem__("agreed", "1")), ("magnitude", lambda r: r["magnitude"].pop()),
    ("total", lambda r: r.__setitem__("total", [])), ("repairs", lambda r: r.pop("repairs")),
    ("repairs", lambda r: r["repairs"][0].pop()), ("attention", lambda r: r.pop("attention")),
    ("attention", lambda r: r["attention"].pop()), ("attention", lambda r: r["attention"][3].pop()),
    ("attention", lambda r: r["attention"][5].append(1)), ("outliers", lambda r: r.__setitem__("outliers", 1e300)),
])
def test_a_record_of_other_lengths_is_refused(command, journal, tmp_path, name, change):
    """Whoever wrote it, with a right checksum: nothing is read beyond its end."""
    path, lines = tmp_path / "j.jsonl", journal
    assert sealed(lines[2]) == lines[2]
    entry = json.loads(lines[2])
    change(entry["record"])
    path.write_text("".join(lines[:2]) + sealed(json.dumps(entry)) + "".join(lines[3:]))
    error = run("eval", *command, "--journal", path, "--windows", 1, "--resume", code=3).stderr
    assert "journal: window 0" in error or "j.jsonl line 3" in error, error


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
    assert not list((cache / "eval").glob("*"))
