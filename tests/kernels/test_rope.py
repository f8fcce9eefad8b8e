"""Rotary frequencies and attention factors against transformers' ROPE_INIT_FUNCTIONS."""
import json
import subprocess

import numpy as np
import pytest
from support import BUILD
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

PROBE = BUILD / "tests" / "bin" / "rope_probe"
THETAS = [10000.0, 100000.0, 500000.0]
DIMS = [64, 80, 96, 128, 192, 256]


def ours(theta, dim, scaling, parameters, max_positions=0, length=0):
    done = subprocess.run([PROBE, repr(theta), str(dim), scaling, "" if parameters is None else json.dumps(parameters),
                           str(max_positions), str(length)], capture_output=True)
    if done.returncode:
        return done.stderr.decode()
    values = np.frombuffer(done.stdout, np.float32)
    return values[0], values[1:]


def theirs(theta, dim, parameters, max_positions, length=None, head_dim=None):
    head_dim = head_dim or dim
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim,
                         max_position_embeddings=max_positions,
                         rope_parameters={"rope_theta": theta, **parameters, "partial_rotary_factor": dim / head_dim})
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=length)
    return np.float32(factor), frequencies.numpy()


def close(a, b, ulps=2):
    """Both round a power that their libraries give within an ulp."""
    assert a[1].shape == b[1].shape
    apart = np.abs(a[1].view(np.int32).astype(np.int64) - b[1].view(np.int32))
    assert apart.max() <= ulps, f"{apart.max()} ulp at pair {apart.argmax()}"
    assert abs(float(a[0]) - float(b[0])) <= 1e-7 * float(b[0])


def longrope(dim, **more):
    rng = np.random.default_rng(dim)
    return {"rope_type": "longrope", "short_factor": rng.uniform(1, 1.5, dim // 2).round(3).tolist(),
            "long_factor": rng.uniform(1, 60, dim // 2).round(3).tolist(), **more}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
CASES = {
    "linear": ({"rope_type": "linear", "factor": 2.5}, 4096, None),
    "llama3": (LLAMA3, 131072, None),
    "llama3.2": ({**LLAMA3, "factor": 32.0}, 131072, None),
    "yarn": (YARN, 131072, None),
    "yarn-betas": ({**YARN, "beta_fast": 24.0, "beta_slow": 2.0, "attention_factor": 1.25}, 131072, None),
    "yarn-mscale": ({**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7}, 163840, None),
    "yarn-float-range": ({**YARN, "truncate": False}, 131072, None),
    "dynamic-short": ({"rope_type": "dynamic", "factor": 4.0}, 4096, 100),
    "dynamic-long": ({"rope_type": "dynamic", "factor": 4.0}, 4096, 16384),
}


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("case", CASES)
def test_scalings(case, theta, dim):
    parameters, max_positions, length = CASES[case]
    got = ours(theta, dim, parameters["rope_type"], parameters, max_positions, length or 0)
    close(got, theirs(theta, dim, parameters, max_positions, length))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("length", [100, 4096, 4097, 131072])
@pytest.mark.parametrize("more", [{"factor": 32.0}, {"factor": 32.0, "attention_factor": 1.19}])
def test_longrope(dim, length, more):
    parameters = longrope(dim, original_max_position_embeddings=4096, **more)
    close(ours(10000.0, dim, "longrope", parameters, 131072, length), theirs(10000.0, dim, parameters, 131072, length))
    assert not np.array_equal(ours(10000.0, dim, "longrope", parameters, 131072, 4096)[1],
                              ours(10000.0, dim, "longrope", parameters, 131072, 4097)[1])  # the length decides


@pytest.mark.parametrize("dim", DIMS)
def test_no_scaling(dim):
    for theta in THETAS:  # the formula of modeling_llama
        import torch
        wanted = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float) / dim))
        close(ours(theta, dim, "none", None), (np.float32(1), wanted.numpy()))


def test_partial_rotation():
    close(ours(10000.0, 48, "yarn", YARN, 131072), theirs(10000.0, 48, YARN, 131072, head_dim=192))


def test_what_a_configuration_leaves_out():
    """The factor and the trained context follow from the model's positions where a configuration has only one."""
    dim = 96
    parameters = longrope(dim, original_max_position_embeddings=4096)
    close(ours(10000.0, dim, "longrope", parameters, 131072, 100),
          theirs(10000.0, dim, {**parameters, "factor": 32.0}, 131072, 100))
    bare = {"rope_type": "yarn", "factor": 4.0}
    close(ours(10000.0, dim, "yarn", bare, 8192),
          theirs(10000.0, dim, {**bare, "original_max_position_embeddings": 8192}, 8192))


def test_factors_of_gguf():
    """rope_freqs.weight alone: one divisor a pair."""
    divisors = np.linspace(1, 8, 32).tolist()
    scaled = ours(10000.0, 64, "llama3", {"rope_type": "llama3", "freq_factors": divisors})
    plain = ours(10000.0, 64, "none", None)
    assert np.array_equal(scaled[1], plain[1] / np.float32(divisors))


REFUSED = [
    (("linear", {"factor": 0}), "RoPE scaling linear: factor is 0.000000; wanted above 0"),
    (("linear", {}), "RoPE scaling linear: no factor; wanted a number factor"),
    (("linear", None), "RoPE scaling linear: not JSON, or truncated"),
    (("linear", {"factor": "2"}), "RoPE scaling linear: factor is string; wanted a number"),
    (("llama3", {**LLAMA3, "high_freq_factor": 1.0}), "high_freq_factor not above low_freq_factor"),
    (("yarn", {"factor": 4.0}), "RoPE scaling yarn: no original_max_position_embeddings"),
    (("yarn", {"original_max_position_embeddings": 4096}), "RoPE scaling yarn: no factor"),
    (("yarn", {**YARN, "truncate": 1}), "truncate is 1; wanted true or false"),
    (("dynamic", {"factor": 2.0}), "max_position_embeddings is not known"),
    (("longrope", longrope(62, factor=2.0, original_max_position_embeddings=4096)), "short_factor holds 31 numbers; wanted 32"),
    (("longrope", {**longrope(64, factor=2.0, original_max_position_embeddings=4096), "short_factor": [0.0] * 32}),
     "short_factor holds 0.0; wanted positive numbers"),
    (("longrope", {"factor": 2.0, "original_max_position_embeddings": 4096}), "no short_factor"),
    (("su", {}), "RoPE scaling: su; wanted none, linear, llama3, yarn, longrope or dynamic"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[1][:40])
def test_refusals(case):
    (scaling, parameters), message = case
    assert message in ours(10000.0, 64, scaling, parameters)


def test_bad_geometry():
    assert "rotary_dim: 63; wanted an even number" in ours(10000.0, 63, "none", None)
    assert "theta: 0.5" in ours(0.5, 64, "none", None)
