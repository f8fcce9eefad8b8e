"""Names of results that mean something else: a model, an artifact, a text. Each is refused and left as it is, while an
earlier result of the same kind is replaced."""
import shutil

import pytest

from faults import FORMATS, Files
from support import kvcc, random_ids


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("outputs"))


def writers(files):
    """{what writes: its arguments up to the name of the file}"""
    book, model = files.folder / "a.kvcb", files.model
    found = {"export " + kind: ["export", book, "--to", kind, "-o"] for kind in FORMATS}
    found["shard"] = ["export", book, "--to", "kvcb", "--shard", "0/2", "-o"]
    found["inspect"] = ["inspect", book, "--html"]
    found["fit"] = ["fit", files.folder / "a.acts", "--scheme", "kvcc-nuq2-1%-sink1", "--force", "-o"]
    found["generate"] = ["generate", model, "--codebook", book, "--ids", files.folder / "a-prompt.npy", "--tokens", 1, "--ignore-eos",
                         "--save-cache"]
    found["eval"] = ["eval", model, "--ids", files.folder / "a.npy", "--seqlen", 48, "--windows", 1, "--scheme", "int4", "--html"]
    return found


@pytest.mark.parametrize("writer", [*("export " + kind for kind in FORMATS), "shard", "inspect", "fit", "generate", "eval"])
def test_a_mistyped_name_harms_nothing(files, tmp_path, writer):
    words, out = writers(files)[writer], tmp_path / "out"
    others = {"weights": files.model / "model.safetensors", "config": files.model / "config.json", "ids": files.folder / "a.npy",
              "artifact": files.folder / "b.kvcb"}
    if writer == "fit":
        del others["artifact"]  # which --force is for
    (tmp_path / "text").write_text("kept\n")
    for source in [*others.values(), tmp_path / "text"]:
        shutil.copyfile(source, out)
        _, errors = kvcc(*words, out, code=3)
        assert f"{out}: is there and no earlier result of " in errors and "another name" in errors
        assert out.read_bytes() == source.read_bytes()
    if writer == "export vllm":  # the scheme beside it has a name of its own
        out.unlink()
        (tmp_path / "kv_cache_scheme.json").write_text("{}\n")
        assert "kv_cache_scheme.json: is there" in kvcc(*words, out, code=3)[1]
        assert (tmp_path / "kv_cache_scheme.json").read_text() == "{}\n" and not out.exists()
        (tmp_path / "kv_cache_scheme.json").unlink()
    out.write_bytes(b"")  # as mktemp makes it
    kvcc(*words, out)
    first = out.read_bytes()
    assert len(first) > 100
    kvcc(*words, out)
    if writer not in ("eval",):  # holds seconds
        assert out.read_bytes() == first


def test_a_fit_does_not_write_into_its_activations(files, tmp_path):
    acts = tmp_path / "a.acts"
    shutil.copytree(files.folder / "a.acts", acts)
    for name in ("manifest.json", "s0000/l0000.h5", "new.kvcb", "../a.acts/x.kvcb"):
        assert "lies in the folder of the activations" in kvcc("fit", acts, "--scheme", "kvcc-nuq2", "--force", "-o", acts / name, code=2)[1]
    assert kvcc("validate", acts)[0].endswith("sound (activations)\n")
    kvcc("fit", acts, "--scheme", "kvcc-nuq2", "-o", tmp_path / "a.acts.kvcb")


def test_kernels_leave_files_alone_that_are_not_theirs(files, tmp_path):
    """An earlier kernels.json may list anything: what is not as it says is not removed."""
    out = tmp_path / "kernels"
    words = ["compile", "--arch", "sm_80", "--emit-only", "--cache-dir", tmp_path / "cache", "-o", out]
    kvcc("compile", files.folder / "a.kvcb", *words[1:])
    own = sorted(out.glob("pack_key*.cu"))[0]
    own.write_text("a note of mine\n")
    kvcc("fit", files.folder / "a.acts", "--scheme", "kvcc-nuq4", "-o", tmp_path / "b.kvcb")
    kvcc("compile", tmp_path / "b.kvcb", *words[1:])
    assert own.read_text() == "a note of mine\n"
    assert not [path for path in out.glob("*nuq3*") if path != own], "files of the earlier artifact"


@pytest.mark.parametrize("words, message", [
    (["--repair", "nan"], "--repair"), (["--repair", "-1"], "--repair"), (["--max-ppl", "nan"], "--max-ppl"),
    (["--max-ppl", "0"], "--max-ppl"), (["--context", "0"], "--context"), (["--context", "-1"], "--context"),
    (["--amortise", "0"], "--amortise"), (["--amortise", "9223372036854775807"], "--amortise"),
])
def test_numbers_are_checked_before_the_work(files, words, message):
    _, errors = kvcc("eval", files.model, "--ids", files.folder / "a.npy", "--seqlen", 48, "--windows", 1, "--scheme", "int4", *words, code=2)
    assert errors.startswith(f"kvcc eval: error: {message}: Value ") and errors.count("\n") == 1 and len(errors) < 200


def test_several_rows_are_no_prompt(files, tmp_path):
    random_ids(tmp_path / "two.npy", 2, 8)
    assert "one row of ids" in kvcc("generate", files.model, "--codebook", files.folder / "a.kvcb", "--ids", tmp_path / "two.npy", code=3)[1]
