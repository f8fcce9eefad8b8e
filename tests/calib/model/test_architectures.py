"""Every architecture against transformers: logits, keys before RoPE, values and their gradients, from both kinds of file."""
import json
import subprocess
from importlib.metadata import version

import numpy as np
import pytest

from calib.model.tiny_models import CASES, GGUF, TOKENS, WRAPPED, autograd, make, write_gguf
from support import BUILD, SOURCE, kvcc, kvcc_json

PROBE = BUILD / "tests/bin/pass_probe"
KINDS = ("key", "value", "key_grad", "value_grad")
IDS = np.random.default_rng(5).integers(0, 101, TOKENS)
# What GGUF has no keys for: these settings are not llama.cpp's, or the file has no place for them.
NO_GGUF = {"mistral", "mistral-wide", "llama-dynamic", "qwen2-sliding", "qwen3_moe-dense", "gemma2-scalar", "gemma3-linear",
           "smollm3-wide", "deepseek_v3-yarn"}


@pytest.fixture(scope="module")
def passes(tmp_path_factory):
    """Of every case what autograd says, and the folders of what kvcc says of its files."""
    folder = tmp_path_factory.mktemp("architectures")
    IDS.astype("<i4").tofile(folder / "ids.bin")
    wanted, command = {}, [str(PROBE), str(folder / "ids.bin")]
    for case in [*CASES, *WRAPPED]:
        model = make(case, folder / case)
        wanted[case] = autograd(model, IDS)
        files = {"safetensors": folder / case}
        if "gguf" in forms(case):
            files["gguf"] = write_gguf(model, folder / case, folder / f"{case}.gguf")
        if case.startswith("deepseek_v2"):
            files["split"] = write_gguf(model, folder / case, folder / f"{case}-split.gguf", split_latent=True)
        for form, path in files.items():
            (folder / f"out-{case}-{form}").mkdir()
            command += [str(path), str(folder / f"out-{case}-{form}")]
    done = subprocess.run(command, capture_output=True, text=True)
    return folder, wanted, done.stderr


def forms(case):
    return ["safetensors"] + ["gguf"] * (case not in NO_GGUF and case not in WRAPPED) + ["split"] * case.startswith("deepseek_v2")


@pytest.mark.parametrize("case, form", [(case, form) for case in [*CASES, *WRAPPED] for form in forms(case)])
def test_equals_transformers(passes, case, form):
    folder, wanted, errors = passes
    out = folder / f"out-{case}-{form}"
    assert (out / "logits").exists(), errors
    logits, layers = wanted[case]
    found = np.fromfile(out / "logits", "<f4").reshape(logits.shape)
    assert np.abs(found - logits).max() < 1e-4 * np.abs(logits).max(), "logits"
    assert sorted(int(p.stem) for p in out.glob("[0-9]*.key")) == sorted(layers)  # by the model's own numbers
    for number, tensors in layers.items():
        for kind in KINDS:
            theirs = tensors[kind]
            ours = np.fromfile(out / f"{number}.{kind}", "<f4").reshape(theirs.shape)
            assert np.abs(theirs).max() > 0
            assert np.abs(ours - theirs).max() < 1e-4 * np.abs(theirs).max(), (number, kind)
            assert ours.tobytes() == (out / f"again-{number}.{kind}").read_bytes(), "recomputed"
            assert ours.tobytes() == (out / f"streamed-{number}.{kind}").read_bytes(), "weights left in their files"


def test_models_are_listed_with_how_they_were_verified():
    """Nothing is listed that the cases above do not cover, and each is named to who asks for another."""
    document = kvcc_json("models")
    listed, wrappers = document["architectures"], document["with_images"]
    assert {a["model_type"] for a in listed} == {kind for kind, _ in CASES.values()}
    assert {w["model_type"] for w in wrappers} == {kind for kind, _, _ in WRAPPED.values()}
    assert {w["architecture"] for w in wrappers} <= {a["model_type"] for a in listed}
    for a in listed + wrappers:
        assert f"transformers {version('transformers')}'s autograd" in a["verified"] and "1e-4" in a["verified"] and a["models"]
        assert (SOURCE / a["test"]).samefile(__file__)
    for a in listed:
        written = any(kind == a["model_type"] and "gguf" in forms(case) for case, (kind, _) in CASES.items())
        assert (f"PyPI gguf {version('gguf')}" in a["verified_gguf"]) == written and a["gguf"]
        assert written == (a["model_type"] in GGUF)
    text = kvcc("models")[0]
    for a in listed + wrappers:
        line = next(line for line in text.splitlines() if line.startswith(f"  {a['model_type']}: safetensors "))
        assert a["verified"] in line and a.get("verified_gguf", "") in line
    assert listed[0]["test"] in text
    for names in document["weight_types"].values():
        assert ", ".join(names) in text


def test_unknown_architectures_are_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    _, error = kvcc("collect", tmp_path, "-o", tmp_path / "a.acts", "--ids", tmp_path / "x.npy", code=3)
    assert "architecture mamba" in error
    assert all(kind in error for kind, _ in CASES.values())


def test_deepseek_v3s_layers_beyond_the_last_are_no_part_of_the_decoder(passes, tmp_path):
    """Its files hold one for predicting two tokens; elsewhere such tensors are refused (tests/formats/weights)."""
    import shutil

    import safetensors.torch
    import torch
    folder, _, _ = passes
    for case, known in (("deepseek_v3", True), ("qwen3", False)):
        shutil.copytree(folder / case, tmp_path / case)
        file = tmp_path / case / "model.safetensors"
        weights = safetensors.torch.load_file(file) | {"model.layers.3.enorm.weight": torch.ones(48)}
        safetensors.torch.save_file(weights, file)
        done = subprocess.run([BUILD / "tests/bin/dump_model", tmp_path / case], capture_output=True, text=True)
        assert (done.returncode == 0) == known and ("model.layers.3.enorm.weight" in done.stderr) != known
