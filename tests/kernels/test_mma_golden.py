"""Pages of layout mma-1 against an implementation that shares nothing with the library (mma_pages.py): from the codes,
ranges and records that it reads in the linear-1 page of the same rows, the mma-1 page to the byte."""
import subprocess

import numpy as np
import pytest
from mma_pages import Shape, mma_page, mma_page_bytes, read_linear
from support import BUILD

DRIVER = BUILD / "tests" / "bin" / "mma_pages"
DIMS = [16, 64, 80, 96, 128, 192, 256]


def check(folder, tensor, axis, dim, bits, tokens, sparse, seed=1):
    prefix = folder / "case"
    done = subprocess.run([DRIVER, tensor, axis, str(dim), ",".join(map(str, bits)), str(tokens), str(sparse), str(seed),
                           str(prefix)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    linear_bytes, mma_bytes, capacity = map(int, done.stdout.split())
    shape = Shape(tensor, dim, bits, axis == "token",
                  "none" if sparse == 0 else "csr" if axis == "channel" else "tail", sparse if axis == "token" else 0)
    linear = (folder / "case.linear").read_bytes()
    found = (folder / "case.mma").read_bytes()
    pages = (tokens + 63) // 64
    assert mma_bytes == mma_page_bytes(shape, capacity)
    assert (len(linear), len(found)) == (pages * linear_bytes, pages * mma_bytes)
    outliers = 0
    for i in range(pages):
        codes, ranges, records = read_linear(linear[i * linear_bytes:(i + 1) * linear_bytes], shape)
        filled = min(64, tokens - 64 * i)
        records = {at: value for at, value in records.items() if at[0] < filled}  # a tail's other slots hold no tokens
        outliers += len(records)
        wanted = mma_page(codes, ranges, records, shape, capacity)
        ours = found[i * mma_bytes:(i + 1) * mma_bytes]
        if ours != wanted:
            at = int(np.argmax(np.frombuffer(ours, np.uint8) != np.frombuffer(wanted, np.uint8)))
            raise AssertionError(f"page {i}, byte {at}: {ours[at]:02x}, wanted {wanted[at]:02x}")
    assert (outliers > 0) == (sparse > 0 and tokens > 0)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("tensor", ["key", "value"])
def test_every_head_dimension(tmp_path, tensor, bits):
    for dim in DIMS:
        check(tmp_path, tensor, "channel", dim, [bits], 70, 1)
        check(tmp_path, tensor, "token", dim, [bits], 70, 1)


@pytest.mark.parametrize("tensor", ["key", "value"])
@pytest.mark.parametrize("axis", ["channel", "token"])
def test_widths_by_head_and_edges(tmp_path, tensor, axis):
    for tokens in [0, 1, 8, 63, 64, 65]:
        for sparse in [0, 2]:
            check(tmp_path, tensor, axis, 64, [3, 8, 2, 4], tokens, sparse, seed=tokens)
