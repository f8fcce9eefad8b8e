"""What the tests of faults share: a tiny model's files, every verb that writes, and ways to make it fail."""
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from random import Random

import pytest

from support import BUILD, SOURCE, kvcc, random_ids, tiny_llama

CALLS = ("open", "write", "close", "fsync", "rename", "link", "mkdir")
SCHEME, OTHER = "kvcc-nuq3-1%-sink1", "kvcc-nuq2-1%-sink1"
FORMATS = {"safetensors": "s.safetensors", "npz": "s.npz", "json": "s.json", "header": "s.h", "gguf": "s.gguf",
           "vllm": "v.safetensors"}


def shim(folder):
    """The library that makes one system call fail (fault_shim.c)."""
    library = folder / "fault_shim.so"
    subprocess.run(["gcc", "-std=c11", "-O1", "-shared", "-fPIC", "-o", library, SOURCE / "tests/endtoend/fault_shim.c", "-ldl"],
                   check=True)
    return library


def contents(folder, leave_out=()):
    """{name: bytes} of the files of a folder, or of one file."""
    if folder.is_file():
        return {folder.name: folder.read_bytes()}
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in leave_out}


class Files:
    """Inputs of every verb, made once: `folder` has a space and letters beyond ASCII in its name."""

    def __init__(self, folder):
        self.folder, self.model = folder, folder / "модель é"
        tiny_llama(self.model, num_hidden_layers=2, initializer_range=0.12, head_dim=64)
        for name, seed in (("a", 0), ("b", 1)):
            random_ids(folder / f"{name}.npy", 2, 48, seed=seed)
            random_ids(folder / f"{name}-prompt.npy", 1, 48, seed=seed)
            kvcc("collect", self.model, "-o", folder / f"{name}.acts", "--ids", folder / f"{name}.npy", "--samples", 2,
                 "--seqlen", 48)
            kvcc("fit", folder / f"{name}.acts", "--scheme", SCHEME, "-o", folder / f"{name}.kvcb")

    def verbs(self, which="a"):
        """{verb: (arguments without the output, name of the output, arguments to replace or resume)}; `which` of the two texts."""
        f = self.folder
        book, acts, ids = f / f"{which}.kvcb", f / f"{which}.acts", f / f"{which}.npy"
        verbs = {
            "collect": (["collect", self.model, "--ids", ids, "--samples", 2, "--seqlen", 48], "x.acts", ["--force"]),
            "fit": (["fit", acts, "--scheme", SCHEME, "--threads", 1], "new folder/x.kvcb", ["--force"]),
            "merge": (["merge", f / "a.acts", f / "b.acts", *(["--copy"] if which == "b" else [])], "m.acts", ["--force"]),
            "compile": (["compile", book, "--arch", "sm_80", "--emit-only", "--cache-dir", f / "cache"], "kernels é", []),
            "generate": (["generate", self.model, "--codebook", book, "--ids", f / f"{which}-prompt.npy", "--tokens", 2, "--ignore-eos"],
                         "c.kvcache", []),
        }
        for format, name in FORMATS.items():
            verbs["export " + format] = (["export", book, "--to", format, *(["--per-head"] if format == "vllm" and which == "b"
                                                                            else [])], name, [])
        return verbs


def command(arguments, output):
    option = "--save-cache" if arguments[0] == "generate" else "-o"
    return [str(BUILD / "libexec/kvcc" / f"kvcc-{arguments[0]}"), *map(str, arguments[1:]), option, str(output)]


def run(words, **environment):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=300, env={**os.environ, **environment})


def ended(done):
    """How a run ended, for messages."""
    return f"exit {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"


def leftovers(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*.partial*"))


def points(library, words, folder):
    """{call: number of times} that a run of `words` makes."""
    log = folder / "points.txt"
    done = run(words, LD_PRELOAD=str(library), KVCC_FAULT_COUNT=str(log))
    assert done.returncode == 0, ended(done)
    counts = dict.fromkeys(CALLS, 0)
    for line in log.read_text().splitlines():
        call, number = line.split()
        counts[call] = max(counts[call], int(number))
    log.unlink()
    return counts


def in_a_namespace(script, *words):
    """A shell script with mounts of its own, which end with it; skips where there can be none."""
    for options in (["-m"], ["-rm"]):
        if subprocess.run(["unshare", *options, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0:
            return subprocess.run(["unshare", *options, "bash", "-c", script, "bash", *map(str, words)], capture_output=True, text=True)
    pytest.skip("SKIPPED: no mount namespace (unshare -m) for this user")


def german(folder):
    """Environment with a decimal comma: a locale compiled to `folder`, nothing of the system changes."""
    if shutil.which("localedef") is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        pytest.skip("SKIPPED: no localedef, or no source of de_DE (Debian: locales)")
    folder.mkdir()
    subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", folder / "de_DE.UTF-8"], check=True, capture_output=True)
    return {"LOCPATH": str(folder), "LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"}


def stop(process, number=signal.SIGKILL):
    if process.poll() is None:
        process.send_signal(number)
    return process.wait(60)


def steps(files, folder, light):
    """Words of runs that may be repeated until they succeed: the whole chain in `folder`; `light`: without what runs a model."""
    def words(*arguments):
        return [str(BUILD / "bin/kvcc"), *map(str, arguments), "--quiet"]

    acts, book, ids = files.folder / "a.acts", folder / f"x.{SCHEME}.kvcb", files.folder / "a.npy"
    if light:
        yield words("fit", acts, "--scheme", SCHEME, "--scheme", OTHER, "-o", folder / "x", "--resume", "--threads", 1)
    else:
        acts = folder / "x.acts"
        yield words("calibrate", files.model, "-o", folder / "x.kvcb", "--ids", ids, "--samples", 2, "--seqlen", 48, "--scheme", SCHEME,
                    "--scheme", OTHER, "--eval", "--eval-ids", files.folder / "b.npy", "--windows", 2, "--eval-seqlen", 48, "--threads", 1)
    yield words("merge", acts, files.folder / "b.acts", "-o", folder / "m.acts", "--copy", "--resume")
    yield words("fit", folder / "m.acts", "--scheme", SCHEME, "-o", folder / "m.kvcb", "--resume", "--threads", 1)
    for format, name in FORMATS.items():
        yield words("export", book, "--to", format, "-o", folder / name)
    yield words("compile", book, "--arch", "sm_80", "--emit-only", "-o", folder / "kernels", "--cache-dir", files.folder / "cache")
    if not light:
        yield words("generate", files.model, "--codebook", book, "--ids", files.folder / "a-prompt.npy", "--tokens", 4, "--ignore-eos", "--save-cache",
                    folder / "c.kvcache")


def chain_with_kills(runs, wanted, random, seconds):
    """Does `runs`, killing runs (and what they started) at random moments until `wanted` kills are used up; `seconds`: of
    each step undisturbed. Returns the number of kills."""
    kills = 0
    for words, usual in zip(runs, seconds):
        while True:
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
            killed = False
            if kills < wanted and random.random() < 0.9:
                try:
                    process.wait(random.uniform(0, 1.1 * usual))
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    killed = True
            _, errors = process.communicate(timeout=300)
            if killed and process.returncode == -signal.SIGKILL:
                kills += 1
                continue
            assert process.returncode == 0, f"{words}\n{errors[-2000:]}"
            break
    return kills


def killed_chain(files, folder, wanted, seed, light=False):
    """The chain undisturbed, then with kills until there were `wanted`, each time from the start: the same bytes. Returns the kills."""
    whole, seconds = folder / "whole", []
    whole.mkdir()
    for words in steps(files, whole, light):
        begin = time.time()
        done = run(words)
        assert done.returncode == 0, ended(done)
        seconds.append(time.time() - begin)
    random, kills = Random(seed), 0
    timed = ("x.fit.json", "x.eval.json")  # hold seconds and names of folders
    while kills < wanted:
        place = folder / "killed"
        place.mkdir()
        kills += chain_with_kills(steps(files, place, light), wanted - kills, random, seconds)
        assert contents(place, leave_out=timed) == contents(whole, leave_out=timed)
        assert leftovers(place) == []
        shutil.rmtree(place)
    return kills
