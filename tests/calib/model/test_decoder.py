"""The decoder against transformers, on tiny random models and on SmolLM2."""
import subprocess

import numpy as np
import pytest
import torch

from reference_model import llama_from_gguf
from support import BUILD, data_path, model_path, tiny_llama

PROBE = BUILD / "tests/bin/model_probe"

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
TINY = {
    "tied": {},
    "untied": dict(tie_word_embeddings=False),
    "mha": dict(num_key_value_heads=4),
    "mqa": dict(num_key_value_heads=1),
    "head_dim_of_its_own": dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=20),
    "one_layer": dict(num_hidden_layers=1),
    "biases": dict(attention_bias=True, mlp_bias=True),
    "epsilon": dict(rms_norm_eps=1e-2),
    "theta": dict(rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
    "linear": dict(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "llama3": dict(rope_parameters=LLAMA3),
}


def probe(*arguments, code=0):
    done = subprocess.run([str(PROBE), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def ours(model, ids, folder, vocab):
    ids.astype("<i4").tofile(folder / "ids.bin")
    probe("logits", model, folder / "ids.bin", folder / "logits.bin")
    return np.fromfile(folder / "logits.bin", "<f4").reshape(len(ids), vocab)


def set_biases(model):
    """transformers starts biases at zero, which would hide a bias that is left out."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.5)


@pytest.mark.parametrize("name", TINY)
def test_logits_of_tiny_models(tmp_path, name):
    model = tiny_llama(tmp_path / "model", **TINY[name])
    set_biases(model)
    model.save_pretrained(tmp_path / "model")
    ids = np.random.default_rng(1).integers(0, 256, 300)
    with torch.no_grad():
        theirs = model(torch.tensor(ids)[None]).logits[0].numpy()
    logits = ours(tmp_path / "model", ids, tmp_path, 256)
    scale = np.abs(theirs).max()
    print(f"{name}: largest difference {np.abs(logits - theirs).max():.3g} of {scale:.3g}")
    np.testing.assert_allclose(logits, theirs, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_stored_halves_are_computed_in_f32(tmp_path, dtype):
    model = tiny_llama(tmp_path / "f32")
    model.to(dtype).save_pretrained(tmp_path / "half")
    from transformers import LlamaForCausalLM
    model = LlamaForCausalLM.from_pretrained(tmp_path / "half", dtype=torch.float32).eval()
    ids = np.arange(40)
    with torch.no_grad():
        theirs = model(torch.tensor(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(ours(tmp_path / "half", ids, tmp_path, 256), theirs, rtol=1e-4,
                               atol=1e-5 * np.abs(theirs).max())


def test_ids_outside_the_vocabulary_are_refused(tmp_path):
    tiny_llama(tmp_path / "model")
    for bad in (256, -1):
        np.array([3, bad], "<i4").tofile(tmp_path / "ids.bin")
        assert f"id {bad}" in probe("logits", tmp_path / "model", tmp_path / "ids.bin", tmp_path / "o", code=1).stderr


def rope(folder, theta, rotary, dim, scaling, text, tokens):
    probe("rope", theta, rotary, dim, scaling, text, tokens, folder / "rope.bin")
    numbers = np.fromfile(folder / "rope.bin", "<f4")
    return numbers[:rotary // 2], numbers[rotary // 2:].reshape(tokens, dim)


LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 2000,
            "short_factor": [1 + i / 64 for i in range(32)], "long_factor": [1 + i / 3 for i in range(32)]}


@pytest.mark.parametrize("parameters", (
    {"rope_type": "default", "rope_theta": 100000.0}, LLAMA3, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 512, "mscale": 1.0,
     "mscale_all_dim": 0.7, "beta_fast": 20, "beta_slow": 2, "truncate": False},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 1.5},
    LONGROPE, LONGROPE | {"original_max_position_embeddings": 2048}, LONGROPE | {"attention_factor": 1.25}),
    ids=lambda p: p["rope_type"])
def test_rope_is_the_float_arithmetic_of_transformers(tmp_path, parameters):
    """Frequencies bit for bit; at position 2,047 one wrong last place would be an error of 1e-4 in the angle."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    import json
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, head_dim=64, max_position_embeddings=1024,
                         rope_parameters=dict(parameters))
    embedding = LlamaRotaryEmbedding(config)
    cos, sin = embedding(torch.zeros(1), torch.arange(2048)[None])
    kind = "none" if parameters["rope_type"] == "default" else parameters["rope_type"]
    ours = parameters | ({"original_max_position_embeddings": 1024} if kind == "dynamic" else {})
    frequencies, rotated = rope(tmp_path, parameters["rope_theta"], 64, 64, kind, json.dumps(ours), 2048)
    assert np.array_equal(frequencies, embedding.inv_freq.numpy()), kind
    sign = torch.cat([-torch.ones(32), torch.ones(32)])
    np.testing.assert_allclose(rotated, (cos + sign * sin)[0].numpy(), rtol=0, atol=1e-6)


def test_partial_rotary_leaves_the_rest(tmp_path):
    frequencies, rotated = rope(tmp_path, 10000.0, 8, 12, "none", "", 50)
    np.testing.assert_allclose(frequencies, 10000.0 ** (-np.arange(0, 8, 2) / 8), rtol=1e-6)
    angle = np.arange(50)[:, None] * frequencies
    np.testing.assert_allclose(rotated[:, :4], np.cos(angle) - np.sin(angle), atol=1e-5)
    np.testing.assert_allclose(rotated[:, 4:8], np.cos(angle) + np.sin(angle), atol=1e-5)
    assert (rotated[:, 8:] == 1).all()


def test_rope_scalings_that_are_not_known_or_not_whole_are_refused(tmp_path):
    error = probe("rope", 10000, 8, 8, "magic", "{}", 4, tmp_path / "o", code=1).stderr
    assert "magic" in error and "none, linear, dynamic, yarn, llama3, longrope" in error
    for kind, name in (("yarn", "factor"), ("longrope", "original_max_position_embeddings"), ("dynamic", "factor"),
                       ("linear", "factor"), ("llama3", "factor")):
        error = probe("rope", 10000, 8, 8, kind, "{}", 4, tmp_path / "o", code=1).stderr
        assert kind in error and f"no number {name}" in error
    short = '{"original_max_position_embeddings": 8, "factor": 2, "short_factor": [1, 2]}'
    assert "short_factor is not 4 positive factors" in probe("rope", 10000, 8, 8, "longrope", short, 4, tmp_path / "o", code=1).stderr


def test_smollm2_logits_and_greedy_continuation(tmp_path):
    path, model = model_path(), llama_from_gguf(model_path())
    ids = np.load(data_path("smollm2/evaluation_ids.npy"))[:256].astype(np.int64)
    with torch.no_grad():
        theirs = model(torch.tensor(ids)[None]).logits[0].numpy()
        follow = model.generate(torch.tensor(ids[:64])[None], max_new_tokens=50, min_new_tokens=50, do_sample=False)
    logits = ours(path, ids, tmp_path, theirs.shape[1])
    difference = np.abs(logits - theirs).max()
    print(f"SmolLM2: largest difference of logits {difference:.3g}, largest logit {np.abs(theirs).max():.4g}")
    assert difference < 2e-5 * np.abs(theirs).max()
    assert (logits.argmax(1) == theirs.argmax(1)).mean() > 0.99
    ids[:64].astype("<i4").tofile(tmp_path / "ids.bin")
    found = [int(line) for line in probe("greedy", path, tmp_path / "ids.bin", 50).stdout.split()]
    assert found == follow[0, 64:].tolist()
