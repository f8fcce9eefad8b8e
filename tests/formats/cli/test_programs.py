"""The dispatcher and the programs that read kvcc's files, as users run them."""
import csv
import io
import json
import os
import re
import resource
import shutil
import subprocess

import pytest

from support import BUILD, KVCC, SOURCE, kvcc, kvcc_json

MAKE = BUILD / "tests/bin/make_store"
VERBS = ["ablate", "calibrate", "collect", "fit", "compile", "inspect", "diff", "eval", "generate", "export", "validate", "models", "schemes",
         "data"]


def make(*arguments):
    return subprocess.run([MAKE, *map(str, arguments)], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def artifact(tmp_path):
    path = tmp_path / "Загрузки" / "модель é.kvcb"
    path.parent.mkdir()
    make("codebook", path)
    return path


# ---- dispatcher

def test_help_lists_every_verb():
    for arguments in (["help"], ["--help"], ["-h"]):
        out, err = kvcc(*arguments)
        assert err == ""
        for verb in VERBS:
            assert re.search(rf"^  {verb} ", out, re.M), verb
    assert kvcc("help", "inspect")[0] == kvcc("inspect", "--help")[0]
    out, err = kvcc(code=2)
    assert out == "" and "Usage: kvcc VERB" in err


def test_version():
    out, _ = kvcc("--version")
    assert re.match(r"kvcc \d+\.\d+\.\d+\n", out)
    assert "libtorch: " in out and "nvcc: " in out
    document = kvcc_json("--version")
    for name in ("codebook", "activations", "weights", "kernels"):
        title = (SOURCE / "formats/spec" / f"{name}.md").read_text().split("\n")[0]
        version = re.search(r"[0-9.]+$", title).group()
        assert str(document["formats"][name]) == version and f"{name} {version}" in out, name
    assert {"libtorch", "nvcc"} <= set(document)


def test_version_names_the_nvcc_that_compile_would_use(tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\ncase $1 in --version) echo V13.0.88;; *) echo compute_90;; esac\n")
    nvcc.chmod(0o755)
    assert f"nvcc: 13.0.88 ({nvcc})" in kvcc("--version", env={"KVCC_NVCC": str(nvcc)})[0]
    document = kvcc_json("--version", env={"KVCC_NVCC": str(nvcc)})
    assert document["nvcc"] == "13.0.88" and document["nvcc_path"] == str(nvcc)
    assert "nvcc: /nowhere, which KVCC_NVCC names" in kvcc("--version", env={"KVCC_NVCC": "/nowhere"})[0]
    needed = subprocess.run(["readelf", "-d", KVCC], capture_output=True, text=True, check=True).stdout
    assert "libhdf5" not in needed, "the dispatcher must stay light"


def test_help_of_what_is_no_program():
    for arguments in (["help", "completion"], ["completion", "--help"]):
        assert "Usage: kvcc completion bash|zsh" in kvcc(*arguments)[0]
    assert kvcc("help", "help")[0] == kvcc("help")[0]


def test_calibrate_without_libtorch_says_so(installed):
    shutil.copy(BUILD / "libexec/kvcc/kvcc-schemes", installed / "libexec/kvcc/kvcc-calibrate")
    _, err = kvcc("calibrate", "x", code=1, kvcc_program=installed / "bin/kvcc", env={"KVCC_TORCH_LIB": "", "LD_LIBRARY_PATH": ""})
    assert "libtorch is not in" in err and "set KVCC_TORCH_LIB" in err


def test_misspelt_verb_gets_the_nearest():
    _, err = kvcc("inspct", code=2)
    assert "unknown verb 'inspct'" in err and "did you mean 'inspect'?" in err
    out, _ = kvcc("inspct", "--json", code=2)
    assert json.loads(out)["error"]["hint"] == "did you mean 'inspect'?"
    assert "kvcc help" in kvcc("xyzzy", code=2)[1]


@pytest.fixture
def installed(tmp_path):
    """A tree like the installed one, without the programs that run a model."""
    root = tmp_path / "префикс x"
    (root / "bin").mkdir(parents=True)
    (root / "libexec/kvcc").mkdir(parents=True)
    shutil.copy(KVCC, root / "bin/kvcc")
    shutil.copy(BUILD / "libexec/kvcc/kvcc-schemes", root / "libexec/kvcc/kvcc-schemes")
    return root


def test_programs_are_found_beside_the_dispatcher(installed, tmp_path):
    assert "kvcc-nuq" in kvcc("schemes", kvcc_program=installed / "bin/kvcc")[0]
    link = tmp_path / "link"
    link.symlink_to(installed / "bin/kvcc")
    assert "kvcc-nuq" in kvcc("schemes", kvcc_program=link)[0]


def test_a_verb_without_its_program_says_why(installed):
    _, err = kvcc("eval", code=1, kvcc_program=installed / "bin/kvcc")
    assert "is not installed" in err and "KVCC_TORCH" in err


def test_libtorch_is_looked_for_where_the_environment_says(installed, tmp_path):
    program = installed / "libexec/kvcc/kvcc-eval"
    program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\n')
    program.chmod(0o755)
    torch = tmp_path / "torch lib"
    torch.mkdir()
    (torch / "libtorch_cpu.so").write_text("")
    (torch / "version.py").write_text("__version__ = '2.13.0+cpu'\n")
    run = dict(kvcc_program=installed / "bin/kvcc")
    out, _ = kvcc("eval", "a b", env={"KVCC_TORCH_LIB": str(torch), "LD_LIBRARY_PATH": "/x"}, **run)
    assert out == f"{torch}:/x a b\n"
    assert "2.13.0+cpu" in kvcc("--version", env={"KVCC_TORCH_LIB": str(torch)}, **run)[0]
    _, err = kvcc("eval", code=1, env={"KVCC_TORCH_LIB": "", "LD_LIBRARY_PATH": ""}, **run)
    assert "set KVCC_TORCH_LIB" in err


def test_completion():
    script, _ = kvcc("completion", "bash")
    run = f'PATH="{BUILD}/bin:$PATH"\n{script}\n' + '_try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvcc; echo "${COMPREPLY[@]}"; }\n'
    ask = run + '_try kvcc ins\n_try kvcc inspect --so\n_try kvcc help va\n'
    out = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["inspect", "--sort", "validate"]
    assert kvcc("completion", "zsh")[0].startswith("#compdef kvcc")
    kvcc("completion", "fish", code=2)


# ---- errors and exit codes

def test_usage_errors_are_2_and_name_the_nearest_option(artifact):
    for arguments in (["inspect"], ["inspect", artifact, "extra"], ["inspect", artifact, "--layer", "x"],
                      ["inspect", artifact, "--layer", "-1"], ["inspect", artifact, "--kind", "query"],
                      ["inspect", artifact, "--layer", "1"], ["inspect", artifact, "--sort", "nothing"],
                      ["schemes", "kvcc-nuq9"], ["export", artifact, "--to", "docx", "-o", "x"],
                      ["export", artifact, "--to", "npz", "-o", ""], ["merge", "a", "b", "-o", ""], ["validate"]):
        out, err = kvcc(*arguments, code=2)
        assert out == "" and err.count("\n") == 1 and ": error: " in err, arguments
    assert "did you mean '--layer'?" in kvcc("inspect", artifact, "--lyer", "1", code=2)[1]
    assert "did you mean '--layer'?" in kvcc("inspect", "--lyer=1", code=2)[1], "before what is missing"
    assert "did you mean 'sqnr_db'?" in kvcc("inspect", artifact, "--sort", "sqnrdb", code=2)[1]
    assert "did you mean 'kvcc-nuq4-1%-sink1'?" in kvcc("schemes", "kvvc-nuq4-1%-sink1", code=2)[1]


def test_F53_errors_are_one_json_document(artifact):
    for arguments, code in ((["inspect", artifact.parent / "none.kvcb"], 3), (["inspect", artifact, "--lyer", "1"], 2),
                            (["inspect"], 2), (["validate", artifact.parent / "none.kvcb"], 3)):
        document = kvcc_json(*arguments, code=code)
        assert next(iter(document)) == "schema_version"
        if arguments[0] != "validate":
            assert document["error"]["code"] == code and document["error"]["message"]


def test_F51_paths_are_printed_intact(artifact):
    assert str(artifact) in kvcc("inspect", artifact)[0]
    assert kvcc_json("inspect", artifact)["path"] == str(artifact)
    missing = artifact.parent / "нет.kvcb"
    assert f"{missing}: no such file" in kvcc("inspect", missing, code=3)[1]
    assert str(missing) in kvcc_json("inspect", missing, code=3)["error"]["message"]


def test_paths_that_are_not_utf8(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.kvcb"
    subprocess.run([os.fsencode(MAKE), b"codebook", path], check=True, capture_output=True)
    done = subprocess.run([os.fsencode(KVCC), b"inspect", b"--json", path], check=True, capture_output=True)
    assert json.loads(done.stdout)["kind"] == "codebook"


def test_full_stdout_is_an_error(artifact):
    with open("/dev/full", "w") as full:
        done = subprocess.run([KVCC, "inspect", artifact], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4 and "stdout" in done.stderr


def test_F43_no_file_under_the_final_name_on_a_full_disk(artifact):
    out = artifact.parent / "out.safetensors"
    done = subprocess.run([KVCC, "export", artifact, "--to", "safetensors", "-o", out], capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))
    assert done.returncode == 4, done.stderr
    assert "needed" in done.stderr and "free" in done.stderr
    assert sorted(os.listdir(artifact.parent)) == [artifact.name]


def test_no_color_and_no_escape_codes_off_a_terminal(artifact):
    _, err = kvcc("inspect", artifact.parent / "none", code=3)
    assert "\033" not in err


# ---- inspect and validate

def test_inspect_json_has_the_members_of_cli_md(artifact):
    document = kvcc_json("inspect", artifact)
    assert list(document)[0] == "schema_version"
    assert document["kind"] == "codebook" and document["format_version"] == "1.2"
    assert document["model"]["name"] == "tiny модель" and document["provenance"]["seed"] == 7
    assert document["scheme"].startswith("k=nuq3@prerope/channel") and document["scheme_name"] == "kvcc-nuq3-1%-sink1"
    assert [layer["layer"] for layer in document["layers"]] == [0, 2, 4]
    for layer in document["layers"]:
        for kind in ("key", "value"):
            assert [head["head"] for head in layer[kind]] == [0, 1]
            for head in layer[kind]:
                assert {"codebook", "range_min", "range_max", "outlier_fraction", "fisher_mass", "weighted_sse",
                        "sqnr_db"} <= set(head)
                assert len(head["codebook"]) == 8
    # Worked out by hand from tests/formats/store/made.h: key min ramps from -5.5 by 0.01, 8 channels a head.
    head = document["layers"][0]["key"][1]
    assert head["range_min"] == pytest.approx(-5.42, abs=1e-6)
    assert head["range_max"] == pytest.approx(5.65, abs=1e-6)
    # Fisher ramps from 1e-6 by 1e-8; head 1 has channels 8 to 15: sum 8e-6 + 92e-8, over 32,768 tokens.
    assert head["fisher_mass"] == pytest.approx((8e-6 + 92e-8) * 32768, rel=1e-5)
    # 3 bits, values' 32 bits a token of 12 elements, outliers: keys 1.25 % measured and a pointer, values one a tail.
    measured = sum(0.01 + 0.001 * i for i in range(6)) / 6
    bits = 3 + (32 + measured * 16 * 32 + 32 + 2 * 32) / 28
    constants = 8 * 4 * (2 * 8 + 2 * 8 + 4 * 16) * 3 / (3 * 28 * 2**20)
    assert document["effective_bits"][1]["total"] == pytest.approx(bits + (16 - bits) / 32768 + constants, rel=1e-6)


def test_inspect_filters_and_sorts(artifact):
    document = kvcc_json("inspect", artifact, "--layer", "2", "--kind", "value", "--head", "1")
    assert [layer["layer"] for layer in document["layers"]] == [2]
    assert document["layers"][0]["key"] == [] and len(document["layers"][0]["value"]) == 1
    rows = kvcc("inspect", artifact, "--sort", "sqnr_db", "--top", "3")[0]
    assert re.findall(r"^ *(\d+) +(key|value) +(\d)", rows, re.M) == [("4", "value", "1"), ("4", "key", "1"), ("4", "value", "0")]
    rows = kvcc("inspect", artifact, "--sort", "-sqnr_db", "--top", "1")[0]
    assert re.findall(r"^ *(\d+) +(key|value) +(\d)", rows, re.M) == [("0", "key", "0")]
    rows = list(csv.DictReader(io.StringIO(kvcc("inspect", artifact, "--csv", "--sort", "-sqnr_db", "--top", "2")[0])))
    assert [row["kind"] for row in rows] == ["key", "value"] and [row["layer"] for row in rows] == ["0", "0"]


def same(text, value):
    """A CSV cell and what JSON says."""
    if isinstance(value, list):
        numbers = text.split()
        return len(numbers) == len(value) and all(same(a, b) for a, b in zip(numbers, value))
    return text == "" if value is None else (text == value if isinstance(value, str) else float(text) == pytest.approx(value, rel=1e-6))


def test_csv_and_json_carry_the_same(artifact):
    document = kvcc_json("inspect", artifact)
    rows = iter(csv.DictReader(io.StringIO(kvcc("inspect", artifact, "--csv")[0])))
    for layer in document["layers"]:
        for kind in ("key", "value"):
            for head in layer[kind]:
                row = next(rows)
                assert (row["layer"], row["kind"]) == (str(layer["layer"]), kind)
                assert row["flags"].split() == head["flags"]
                for name, value in head.items():
                    if name == "channels":
                        for channel, values in value.items():
                            assert same(row["channels." + channel], values), (name, channel)
                    elif name != "flags":
                        assert same(row[name], value), name
                known = set(head) | {"layer", "kind"} | {"channels." + name for name in head["channels"]}
                assert all(not cell for name, cell in row.items() if name not in known)
    assert next(rows, None) is None
    kvcc("inspect", artifact, "--csv", "--json", code=2)


def on_a_terminal(columns, *arguments, **environment):
    """What kvcc prints on a terminal of that width."""
    import fcntl
    import pty
    import struct
    import termios
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {"PATH": os.environ["PATH"], "TERM": "xterm", "LANG": "C.UTF-8", **environment}
    process = subprocess.Popen([KVCC, *arguments], stdout=child, stderr=subprocess.DEVNULL, env=env)
    os.close(child)
    data = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        data += part
    os.close(parent)
    assert process.wait() == 0
    return data.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_its_width(tmp_path):
    path = tmp_path / "a.kvcb"
    make("codebook", path, "kvcc-nuq4-1%-sink1", "30")
    for arguments in ((), ("--layer", "4", "--head", "1"), ("--sort", "drift")):
        widths = []
        for columns in (80, 140):
            text = on_a_terminal(columns, "inspect", path, *arguments)
            assert "\x1b[" in text
            plain = re.sub(r"\x1b\[\d+m", "", text)
            assert "\x1b" not in plain
            widths.append(max(map(len, plain.splitlines())))
            assert widths[-1] <= columns
        assert widths[1] > 80, "more where there is room"
    assert "█" in on_a_terminal(80, "inspect", path)
    assert "\x1b" not in on_a_terminal(80, "inspect", path, NO_COLOR="1")
    assert on_a_terminal(80, "inspect", path, LANG="C", NO_COLOR="1").replace("tiny ??????", "").isascii()
    assert "\x1b" not in kvcc("inspect", path)[0], "a file gets no colours"
    wide = kvcc("inspect", path, env={"COLUMNS": "140"})[0]
    assert 80 < max(map(len, wide.splitlines())) <= 140


def test_diff_says_what_changed_and_how_far(artifact, tmp_path):
    import h5py
    out, _ = kvcc("diff", artifact, artifact)
    assert out == "equal\n"
    assert kvcc_json("diff", artifact, artifact)["equal"] is True
    copy = artifact.with_name("copy.kvcb")
    make("codebook", copy)
    kvcc("diff", artifact, copy)
    other = artifact.with_name("other.kvcb")
    make("codebook", other, "kvcc-nuq2-1%-sink1")
    out, _ = kvcc("diff", artifact, other, code=6)
    assert "scheme: k=nuq3" in out and "/key/codebook: other shape" in out
    assert re.search(r"keys: 6 of 6 heads differ, distance \d", out)
    document = kvcc_json("diff", artifact, other, code=6)
    assert document["equal"] is False and document["same_decoding"] is False and len(document["heads"]) == 12
    assert all(head["distance"] > 0 for head in document["heads"])
    kvcc("diff", artifact, tmp_path / "none.kvcb", code=3)
    kvcc("diff", artifact, code=2)


def test_inspect_is_fast_on_a_30_layer_artifact(tmp_path):
    make("codebook", tmp_path / "a.kvcb", "kvcc-nuq4-1%-sink1", "30")
    times = []
    for _ in range(9):
        # Processor time, not the clock's: other work on the machine must not fail the test.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        kvcc("inspect", tmp_path / "a.kvcb")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.1, times


def test_inspect_loads_no_torch():
    out = subprocess.run(["ldd", BUILD / "libexec/kvcc/kvcc-inspect"], capture_output=True, text=True, check=True).stdout
    assert "torch" not in out and "hdf5" in out


def test_activations_folder(tmp_path):
    folder = tmp_path / "a.acts"
    make("activations", folder)
    document = kvcc_json("inspect", folder)
    assert document["kind"] == "activations" and document["shards"] == 6 and document["text"]["name"] == "текст.txt"
    assert "6 shards" in kvcc("inspect", folder)[0]
    assert "/key_grad" in kvcc("inspect", folder / "s0000/l0001.h5")[0]
    kvcc("validate", folder)
    (folder / "s0000/l0001.h5").unlink()
    shown, _ = kvcc("validate", folder, code=3)
    assert "s0000/l0001.h5: missing" in shown
    assert "s0000/l0001.h5" in kvcc("inspect", folder, code=3)[1]
    # Resumed, it is what it was.
    make("activations", folder)
    kvcc("validate", folder)


def test_F55_newer_formats_are_named(artifact, tmp_path):
    import h5py
    with h5py.File(artifact, "r+") as file:
        file.attrs["format_version"] = "2.0"
    assert "format 2.0, this build reads up to 1.x" in kvcc("inspect", artifact, code=3)[1]
    assert "format 2.0, this build reads up to 1.x" in kvcc("validate", artifact, code=3)[0]
    folder = tmp_path / "acts"
    make("activations", folder)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 1', '"schema_version": 4'))
    assert "activations format 4, this build reads up to 3" in kvcc("inspect", folder, code=3)[1]


def test_validate_lists_everything_of_every_file(artifact, tmp_path):
    bad = tmp_path / "bad.kvcb"
    bad.write_bytes(artifact.read_bytes()[:1000])
    document = kvcc_json("validate", artifact, bad, tmp_path, tmp_path / "none", code=3)
    assert [entry["valid"] for entry in document["files"]] == [True, False, False, False]
    assert "truncated" in document["files"][1]["problems"][0]
    shown, _ = kvcc("validate", artifact, bad, code=3)
    assert f"{artifact}: sound (codebook)" in shown and f"{bad}: damaged or truncated" in shown


def test_what_kvcc_did_not_write(tmp_path):
    for name, content in (("a.kvcb", b"hello"), ("b.kvcb", b""), ("c.kvcb", b"\x89HDF\r\n\x1a\n" + b"\0" * 100)):
        (tmp_path / name).write_bytes(content)
        kvcc("inspect", tmp_path / name, code=3)
        kvcc("validate", tmp_path / name, code=3)
    assert "manifest.json or kernels.json" in kvcc("inspect", tmp_path, code=3)[1]


# ---- schemes

def test_schemes():
    for preset in kvcc_json("schemes")["presets"]:
        shown = kvcc_json("schemes", preset["example"])["schemes"][0]
        assert shown["name"] == preset["example"] and shown["text"] == preset["text"]
    document = kvcc_json("schemes", "int4", "kvcc-nuq4-1%-sink1", "--layers", "1", "--kv-heads", "1", "--head-dim", "32")
    first = document["schemes"][0]
    assert [at["context"] for at in first["effective_bits"]] == [2048, 32768, 131072]
    assert first["effective_bits"][1]["total"] == pytest.approx(5)  # 4 + 32 / 32
    assert first["scheme"]["k"]["site"] == "postrope" and not first["needs_calibration"]
    assert "kvcc-nuq4-1%-sink1" in kvcc("schemes", "kvcc-nuq4-1%-sink1")[0]
