"""The C API from Python: the ten lines of the README, what the library exports, and a text that another process
continues."""
import os
import re
import subprocess
import sys

import numpy as np
from runtime_api import LIBRARY, Runtime, functions_of_header, make_artifact, options
from support import SOURCE


def example():
    """The README's."""
    blocks = re.findall(r"```python\n(.*?)```", (SOURCE / "README.md").read_text(), re.S)
    return next(block for block in blocks if "kvcc_artifact_open" in block)


def test_ten_lines_of_the_readme(tmp_path):
    text = example()
    assert len(text.strip().splitlines()) <= 10
    make_artifact(tmp_path / "model.safetensors")
    done = subprocess.run([sys.executable, "-c", text + "assert np.isfinite(out).all() and out.std() > 0\n"], cwd=tmp_path,
                          env={**os.environ, "LD_LIBRARY_PATH": str(LIBRARY.parent)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith("[[")


def test_only_the_functions_of_the_header_are_exported():
    listed = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], check=True, capture_output=True, text=True).stdout
    assert {line.split()[-1] for line in listed.splitlines()} == functions_of_header()
    dynamic = subprocess.run(["readelf", "-d", LIBRARY], check=True, capture_output=True, text=True).stdout
    assert "[libkvcc_runtime.so.0]" in dynamic
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic
    assert "torch" not in dynamic and "hdf5" not in dynamic


def attention(query, key, value):
    """[Hq, D] over [T, H, D], all in double; keys before RoPE."""
    tokens, heads, dim = key.shape
    angle = np.outer(np.arange(tokens), 10000.0 ** (-np.arange(dim // 2) / (dim // 2)))[:, None]
    a, b = key[..., :dim // 2], key[..., dim // 2:]
    turned = np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)
    out = np.empty(query.shape)
    for h, q in enumerate(query):
        kv = h * heads // len(query)
        scores = turned[:, kv] @ q / np.sqrt(dim)
        weights = np.exp(scores - scores.max())
        out[h] = weights / weights.sum() @ value[:, kv]
    return out


CONTINUE = '''
import sys
import numpy as np
from runtime_api import Runtime, options
r, folder = Runtime(), sys.argv[1]
artifact = r.made("artifact_open", (folder + "/model.safetensors").encode())
cache = r.made("load", artifact, (folder + "/cache").encode(), options(threads=1))
x = np.load(folder + "/rest.npz")
out = np.empty((100, 6, 64), np.float32)
for layer in range(2):
    r.call("append_attend", cache, layer, x["key"][layer], x["value"][layer], x["query"], 100, 0.0, 0, out)
r.call("save", cache, (folder + "/after").encode(), None, 0)
np.save(folder + "/out.npy", out)
'''


def test_another_process_continues(tmp_path):
    make_artifact(tmp_path / "model.safetensors")
    r, random = Runtime(), np.random.default_rng(1)
    rows = lambda *shape: random.standard_normal(shape).astype(np.float32)
    artifact = r.made("artifact_open", tmp_path / "model.safetensors")
    cache = r.made("create", artifact, options(threads=2))
    key, value, query = rows(2, 300, 2, 64), rows(2, 300, 2, 64), rows(100, 6, 64)
    for layer in range(2):
        r.call("append", cache, layer, np.ascontiguousarray(key[layer, :200]), np.ascontiguousarray(value[layer, :200]), 200)
    r.call("save", cache, tmp_path / "cache", None, 0)
    np.savez(tmp_path / "rest.npz", key=key[:, 200:], value=value[:, 200:], query=query)
    done = subprocess.run([sys.executable, "-c", CONTINUE, tmp_path], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stderr
    out = np.empty((100, 6, 64), np.float32)
    for layer in range(2):
        r.call("append_attend", cache, layer, np.ascontiguousarray(key[layer, 200:]),
               np.ascontiguousarray(value[layer, 200:]), query, 100, 0.0, 0, out)
    r.call("save", cache, tmp_path / "here", None, 0)
    assert (np.load(tmp_path / "out.npy") == out).all()
    assert (tmp_path / "after").read_bytes() == (tmp_path / "here").read_bytes()
    back = np.empty((2, 300, 2, 64), np.float32)
    r.call("read", cache, 1, 0, 300, back[0], back[1])
    wanted = attention(query[-1].astype(float), *back.astype(float))
    assert np.abs(out[-1] - wanted).max() < 1e-5
    assert np.abs(back[0] - key[1]).mean() < 0.3 and (back[0, 0] == key[1, 0].astype(np.float16)).all()
    r.library.kvcc_free(cache)
    r.library.kvcc_artifact_free(artifact)
