"""What the Python tests share: where things are, running programs, tiny models."""
import json
import os
import subprocess
from pathlib import Path

import pytest

# Programs run by tests share the machine with other tests: their threads sleep while they wait (as under `kvcc`).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

SOURCE = Path(os.environ.get("KVCC_SOURCE", Path(__file__).resolve().parents[1]))
BUILD = Path(os.environ.get("KVCC_BUILD", SOURCE / "build"))
KVCC = BUILD / "bin" / "kvcc"


def model_path():
    """SmolLM2's GGUF; skips, and says so, where it is not."""
    path = Path(os.environ.get("KVCC_MODEL", SOURCE / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    if not path.exists():
        pytest.skip(f"SKIPPED: no model at {path} ('make model' gets it)")
    return path


def data_path(name):
    """A file of the shared data sets, e.g. "smollm2/evaluation_ids.npy"; skips, and says so, where it is not."""
    path = Path(os.environ.get("KVCC_DATA", SOURCE / "../shared/datasets")) / name
    if not path.exists():
        pytest.skip(f"SKIPPED: no data at {path} (set KVCC_DATA)")
    return path


def kvcc(*arguments, code=0, kvcc_program=KVCC, env=None):
    """Runs kvcc; checks the exit code; returns (stdout, stderr)."""
    done = subprocess.run([str(kvcc_program), *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, **(env or {})})
    assert done.returncode == code, f"exit {done.returncode}, wanted {code}\n{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout, done.stderr


def kvcc_json(*arguments, **kw):
    """Runs kvcc with --json; stdout must be one JSON document and nothing else."""
    return json.loads(kvcc(*arguments, "--json", **kw)[0])


def tiny_llama(folder, **changes):
    """A random Llama of transformers, saved to `folder` as safetensors. GQA 4:2, head_dim given explicitly."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(changes.pop("seed", 0))
    settings = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=32, vocab_size=256, max_position_embeddings=512,
                    tie_word_embeddings=True, initializer_range=0.3)
    settings.update(changes)
    model = LlamaForCausalLM(LlamaConfig(**settings)).eval()
    model.save_pretrained(folder)
    return model


def random_ids(path, rows, length, vocab=256, seed=0):
    import numpy as np
    ids = np.random.default_rng(seed).integers(0, vocab, (rows, length)).astype(np.int32)
    np.save(path, ids)
    return ids
