"""kvcc calibrate and its stages' failures. collect and eval are stand-ins (no model is run); fit and compile are real."""
import json
import os
import signal
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import BUILD

SCHEME = "kvcc-nuq2-1%-sink1"
STAND_IN = f"""#!{sys.executable}
import json, os, signal, subprocess, sys, time
verb, words = os.path.basename(sys.argv[0]), sys.argv[1:]
log = os.path.join(os.path.dirname(sys.argv[0]), "calls")
open(log, "a").write(verb + " " + " ".join(words) + "\\n")
how = os.environ.get("STAND_IN_" + verb[5:].upper(), "")
if how == "killed":
    os.kill(os.getpid(), int(os.environ.get("STAND_IN_SIGNAL", "9")))
if how.isdigit():
    sys.exit(int(how))
if how == "waits":  # and counts the interrupts that it gets
    got = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda n, frame: got.append(n))
    open(log, "a").write("ready\\n")
    while not got:
        time.sleep(0.02)
    time.sleep(0.5)
    open(log, "a").write("signals %s\\n" % got)
    if "--json" in words:
        print(json.dumps({{"schema_version": 1, "error": {{"code": 130, "message": "interrupted", "hint": ""}}}}))
    sys.exit(130)
if verb == "kvcc-collect":
    folder = words[words.index("-o") + 1]
    if not os.path.exists(folder) and "--dry-run" not in words:
        subprocess.run([{str(BUILD / "tests/bin/make_activations")!r}, folder, "3", "64", "3", "1", "wide"], check=True)
else:
    books = [words[i + 1] for i, word in enumerate(words) if word == "--codebook"]
    row = dict(nll=2.0, perplexity=7.4, dnll=0.1, kl=0.1, kl_se=0.01, top1_agreement=0.9)
    print(json.dumps({{"schema_version": 1, "model": words[0], "results": [dict(row, scheme="fp", codebook="")] + [dict(row, scheme="x", codebook=b) for b in books]}}))
"""


class Tree:
    def __init__(self, root):
        self.programs, self.work = root / "tree é/libexec/kvcc", root / "work é"
        self.programs.mkdir(parents=True)
        self.work.mkdir()
        for verb in ("calibrate", "fit", "compile"):
            shutil.copy(BUILD / f"libexec/kvcc/kvcc-{verb}", self.programs)
        for verb in ("collect", "eval"):
            self.put(self.programs / f"kvcc-{verb}", STAND_IN)
        (self.work / "model.gguf").write_text("not read by the stand-ins")
        (self.work / "ids.npy").write_text("nor this")

    @staticmethod
    def put(path, text):
        path.write_text(text)
        path.chmod(0o755)

    def command(self, *words):
        return [self.programs / "kvcc-calibrate", self.work / "model.gguf", "-o", self.work / "out.kvcb", "--scheme", SCHEME,
                "--cache-dir", self.work / "cache", *map(str, words)]

    def environment(self, **env):
        return {**os.environ, "KVCC_SHARE": str(BUILD / "share/kvcc"), "KVCC_DATA": "", **env}

    def run(self, *words, code=0, **env):
        done = subprocess.run(self.command(*words), capture_output=True, text=True, env=self.environment(**env))
        assert done.returncode == code, f"exit {done.returncode}, wanted {code}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words, **kw):
        done = self.run(*words, "--json", **kw)
        return json.loads(done.stdout), done.stderr  # F53: one document and nothing else

    def calls(self):
        log = self.programs / "calls"
        return log.read_text() if log.exists() else ""


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


@pytest.fixture
def fake_nvcc(tree):
    """Compiles for sm_80 alone, and fails."""
    folder = tree.work / "fake"
    folder.mkdir()
    tree.put(folder / "nvcc", "#!/bin/sh\ncase \"$1\" in --version) echo V13.0.88;; --list-gpu-arch) echo compute_80;;\n"
                              "*) echo 'ptxas error : Registers are spilled to local memory'; exit 255;; esac\n")
    return str(folder / "nvcc")


def test_the_chain(tree):
    document, _ = tree.json("--eval", "--eval-ids", tree.work / "ids.npy")
    row = document["results"][0]
    assert row["scheme"] == SCHEME and Path(row["codebook"]).exists() and row["kl"] == 0.1
    assert document["full_precision"]["perplexity"] == 7.4
    # Done before: eval is not run again, and the report is of what was measured then.
    tree.json("--eval", "--eval-ids", tree.work / "ids.npy", "--html", tree.work / "r.html")
    assert tree.calls().count("kvcc-eval") == 1
    page = (tree.work / "r.html").read_text()
    assert '"perplexity":7.4' in page and page.startswith("<!doctype html>")
    tree.run("--html", tree.work / "r.html", code=2)  # without --eval there is nothing to draw
    assert "folder" in tree.run("--eval", "--html", tree.work / "no/r.html", code=3).stderr


def test_a_plan_makes_no_folder(tree):
    command = tree.command("--dry-run")
    command[command.index("-o") + 1] = tree.work / "new/out.kvcb"
    subprocess.run(command, check=True, capture_output=True, env=tree.environment())
    assert "--dry-run" in tree.calls() and not (tree.work / "new").exists()


def test_permission_to_go_beyond_the_context_reaches_both_stages(tree):
    tree.run("--beyond-context", "--eval", "--eval-ids", tree.work / "ids.npy")
    calls = [line for line in tree.calls().splitlines() if "--beyond-context" in line]
    assert [line.split()[0] for line in calls] == ["kvcc-collect", "kvcc-eval"]


def test_without_nvcc_the_rest_is_done_with_a_warning(tree):
    document, err = tree.json("--compile", "sm_80", "--eval", "--eval-ids", tree.work / "ids.npy",
                                KVCC_NVCC="/nowhere/nvcc")
    assert document["results"][0]["kl"] == 0.1 and "kernels" not in document["results"][0]
    assert "warning" in err and "not be compiled" in err and "--emit-only" in err and "pip install" in err


def test_F53_a_failed_compilation_fails_with_one_document(tree, fake_nvcc):
    document, err = tree.json("--compile", "sm_80", code=1, KVCC_NVCC=fake_nvcc)
    assert "Registers are spilled" in document["error"]["message"] and "results" not in document
    assert err.count("Registers are spilled") == 1
    done = tree.run("--compile", "sm_80", code=1, KVCC_NVCC=fake_nvcc)
    assert done.stdout == "" and done.stderr.count("Registers are spilled") == 1


def test_a_stage_that_says_nothing_still_gives_one_document(tree):
    document, _ = tree.json(code=3, STAND_IN_COLLECT="3")
    assert document["error"]["code"] == 3 and "collect" in document["error"]["message"]


@pytest.mark.parametrize("number, code", [(signal.SIGKILL, 4), (signal.SIGSEGV, 1)])
def test_a_killed_stage_is_named(tree, number, code):
    document, err = tree.json(code=code, STAND_IN_COLLECT="killed", STAND_IN_SIGNAL=str(int(number)))
    assert "kvcc collect" in document["error"]["message"] and f"signal {int(number)}" in document["error"]["message"]
    assert ("memory" in document["error"]["hint"]) == (number == signal.SIGKILL)


def test_a_missing_or_unloadable_stage_says_why(tree):
    document, _ = tree.json(code=1, STAND_IN_COLLECT="127")
    assert "KVCC_TORCH_LIB" in document["error"]["hint"]
    (tree.programs / "kvcc-collect").unlink()
    document, _ = tree.json(code=1)
    assert "not installed" in document["error"]["message"] and "KVCC_TORCH" in document["error"]["hint"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_of_the_terminal_reaches_the_stage_once(tree, number):
    """A terminal interrupts every process of the group; a second signal would end the stage without saving."""
    process = subprocess.Popen(tree.command("--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=tree.environment(STAND_IN_COLLECT="waits"), process_group=0)
    end = time.time() + 60
    while "ready" not in tree.calls() and time.time() < end:
        time.sleep(0.02)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert f"signals [{int(number)}]" in tree.calls().replace("<Signals.SIGINT: 2>", "2"), tree.calls()
    assert "--resume" in json.loads(out)["error"]["hint"] and "to go on: kvcc calibrate" in err


def test_options_of_later_stages_are_checked_first(tree, fake_nvcc):
    some = tree.work / "text.txt"
    some.write_text("text")
    for words, code, said in ((["--compile", "nonsense"], 2, "sm_80"), (["--compile", "sm_70"], 2, "sm_70"),
                              (["--eval", "--windows", "-1"], 2, "--windows"), (["--eval", "--eval-seqlen", "1"], 2, "--eval-seqlen"),
                              (["--eval", "--eval-ids", "none.npy"], 3, "none.npy"), (["--eval", "--eval-text", "none.txt"], 3, "none.txt"),
                              (["--eval", "--eval-ids", some, "--eval-text", some], 2, "--eval-"),
                              (["--eval", "--eval-dataset", "wikitext-3"], 2, "wikitext-2"),
                              (["--text", some, "--eval"], 3, "wikitext-2"),
                              (["--windows", "3"], 2, "--eval"), (["--eval-ids", tree.work / "ids.npy"], 2, "--eval")):
        document, _ = tree.json(*words, code=code, KVCC_NVCC=fake_nvcc)
        assert said in document["error"]["message"] + document["error"]["hint"], words
        assert tree.calls() == "", f"{words}: a stage was run before"
