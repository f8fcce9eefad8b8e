"""What the tests of consumers that are not kvcc share: small exports, and pages that the reference codec packed."""
import subprocess
from types import SimpleNamespace

import numpy as np
from safetensors import safe_open

from support import BUILD, kvcc

LAYERS = (0, 2, 4)  # of make_store's artifact: two heads of 8 channels (values: 6)
TOKENS = 150


def export(folder, scheme):
    """(path of the export, its metadata, its arrays) of a small artifact."""
    artifact, out = folder / "made.kvcb", folder / "made.safetensors"
    subprocess.run([BUILD / "tests/bin/make_store", "codebook", artifact, scheme], check=True, capture_output=True)
    kvcc("export", artifact, "--to", "safetensors", "-o", out)
    with safe_open(out, "numpy") as file:
        return out, file.metadata(), {name: file.get_tensor(name) for name in file.keys()}


def packed(folder, arrays, tensor, row, tail, seed=0):
    """Rows made for layer LAYERS[row], as kvcc's reference codec packs and decodes them: x and decoded [T, H, D]."""
    levels, bits = arrays[f"{tensor}/codebook"][row], arrays[f"{tensor}/bits"][row]
    channel = f"{tensor}/scale" in arrays
    dim = 8 if tensor == "key" else 6
    x = np.random.default_rng(seed).standard_normal((TOKENS, 2, dim)).astype(np.float32)
    x[7, 0, :3] = (0.0, -0.0, 0.0)
    x[8] = 0.75  # ties
    if channel:
        names = {"scale": "scale", "zero": "zero", "threshold_lower": "lower", "threshold_upper": "upper"}
        for name, short in names.items():
            values = arrays.get(f"{tensor}/{name}", np.zeros((3, 0), np.float32))[row]
            (folder / f"{short}.f32").write_bytes(values.astype("<f4").tobytes())
        x = x * arrays[f"{tensor}/scale"][row] * np.float32(0.5) + arrays[f"{tensor}/zero"][row]
    (folder / "levels.f32").write_bytes(levels.astype("<f4").tobytes())
    (folder / "bits.u8").write_bytes(bits.tobytes())
    (folder / "x.f32").write_bytes(x.astype("<f4").tobytes())
    done = subprocess.run([BUILD / "tests/bin/linear_pages", folder, "channel" if channel else "token", "2", str(dim),
                           str(levels.shape[-1]), str(tail)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page_bytes, records = map(int, done.stdout.split())
    decoded = np.frombuffer((folder / "decoded.f32").read_bytes(), "<f4").reshape(x.shape)
    return SimpleNamespace(x=x, decoded=decoded, page_bytes=page_bytes, records=records, pages=folder / "pages.bin")


def tail_of(scheme_json, tensor, columns):
    """Outliers of each end a token (formats/spec/online-values.md)."""
    axis = scheme_json[tensor[0]]["axis"]
    return columns - int(np.ceil((1 - scheme_json["sparse"] / 2) * (columns - 1))) if axis == "token" and scheme_json["sparse"] else 0
