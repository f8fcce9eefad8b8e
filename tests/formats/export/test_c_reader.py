"""formats/export/c/kvcc_read.h, C without C++: built by gcc, it decodes the reference codec's pages bit for bit, and no
damaged file makes it read beyond its bytes."""
import json
import re
import subprocess

import numpy as np
import pytest

from consumers import LAYERS, TOKENS, export, packed, tail_of
from support import SOURCE

SCHEMES = ["kvcc-nuq3-1%-sink1", "kvcc-nuq4", "kvcc-nuq2-10%", "int8-channel-prerope-1%", "int5-channel-prerope",
           "k=int4@postrope/token,v=nuq3@token,sparse=20%"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The program under sanitisers; any warning fails either build."""
    folder = tmp_path_factory.mktemp("reader")
    for name, flags in {"plain": ["-O2"], "sanitised": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]}.items():
        done = subprocess.run(["gcc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", *flags,
                               "-I", SOURCE / "formats/export/c", SOURCE / "tests/formats/export/read_head.c",
                               "-o", folder / name, "-lm"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folder / "sanitised"


def decode(reader, out, tensor, layer, head, made, capacity=None, page_bytes=None, code=0):
    done = subprocess.run([reader, out, tensor, str(layer), str(head), made.pages, str(page_bytes or made.page_bytes),
                           str(made.records if capacity is None else capacity), str(TOKENS)], capture_output=True)
    assert done.returncode == code, done.stderr
    return np.frombuffer(done.stdout, "<f4").reshape(TOKENS, -1) if code == 0 else done.stderr.decode()


@pytest.mark.parametrize("tensor", ["key", "value"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_head_decodes_bit_for_bit(reader, tmp_path, scheme, tensor):
    out, metadata, arrays = export(tmp_path, scheme)
    scheme_json = json.loads(metadata["scheme_json"])
    columns = 16 if tensor == "key" else 12
    row = 1
    made = packed(tmp_path, arrays, tensor, row, tail_of(scheme_json, tensor, columns))
    assert len(np.unique(made.decoded)) > 16, "the case decides nothing"
    if scheme_json["sparse"]:
        assert made.records > 0 and (made.decoded == made.x.astype(np.float16)).mean() > 0.01, "no outliers to decode"
    for head in range(2):
        found = decode(reader, out, tensor, LAYERS[row], head, made)
        np.testing.assert_array_equal(found.view(np.uint32), made.decoded[:, head].view(np.uint32))


def test_refusals(reader, tmp_path):
    out, metadata, arrays = export(tmp_path, SCHEMES[0])
    made = packed(tmp_path, arrays, "key", 1, 0)
    assert "no such head" in decode(reader, out, "key", 2, 2, made, code=3)
    assert "does not hold the layer" in decode(reader, out, "key", 1, 0, made, code=3)
    assert "too small" in decode(reader, out, "key", 2, 0, made, page_bytes=made.page_bytes - 128, code=3)
    assert "row ends" in decode(reader, out, "key", 2, 0, made, capacity=1, code=3)
    data = out.read_bytes()
    for old, new, message in [(b'"format_version":"1.', b'"format_version":"2.', "format version"),
                              (b"kvcc-codebook", b"kvcc-cocebook", "not an export"),
                              (b'"key/codebook"', b'"key/codebock"', "missing"),
                              (b'"model.head_dim":"8"', b'"model.head_dim":"7"', "another type or shape"),
                              (b'"model.kv_heads":"2"', b'"model.kv_heads":"0"', "another type or shape"),
                              (b'"shape":[3,2,8]', b'"shape":[9,2,8]', "fit its shape"),
                              (b'"data_offsets":[0,', b'"data_offsets":[9,', "leave the file|fit its shape"),
                              (b'"F32"', b'"F23"', "unknown dtype")]:
        assert old in data
        out.write_bytes(data.replace(old, new))
        assert re.search(message, decode(reader, out, "key", 2, 0, made, code=3)), old


@pytest.mark.parametrize("scheme", [SCHEMES[0], SCHEMES[-1]])
def test_damaged_files_are_refused_inside_their_bytes(reader, tmp_path, scheme):
    """Truncated anywhere: refused. One byte of the header changed: refused or harmless, and never a read outside."""
    out, _, _ = export(tmp_path, scheme)
    done = subprocess.run([reader, out, "damage"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    truncated, edited = map(int, done.stdout.split())
    assert truncated == 0
    assert edited > 0, "nothing reached the pages: the test would show nothing"
