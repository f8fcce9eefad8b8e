"""A quantised cache inside transformers (formats/export/python/kvcc_cache.py) against kvcc eval on the same windows."""
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from support import SOURCE, kvcc, kvcc_json, random_ids, tiny_llama

sys.path.insert(0, str(SOURCE / "formats/export/python"))
from kvcc_cache import KvccCache  # noqa: E402

# Weights small enough that a flipped rounding does not grow into another answer (as in tests/calib/eval/test_eval.py).
CALM = dict(initializer_range=0.12)
WINDOWS, SEQLEN = 16, 128
SCALINGS = {"none": {}, "llama3": {"rope_parameters": {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64}}}
SCHEMES = ["kvcc-nuq3-1%-sink1", "kvcc-nuq2", "kvquant-nuq4-1%", "int4-channel-prerope",
           "k=nuq2@prerope/channel,v=nuq2@token,sparse=1%,sink=1,residual=16", "k=int3@postrope/token,v=nuq3@token,sparse=5%"]


def log_probabilities(model, export, windows, step=None):
    """Of the windows' next tokens [W, T - 1, vocab], their tokens given together or `step` at a time; `export` None: exact."""
    ids, cache = torch.from_numpy(windows).long(), KvccCache(export) if export else None
    step = step or ids.shape[1]
    with torch.no_grad():
        logits = torch.cat([model(ids[:, i:i + step], past_key_values=cache).logits for i in range(0, ids.shape[1], step)], 1)
    return torch.log_softmax(logits[:, :-1].double(), -1)


def compare(model, export, windows, step=None):
    """(perplexity, KL to full precision), means over windows as in kvcc eval."""
    full, found = log_probabilities(model, None, windows), log_probabilities(model, export, windows, step)
    nll = -found.gather(-1, torch.from_numpy(windows[:, 1:]).long()[..., None]).mean().item()
    return math.exp(nll), (full.exp() * (full - found)).sum(-1).mean().item()


@pytest.fixture(scope="module", params=SCALINGS)
def evaluated(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("consumers")
    model = tiny_llama(folder / "model", **CALM, **SCALINGS[request.param])
    random_ids(folder / "calibration.npy", 4, 128)
    windows = random_ids(folder / "windows.npy", WINDOWS, SEQLEN, seed=1)
    arguments = ["calibrate", folder / "model", "-o", folder / "s.kvcb", "--ids", folder / "calibration.npy", "--samples", 4,
                 "--seqlen", 128]
    for scheme in SCHEMES:
        arguments += ["--scheme", scheme]
    books = [row["codebook"] for row in kvcc_json(*arguments)["results"]]
    arguments = ["eval", folder / "model", "--ids", folder / "windows.npy", "--windows", WINDOWS, "--seqlen", SEQLEN]
    for book in books:
        arguments += ["--codebook", book]
    full, *rows = kvcc_json(*arguments)["results"]
    return folder, model, windows, full, list(zip(books, rows))


@pytest.mark.parametrize("index", range(len(SCHEMES)))
def test_perplexity_is_that_of_kvcc(evaluated, index):
    folder, model, windows, full, rows = evaluated
    book, row = rows[index]
    kvcc("export", book, "--to", "safetensors", "-o", folder / f"{index}.safetensors")
    perplexity, kl = compare(model, folder / f"{index}.safetensors", windows)
    assert perplexity == pytest.approx(row["perplexity"], rel=3e-3 if "nuq2" in SCHEMES[index] else 1e-3)
    # What tells a cache from another: a random model's perplexity hardly changes, its KL does.
    assert kl == pytest.approx(row["kl"], rel=0.05)


def test_decoding_in_steps_gives_the_same(evaluated):
    """Without a residual window a token's codes don't depend on what follows it."""
    folder, model, windows, _, rows = evaluated
    kvcc("export", rows[0][0], "--to", "safetensors", "-o", folder / "steps.safetensors")
    whole = compare(model, folder / "steps.safetensors", windows)
    steps = compare(model, folder / "steps.safetensors", windows, step=7)
    assert steps[0] == pytest.approx(whole[0], rel=1e-3) and steps[1] == pytest.approx(whole[1], rel=0.05)


def test_the_lines_of_the_readme_run(evaluated, tmp_path):
    """As they stand there, in a folder that has what they name."""
    folder, model, _, _, rows = evaluated
    blocks = [block for block in (SOURCE / "README.md").read_text().split("```python\n")[1:] if "KvccCache" in block]
    assert len(blocks) == 1 and len(blocks[0].split("```")[0].splitlines()) <= 10
    (tmp_path / "path/to").mkdir(parents=True)
    (tmp_path / "path/to/model").symlink_to(folder / "model")
    (tmp_path / "out").mkdir()
    kvcc("export", rows[0][0], "--to", "safetensors", "-o", tmp_path / "out/mine.safetensors")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", blocks[0].split("```")[0]], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(SOURCE / "formats/export/python")})
    assert done.returncode == 0, done.stderr
    shape, ids = done.stdout.strip().split("\n", 1)
    assert shape == f"torch.Size([1, 5, {model.config.vocab_size}])" and "".join(ids.split()).startswith("tensor([[1,17,42,99,7,")


def test_generate_takes_the_cache(evaluated):
    folder, model, windows, _, rows = evaluated
    kvcc("export", rows[0][0], "--to", "safetensors", "-o", folder / "generate.safetensors")
    prompt, cache = torch.from_numpy(windows[:1, :20]).long(), KvccCache(folder / "generate.safetensors")
    out = model.generate(prompt, past_key_values=cache, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert out.shape == (1, 32) and cache.get_seq_length() == 31
    assert cache.layers[0].keys.shape == (1, 2, 31, 32)
