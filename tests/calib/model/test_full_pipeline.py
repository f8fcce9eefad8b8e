"""collect, fit and eval of models whose caches are not those of Llama: which layers there are, which shapes, which rotations."""
import json

import h5py
import numpy as np
import pytest
import torch

from calib.model.tiny_models import make
from support import kvcc, kvcc_json, random_ids

# Head dimension of keys and values, key/value heads, layers with a cache, scaling of the rotation.
SHAPES = {"lfm2": (12, 12, 2, [1, 3], "none"), "deepseek_v2-groups": (8, 32, 1, [0, 1, 2], "yarn"),
          "deepseek_v3": (8, 32, 1, [0, 1, 2], "none"), "gemma3-linear": (32, 32, 2, [0, 1, 2], "by-layer"),
          "gemma2": (32, 32, 2, [0, 1, 2], "none"), "glm4": (16, 16, 2, [0, 1, 2], "none"),
          "smollm3": (12, 12, 2, [0, 1, 2, 3, 4], "by-layer"),
          "phi3-short": (12, 12, 2, [0, 1, 2], "longrope"), "mixtral": (12, 12, 2, [0, 1, 2], "none")}


def steady(model, folder):
    """Experts are chosen by channels that the embedding alone writes to, so that no error of a cache changes the choice: in a random
    model, in which experts have nothing in common, that would be another prediction, whatever the error."""
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[:8] = 0
            layer.mlp.experts.down_proj[:, :8] = 0
            layer.mlp.gate.weight[:, 8:] = 0
    model.save_pretrained(folder)


@pytest.mark.parametrize("case", SHAPES)
def test_collect_fit_eval(tmp_path, case):
    dim, value_dim, heads, numbers, scaling = SHAPES[case]
    model = make(case, tmp_path / "model")
    if case == "mixtral":
        steady(model, tmp_path / "model")
    ids = random_ids(tmp_path / "ids.npy", 2, 64, vocab=101)
    kvcc("collect", tmp_path / "model", "-o", tmp_path / "a.acts", "--ids", tmp_path / "ids.npy", "--samples", 2, "--seqlen", 64,
         "--quiet")
    manifest = json.loads((tmp_path / "a.acts/manifest.json").read_text())["settings"]
    assert manifest["layer_index"] == numbers
    assert sorted(p.name for p in (tmp_path / "a.acts/s0000").glob("*.h5")) == [f"l{n:04}.h5" for n in numbers]
    kvcc("fit", tmp_path / "a.acts", "--scheme", "kvcc-nuq4-1%-sink1", "-o", tmp_path / "a.kvcb", "--quiet")
    with h5py.File(tmp_path / "a.kvcb") as book:
        assert book["layer_index"][:].tolist() == numbers
        shape = book["model"].attrs
        assert (shape["head_dim"], shape["value_head_dim"], shape["kv_heads"], shape["layers"]) == (dim, value_dim, heads, len(numbers))
        assert book["key/codebook"].shape[:2] == (len(numbers), heads)
        text = shape["rope_scaling"]
        assert (text.decode() if isinstance(text, bytes) else text) == scaling
    document = kvcc_json("eval", tmp_path / "model", "--ids", tmp_path / "ids.npy", "--seqlen", 64, "--codebook", tmp_path / "a.kvcb",
                         "--scheme", "int4", *(["--attention", 4] if case == "lfm2" else []))
    fp, row, integer = document["results"]
    nll = []
    with torch.no_grad():
        for window in ids.astype(np.int64):
            logits = model(torch.tensor(window)[None], use_cache=False).logits[0]
            nll.append(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(window[1:])).item())
    assert fp["nll"] == pytest.approx(np.mean(nll), rel=1e-4)
    if case == "lfm2":  # layers without a cache count in no mean
        found = row["attention"]
        assert found["layers"] == numbers and np.shape(found["kl_by_layer"]) == np.shape(found["relative_by_layer"]) == (2, 4)
        for by_query, by_layer in (("static", "static_by_layer"), ("accumulated", "accumulated_by_layer")):
            assert np.mean(found[by_query]) == pytest.approx(np.mean(found[by_layer]), rel=1e-9)
    assert 0 < row["kl"] < 0.6 and row["kl"] != integer["kl"] and integer["kl"] > 0


def test_generation_where_layers_rotate_differently(tmp_path):
    """The packed cache turns each layer's keys as the model does: it goes on as the simulated cache, which the decoder turns."""
    make("smollm3-wide", tmp_path / "model")
    random_ids(tmp_path / "ids.npy", 2, 64, vocab=101)
    kvcc("collect", tmp_path / "model", "-o", tmp_path / "a.acts", "--ids", tmp_path / "ids.npy", "--samples", 2, "--seqlen", 64,
         "--quiet")
    kvcc("fit", tmp_path / "a.acts", "--scheme", "kvcc-nuq4-1%-sink1", "-o", tmp_path / "a.kvcb", "--quiet")
    np.save(tmp_path / "prompt.npy", np.arange(40, dtype=np.int32))
    command = ["generate", tmp_path / "model", "--codebook", tmp_path / "a.kvcb", "--ids", tmp_path / "prompt.npy", "--tokens", 40,
               "--ignore-eos"]
    packed = kvcc_json(*command, "--cache", "packed", "--arithmetic", "f64")["ids"]
    assert packed == kvcc_json(*command, "--cache", "simulated")["ids"] and len(set(packed)) > 5


@pytest.mark.parametrize("case, word", [("deepseek_v2", "latent attention"), ("gemma2", "soft cap"), ("lfm2", "convolution"),
                                        ("mistral", "sliding window")])
def test_generation_says_what_it_does_not_run(tmp_path, case, word):
    make(case, tmp_path / "model")
    np.save(tmp_path / "prompt.npy", np.arange(20, dtype=np.int32))
    _, error = kvcc("generate", tmp_path / "model", "--ids", tmp_path / "prompt.npy", "--cache", "fp16", "--tokens", 2, code=2)
    assert word in error
