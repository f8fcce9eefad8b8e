"""The way with no text at hand: samples of the model itself, with no network, no data set and no tokenizer. And which programs
do without libtorch."""
import json
import os
import subprocess

import numpy as np
import pytest

from support import BUILD, KVCC, kvcc, tiny_llama

SCHEME = "kvcc-nuq3-1%-sink1"


def offline(folder, *arguments, code=0):
    """kvcc with an empty cache, no KVCC_DATA, and proxies that refuse every connection, as without a network."""
    environment = {k: v for k, v in os.environ.items() if k != "KVCC_DATA" and "proxy" not in k.lower()}
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        environment[name] = "http://127.0.0.1:9"
    environment |= {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run([KVCC, *map(str, arguments), "--cache-dir", folder / "empty"], capture_output=True, text=True,
                          env=environment, cwd=folder)
    assert done.returncode == code, f"exit {done.returncode}, wanted {code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model without a tokenizer."""
    folder = tmp_path_factory.mktemp("self") / "tiny"
    tiny_llama(folder)
    assert not [path for path in folder.iterdir() if "token" in path.name]
    return folder


def calibrate(model, folder, *more):
    return json.loads(offline(folder, "calibrate", model, "-o", folder / "t.kvcb", "--dataset", "self", "--samples", 2, "--seqlen",
                              64, "--scheme", SCHEME, "--eval", "--windows", 2, "--eval-seqlen", 64, "--json", *more)[0])


def test_self_needs_no_text_no_network_and_no_tokenizer(model, tmp_path):
    row, = calibrate(model, tmp_path)["results"]
    assert row["scheme"] == SCHEME and row["kl"] > 0 and 3 < row["effective_bits"] < 5
    assert not [path for path in (tmp_path / "empty").rglob("*") if path.is_file()] and not (tmp_path / "cache").exists(), "nothing was fetched"
    manifest = json.loads((tmp_path / "t.acts/manifest.json").read_text())
    assert "self" in json.dumps(manifest)
    ids = np.load(tmp_path / "t.acts/self_ids.npy")
    assert ids.shape == (2, 64) and ids.dtype == np.int32 and 0 <= ids.min() and ids.max() < 256
    kvcc("validate", tmp_path / "t.kvcb", tmp_path / "t.acts")


def test_self_gives_the_same_bytes_again(model, tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
    a, b = calibrate(model, first), calibrate(model, second)
    assert (first / "t.kvcb").read_bytes() == (second / "t.kvcb").read_bytes()
    assert a["results"][0]["nll"] == b["results"][0]["nll"]


def test_the_evaluation_is_not_on_the_calibration_samples(model, tmp_path):
    """Otherwise the figures would be those of the text that was fitted."""
    document = calibrate(model, tmp_path)
    again = json.loads(kvcc("eval", model, "--ids", tmp_path / "t.acts/self_ids.npy", "--windows", 2, "--seqlen", 64, "--json")[0])
    assert again["results"][0]["nll"] != document["full_precision"]["nll"]


def test_fetch_without_a_network_says_so(tmp_path):
    shown, errors = offline(tmp_path, "data", "fetch", "wikitext-2", code=3)
    assert errors.count("error: ") == 1 and "wikitext-2" in errors, errors
    assert "Traceback" not in errors and "terminate" not in errors
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing half-fetched under its final name"


@pytest.mark.parametrize("verb", ["inspect", "validate", "fit", "compile", "export", "schemes", "data", "calibrate"])
def test_programs_that_run_no_model_do_without_libtorch(verb):
    """They start in milliseconds and work where libtorch isn't: none of it is among what the loader needs, directly or not."""
    program = BUILD / "libexec/kvcc" / f"kvcc-{verb}"
    needed = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
    loaded = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" in needed and "libc.so" in loaded
    for words in ("torch", "libc10", "libgomp", "not found"):
        assert words not in loaded, loaded
    assert "torch" not in needed and "libc10" not in needed


def test_the_check_knows_a_program_with_libtorch():
    needed = subprocess.run(["readelf", "-d", BUILD / "libexec/kvcc/kvcc-collect"], capture_output=True, text=True).stdout
    assert "libtorch_cpu" in needed
