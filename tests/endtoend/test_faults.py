"""Faults while running: full disks, errors of the disk, kills, read-only folders, a decimal comma, two processes on one
output, inputs that change, little memory. Nothing under its final name is ever less than whole, and what was good stays.
test_full_faults.py goes over all places; here are some of each."""
import errno
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest

from faults import (FORMATS, Files, command, contents, ended, german, in_a_namespace, killed_chain, leftovers, points, run,
                    shim)
from support import BUILD, random_ids

LIGHT = ["fit", "merge", "compile", "export safetensors", "export vllm"]
ALL = ["collect", "fit", "merge", "compile", "generate", *("export " + f for f in FORMATS)]
FOLDERS = {"collect", "merge", "compile"}  # verbs that write folders
SEVERAL = FOLDERS | {"export vllm"}  # and those that write several files
RESUMED = {"collect": ["--resume"], "fit": ["--resume"], "merge": ["--resume"]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults") / "Загрузки モデル é"
    folder.mkdir()
    return Files(folder)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def undisturbed(files, tmp_path_factory):
    """{(verb, which): what an undisturbed run writes}, made when asked for."""
    made = {}

    def of(verb, which="a"):
        if (verb, which) not in made:
            folder = tmp_path_factory.mktemp("undisturbed")
            arguments, output, _ = files.verbs(which)[verb]
            done = run(command(arguments, folder / output))
            assert done.returncode == 0, ended(done)
            made[verb, which] = contents(folder)
        return made[verb, which]
    return of


def some(counts, share):
    """(call, n) of a share of all points: the first, the last, and others between."""
    return [(call, n) for call, most in counts.items() for n in range(1, most + 1) if n in (1, most) or n % share == 0]


def cases(files, library, verb, folder, share):
    """(whether a good result of other inputs is there, call, n, the arguments, the output) of every case, in a new `folder`/place."""
    arguments, output, replace = files.verbs()[verb]
    other, name, _ = files.verbs("b")[verb]
    place = folder / "place"
    for existing in (False, True):
        if existing and verb in ("collect", "merge"):
            continue  # --force starts over: that is what it is for
        whole = arguments + (replace if existing else [])
        todo = [None]
        while todo:
            place.mkdir()
            if existing:
                assert run(command(other, place / name)).returncode == 0
            point = todo.pop(0)
            if point is None:
                todo = some(points(library, command(whole, place / output), folder), share)
                assert len(todo) > 3
            else:
                yield existing, *point, whole, place, place / output
            shutil.rmtree(place)


def check_failing(files, library, undisturbed, verb, folder, code, share=1):
    """Every call that writes fails once, at a new name and over a good result of other inputs."""
    failed = 0
    for existing, call, n, arguments, place, output in cases(files, library, verb, folder, share):
        before = contents(place)
        done = run(command(arguments, output), LD_PRELOAD=str(library), KVCC_FAULT=f"{call}:{n}:{code}")
        what = f"{verb}, {call} {n} fails, over another: {existing}\n{ended(done)}"
        assert leftovers(place) == [], what
        check_pieces(undisturbed, verb, place, what)
        if done.returncode == 0:  # a call whose failing is no harm
            assert contents(place) == undisturbed(verb), what
            continue
        failed += 1
        assert done.returncode == (4 if code in (errno.ENOSPC, errno.EDQUOT) else 1), what
        assert str(place) in done.stderr and os.strerror(code) in done.stderr and done.stderr.count(": error: ") == 1, what
        # Of several files the names come one by one, when all are written; a folder may be new.
        if verb not in SEVERAL or (existing and call not in ("rename", "fsync")):
            assert contents(place) == before, what
    assert failed > 3, f"{verb}: the faults were not met"


def check_pieces(undisturbed, verb, place, what):
    """Each file that has its final name is whole: as one of the two undisturbed runs writes it."""
    whole = [undisturbed(verb, which) for which in "ab"]
    for name, data in contents(place, leave_out=("manifest.json", "manifest.journal")).items():
        assert name.endswith(".partial") or data in [known.get(name) for known in whole], f"{name} is no whole file\n{what}"


def check_killed(files, library, undisturbed, verb, folder, share=1):
    """kill -9 at every call that writes; then the same command again."""
    kills = 0
    for existing, call, n, arguments, place, output in cases(files, library, verb, folder, share):
        before = contents(place)
        done = run(command(arguments, output), LD_PRELOAD=str(library), KVCC_FAULT=f"{call}:{n}:kill")
        what = f"{verb}, killed at {call} {n}, over another: {existing}\n{ended(done)}"
        assert done.returncode == -signal.SIGKILL, what
        kills += 1
        check_pieces(undisturbed, verb, place, what)
        if verb not in SEVERAL:
            there = {name: data for name, data in contents(place).items() if not name.endswith(".partial")}
            assert there in (before, undisturbed(verb)), what
        again = run(command(arguments + ([] if existing else RESUMED.get(verb, [])), output))
        assert again.returncode == 0, f"{what}\nagain: {ended(again)}"
        assert contents(place) == undisturbed(verb), what
    assert kills > 3


# ---- disk

@pytest.mark.parametrize("verb", LIGHT)
def test_F43_an_error_of_the_disk_leaves_what_was_there(files, library, undisturbed, tmp_path, verb):
    check_failing(files, library, undisturbed, verb, tmp_path, errno.ENOSPC, share=8)


def test_F43_errors_other_than_a_full_disk(files, library, undisturbed, tmp_path):
    check_failing(files, library, undisturbed, "fit", tmp_path, errno.EIO, share=4)


@pytest.mark.parametrize("verb", ALL)
def test_F43_file_size_limit(files, tmp_path, verb):
    arguments, output, _ = files.verbs()[verb]
    done = subprocess.run(command(arguments, tmp_path / output), capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)))
    assert done.returncode == 4 and "file size limit" in done.stderr and "needed" in done.stderr, ended(done)
    assert str(tmp_path) in done.stderr and not [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 300]
    assert leftovers(tmp_path) == []


SPLIT = """IFS=$'\\x1f' read -r -d '' -a list < <(printf '%s\\0' "$words")"""  # one argument holds the words of a command


def test_F43_a_full_file_system(files, tmp_path):
    """A tmpfs that holds a good artifact and has a page left. Each verb is tried; then what lies there is listed."""
    verbs = [verb for verb in ALL if verb != "export vllm"]  # which fits
    words = ["\x1f".join(command(files.verbs()[verb][0], tmp_path / "full" / files.verbs()[verb][1])) for verb in verbs]
    script = f"""full=$1 good=$2; shift 2
    mount -t tmpfs -o size=512k tmpfs "$full" && cp "$good" "$full/good.kvcb" || exit 9
    cat /dev/zero > "$full/filler" 2>/dev/null; truncate -s -4096 "$full/filler"
    for words; do
      {SPLIT}
      "${{list[@]}}" 2>&1 >/dev/null | tail -n 1; echo "exit ${{PIPESTATUS[0]}}"
    done
    cmp "$good" "$full/good.kvcb" && find "$full" -type f -printf '%P\n'"""
    (tmp_path / "full").mkdir()
    done = in_a_namespace(script, tmp_path / "full", files.folder / "a.kvcb", *words)
    lines = done.stdout.splitlines()
    for verb, line, code in zip(verbs, lines[::2], lines[1::2]):
        assert code == "exit 4" and "disk full" in line and "needed" in line and str(tmp_path / "full") in line, (verb, line, code)
    left = lines[2 * len(verbs):]
    assert sorted(name for name in left if not name.endswith("manifest.json")) == ["filler", "good.kvcb"], done.stdout + done.stderr


def test_read_only_folders_are_named(files, tmp_path):
    words = ["\x1f".join(command(files.verbs()[verb][0], tmp_path / "fixed" / files.verbs()[verb][1])) for verb in ALL]
    script = f"""mount -t tmpfs -o ro tmpfs "$1" || exit 9
    shift
    for words; do
      {SPLIT}
      "${{list[@]}}" 2>&1 >/dev/null | tail -n 1; echo "exit ${{PIPESTATUS[0]}}"
    done"""
    (tmp_path / "fixed").mkdir()
    lines = in_a_namespace(script, tmp_path / "fixed", *words).stdout.splitlines()
    for verb, line, code in zip(ALL, lines[::2], lines[1::2], strict=True):
        assert code == "exit 1" and str(tmp_path / "fixed") in line, (verb, line, code)
        assert "cannot be written: Read-only file system" in line, (verb, line)


# ---- kills

@pytest.mark.parametrize("verb", LIGHT)
def test_F45_killed_anywhere_and_run_again(files, library, undisturbed, tmp_path, verb):
    check_killed(files, library, undisturbed, verb, tmp_path, share=10)


def test_F45_the_chain_killed_at_random_moments(files, tmp_path):
    """A few kills of what runs no model; fifty of all in test_full_faults.py."""
    assert killed_chain(files, tmp_path, 6, seed=1, light=True) == 6


# ---- names and locales

def test_F51_outputs_and_messages_keep_any_path(files, undisturbed, tmp_path):
    """`files` lies in such a folder; the outputs do too, and bytes do not depend on where they lie."""
    folder = tmp_path / "результат № 1" / "ö 出力"
    folder.mkdir(parents=True)
    for verb in ALL:
        arguments, output, _ = files.verbs()[verb]
        done = run(command(arguments + ["--json"], folder / output))
        assert done.returncode == 0, ended(done)
        named = files.model if verb == "generate" else folder / output  # what its document names
        assert str(named) in json.dumps(json.loads(done.stdout), ensure_ascii=False), done.stdout
        made = {k: v for k, v in contents(folder).items() if k in undisturbed(verb)}
        assert made == undisturbed(verb), verb


def test_a_decimal_comma_changes_nothing(files, undisturbed, tmp_path):
    environment = german(tmp_path / "locales")
    comma = run(["python3", "-c", "import locale; locale.setlocale(locale.LC_ALL, ''); print(locale.localeconv()['decimal_point'])"],
                **environment)
    assert comma.stdout == ",\n", "the locale does not work"
    for verb in ALL:
        arguments, output, _ = files.verbs()[verb]
        folder = tmp_path / verb
        folder.mkdir()
        done = run(command(arguments, folder / output), **environment)
        assert done.returncode == 0, ended(done)
        assert contents(folder) == undisturbed(verb), verb
    reports = {}
    for name, more in (("C", {"LC_ALL": "C.UTF-8"}), ("de", environment)):
        words = [BUILD / "bin/kvcc", "eval", files.model, "--ids", files.folder / "a.npy", "--codebook", files.folder / "a.kvcb",
                 "--windows", 2, "--seqlen", 48, "--scheme", "int4"]
        text = [run([*words, *end], **more).stdout for end in ([], ["--json"])]
        text += [run([BUILD / "bin/kvcc", "inspect", files.folder / "a.kvcb", *end], **more).stdout for end in ([], ["--json"])]
        text[0] = re.sub(r" +\S+$", "", text[0], flags=re.M)  # the table's last column is of seconds
        reports[name] = [re.sub(r'"seconds": [^,\n]*', "", part) for part in text]
    assert all(reports["C"]) and reports["C"] == reports["de"]


# ---- two processes

@pytest.mark.parametrize("verb", ["fit", "generate", "compile", "collect", "merge", "export json"])
def test_a_second_writer_is_refused_by_name(files, undisturbed, tmp_path, verb):
    """The output is held as a running kvcc holds it."""
    arguments, output, _ = files.verbs()[verb]
    target = tmp_path / output
    target.parent.mkdir(exist_ok=True)
    if verb in FOLDERS:
        target.mkdir()
    held = os.open(target if verb in FOLDERS else f"{target}.partial", os.O_RDONLY if verb in FOLDERS else os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    done = run(command(arguments, target))
    assert done.returncode == 3 and f"{target}: another process is writing it" in done.stderr, ended(done)
    assert "wait for it to end" in done.stderr
    os.close(held)
    done = run(command(arguments, target))
    assert done.returncode == 0, ended(done)
    assert contents(tmp_path) == undisturbed(verb)


def is_held(path):
    """Whether a process has locked the file, seen without touching the lock."""
    try:
        inode = path.stat().st_ino
    except FileNotFoundError:
        return False
    with open("/proc/locks") as locks:
        return any("FLOCK" in line and f":{inode} " in line and "->" not in line for line in locks)


def test_two_fits_of_one_name(files, undisturbed, tmp_path):
    """The first is stopped in the middle of its work, and goes on when the second was refused."""
    arguments, _, _ = files.verbs()["fit"]
    first = subprocess.Popen(command(arguments, tmp_path / "x.kvcb"), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while first.poll() is None and not is_held(tmp_path / "x.kvcb.partial"):
        time.sleep(0.0005)
    first.send_signal(signal.SIGSTOP)
    second = None
    if is_held(tmp_path / "x.kvcb.partial"):
        second = run(command(arguments, tmp_path / "x.kvcb"))
    first.send_signal(signal.SIGCONT)
    assert first.wait(60) == 0
    assert second is None or second.returncode == 3 and "another process is writing it" in second.stderr, ended(second)
    assert (tmp_path / "x.kvcb").read_bytes() == next(iter(undisturbed("fit").values()))


# ---- inputs that change

def stopped_in_the_middle(words, sign):
    """A process that is stopped when `sign` gives true."""
    process = subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not sign():
        time.sleep(0.001)
    assert process.poll() is None, "it was done too early"
    process.send_signal(signal.SIGSTOP)
    return process


@pytest.mark.parametrize("how", ["truncated", "written to", "replaced"])
def test_a_model_that_changes_while_it_is_read(files, tmp_path, how):
    model, out = tmp_path / "модель", tmp_path / "a.acts"
    shutil.copytree(files.model, model)
    random_ids(tmp_path / "many.npy", 40, 192)
    arguments = ["collect", model, "--ids", tmp_path / "many.npy", "--samples", 40, "--seqlen", 192, "--json"]
    process = stopped_in_the_middle(command(arguments, out), lambda: list(out.glob("s0002/l*.h5")))
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    if how == "truncated":
        os.truncate(weights, 4096)
    elif how == "written to":
        with open(weights, "r+b") as file:
            file.seek(len(data) - 400)
            file.write(bytes(400))
    else:  # another file of the name: what was opened is read to the end
        (model / "new").write_bytes(data[:-400] + bytes(400))
        (model / "new").replace(weights)
    process.send_signal(signal.SIGCONT)
    stdout, stderr = process.communicate(timeout=120)
    if how == "replaced":
        assert process.returncode == 0, stderr
        weights.write_bytes(data)
        run(command(arguments, tmp_path / "b.acts"))
        assert contents(out) == contents(tmp_path / "b.acts")
        return
    assert process.returncode == 3, (process.returncode, stderr)
    assert str(weights) in stderr and "while it was read" in stderr
    error = json.loads(stdout)["error"]
    assert error["code"] == 3 and str(weights) in error["message"]
    assert not json.loads((out / "manifest.json").read_text())["complete"]
    weights.write_bytes(data)
    again = run(command(arguments + ["--resume"], out))
    assert again.returncode == 0, ended(again)
    assert run(command(arguments, tmp_path / "b.acts")).returncode == 0
    assert contents(out) == contents(tmp_path / "b.acts")


# ---- memory

@pytest.mark.parametrize("verb", ["export safetensors", "merge", "compile"])
def test_F68_little_memory(files, undisturbed, tmp_path, verb):
    """Limits on the address space from what a program needs to start up to what the work needs: done, or exit 4 and no file."""
    arguments, output, _ = files.verbs()[verb]
    place = tmp_path / "place"

    def limited(kib, *words):
        return subprocess.run(["bash", "-c", f'ulimit -v {kib}; exec "$0" "$@"', *words], capture_output=True, text=True)

    program = command(arguments, place / output)[0]
    low, high = 8 << 10, 1 << 20
    while high - low > 1024:  # to start
        middle = (low + high) // 2
        low, high = (low, middle) if limited(middle, program, "--version").returncode == 0 else (middle, high)
    refused, limit = 0, high
    while True:
        limit += 4000
        place.mkdir()
        done = limited(limit, *command(arguments, place / output))
        if done.returncode == 0:
            assert contents(place) == undisturbed(verb)
            break
        assert done.returncode == 4 and "memory" in done.stderr, f"{limit} KiB\n{ended(done)}"
        assert leftovers(place) == [] and (verb in FOLDERS or not (place / output).exists())
        refused += 1
        shutil.rmtree(place)
        assert refused < 200
    print(f"{verb}: {refused} limits refused, done with {limit} KiB")
