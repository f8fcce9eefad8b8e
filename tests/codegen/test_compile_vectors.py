"""kvcc compile of vector codebooks as users run it: units and cubins, the arrays beside them, the C header, refusals."""
import json
import re
import struct
import subprocess

import pytest

from support import SOURCE, kvcc, kvcc_json

FAMILIES = {"pack_key", "pack_value", "attention", "attention_merge", "key_scores", "value_mix", "value_merge", "dequantise_key", "dequantise_value", "copy_pages"}
LAYERS, HEADS, DIM = 2, 2, 64


@pytest.fixture(scope="module")
def work(tmp_path_factory, driver):
    folder = tmp_path_factory.mktemp("vectors é")
    for name, scheme in (("head", "kvcc-2-head"), ("channels", "kvcc-2-channels"), ("layer", "kvcc-2")):
        driver("write_codebook", folder / f"{name}.kvcb", scheme, LAYERS, HEADS, 3, DIM, DIM)
    return folder


@pytest.fixture(scope="module")
def built(work, nvcc):
    result = kvcc_json("compile", work / "head.kvcb", "--arch", "sm_80,sm_90", "-o", work / "out", "--cache-dir", work / "cache", "--threads", 2)
    return work / "out", result


def test_every_kernel_is_built_without_spills(built):
    out, result = built
    assert result["layout"] == "vector-1" and result["layout_reason"] == "" and result["schema_minor"] == 3
    assert {(k["family"], k["arch"]) for k in result["kernels"]} == {(f, a) for f in FAMILIES for a in ("sm_80", "sm_90", "compute_80")}
    text = (out / "formats/layout/vector_launch.h").read_text() + (out / "formats/layout/launch.h").read_text() + (
        out / "formats/layout/mma_launch.h").read_text()
    for kernel in result["kernels"]:
        assert kernel["spill_bytes"] == 0 and kernel["launch"]["grid"] in text
        if kernel["family"] == "copy_pages":
            continue
        assert kernel["spec"]["grid"] == "vq" and kernel["spec"]["transform"] is True and "bits" not in kernel["spec"]
        tensor_cores = kernel["family"] in ("attention", "attention_merge", "key_scores")
        assert ("steps" in kernel["spec"]) == tensor_cores
        if kernel["cubin"]:
            assert 0 < kernel["registers"] <= (255 if tensor_cores else 128) and kernel["shared_bytes"] <= 48 * 1024
            assert kernel["launch"]["dynamic_shared_bytes"] <= (99 if tensor_cores else 0) * 1024
        names = [argument["name"] for argument in kernel["arguments"]]
        tensor = "params.value" if kernel["family"].startswith("attention") else "params.tensor"
        assert names[0] == "params" and {f"{tensor}.tables", f"{tensor}.fragments"} <= set(names)
    kvcc("validate", out)


def test_the_folder_is_self_contained(built, nvcc, tmp_path):
    out, result = built
    moved = tmp_path / "moved"
    subprocess.run(["cp", "-r", str(out), str(moved)], check=True)
    source = next(k["source"] for k in result["kernels"] if k["family"] == "value_mix")
    subprocess.run([nvcc, "-std=c++20", "-fmad=false", "-cubin", "-arch=sm_80", "-I.", "-o", "x.cubin", source], cwd=moved, check=True)
    (moved / "use.cu").write_text('#include "kvcc_head.h"\n__global__ void k(KvccVectorTensor* t, KvccCache* c, const void* bytes) '
                                  "{ kvcc_vector_point(t, c, bytes, (const int64_t*)bytes, 64, 1); }\n")
    subprocess.run([nvcc, "-std=c++20", "-Werror", "all-warnings", "-cubin", "-arch=sm_80", "-I.", "-o", "y.cubin", "use.cu"], cwd=moved, check=True)


def test_units_do_not_depend_on_the_codebook(built, work, tmp_path):
    """Another artifact of the form takes every kernel from the cache; what differs is the arrays."""
    out, _ = built
    again = kvcc_json("compile", work / "head.kvcb", "--shard", "1/2", "--arch", "sm_80,sm_90", "-o", tmp_path / "out", "--cache-dir", work / "cache")
    # Half the heads have half the queries: the group is the same.
    assert (again["compiled"], again["cached"]) == (0, 8 * 3)
    assert (tmp_path / "out/kvcc_head_1of2_vectors.bin").stat().st_size < (out / "kvcc_head_vectors.bin").stat().st_size
    kvcc("validate", tmp_path / "out")


def groups(layer, head, fours=False):
    """As tests/formats/store/made.h makes them: (width, bits); kvcc-2-channels has groups of four."""
    found, at, group = [], 0, layer * HEADS + head
    while at < DIM:
        width = min(2 if group % 2 == 0 and not fours else 4, DIM - at)
        found.append((width, group % 4))
        at, group = at + width, group + 1
    return found


def test_the_arrays_are_the_codebooks(work, tmp_path):
    """Read as kernels.json says they lie."""
    result = kvcc_json("compile", work / "head.kvcb", "-o", tmp_path, "--emit-only")
    vectors = result["vectors"]
    data = (tmp_path / vectors["file"]).read_bytes()
    assert vectors["file"] in result["files"] and vectors["arrays"][:2] == ["head_words", "token_bits"]
    for tensor in ("key", "value"):
        assert vectors[tensor]["head_dim"] == DIM and vectors[tensor]["transform"] == 1
        for layer, places in enumerate(vectors[tensor]["places"]):
            at = dict(zip(vectors["arrays"], places))
            assert all(place % 128 == 0 or place == -1 for place in places) and (at["back"] == -1) == (tensor == "key")
            bits = [sum(b for _, b in groups(layer, h)) for h in range(HEADS)]
            assert struct.unpack_from("<2i", data, at["token_bits"]) == tuple(bits)
            words = [8 * ((2 * b + 7) // 8) for b in bits]
            assert struct.unpack_from("<2I", data, at["head_words"]) == (0, words[0]) == tuple(result["pages"][tensor]["head_words"][layer])
            assert result["pages"][tensor]["code_words"][layer] == sum(words)
            coded = [[(w, b) for w, b in groups(layer, h) if b > 0] for h in range(HEADS)]
            assert struct.unpack_from("<3i", data, at["first_quad"]) == (0, len(coded[0]), len(coded[0]) + len(coded[1]))
            first, width, first_bit, bits_of = struct.unpack_from("<4i", data, at["quads"])
            assert (first, width, first_bit, bits_of) == (0, coded[0][0][0], 0, coded[0][0][1])


C_PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kvcc_%(name)s.h"
int main(void) {
  static long long memory[1 << 17];
  KvccVectorPackParams pack;
  KvccVectorKeyScoresParams scores;
  FILE* const file = fopen("kvcc_%(name)s_vectors.bin", "rb");
  if (file == NULL || fread(memory, 1, sizeof memory, file) == 0 || fclose(file) != 0) return 1;
  memset(&pack, 0, sizeof pack);
  memset(&scores, 0, sizeof scores);
  kvcc_%(name)s_key_pages(&pack.pack.cache, 1, 0);
  kvcc_%(name)s_key_vectors(&pack.tensor, &pack.pack.cache, memory, 1);
  kvcc_%(name)s_value_pages(&scores.scores.cache, 0, 0);
  kvcc_%(name)s_value_vectors(&scores.tensor, &scores.scores.cache, memory, 0);
  scores.scores.cache.sequences = 2;
  scores.scores.group = 3;
  scores.scores.max_length = 100;
  if (kvcc_%(name)s_key_fixed_bytes(1) > pack.pack.cache.page_bytes) return 2;
  if (pack.pack.cache.head_words[1] != kvcc_%(name)s_key_head_words[1][1]) return 3;
  if ((pack.tensor.inverse == NULL) != (KVCC_%(upper)s_KEY_TRANSFORM == 0)) return 4;
  printf("%%d %%d %%d %%d %%d %%u\\n", pack.pack.cache.code_words, (int)pack.pack.cache.page_bytes, pack.tensor.token_bits[0],
         pack.tensor.quads[pack.tensor.first_quad[1] - 1].bits, scores.tensor.token_bits[1], kvcc_grid_key_scores(&scores.scores, 64).y);
  return 0;
}
"""


@pytest.mark.parametrize("compiler", [["cc", "-std=c99"], ["c++", "-std=c++11", "-x", "c++"]], ids=["c99", "c++11"])
@pytest.mark.parametrize("name", ["head", "channels"])
def test_the_header_compiles_and_finds_the_arrays(work, tmp_path, compiler, name):
    kvcc("compile", work / f"{name}.kvcb", "-o", tmp_path, "--emit-only")
    (tmp_path / "use.c").write_text(C_PROGRAM % {"name": name, "upper": name.upper()})
    subprocess.run([*compiler, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I.", "-o", "use", "use.c"], cwd=tmp_path, check=True)
    out = subprocess.run(["./use"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    fours = name == "channels"
    bits = [sum(b for _, b in groups(1, h, fours)) for h in range(HEADS)]
    words = sum(8 * ((2 * b + 7) // 8) for b in bits)
    last = [b for _, b in groups(1, 0, fours) if b > 0][-1]
    assert [int(word) for word in out.split()] == [words, (4 * words + 127) // 128 * 128, bits[0], last, sum(b for _, b in groups(0, 1, fours)), 2]


@pytest.mark.parametrize("arguments, named", [
    (["layer.kvcb"], ["a transform across the heads of a layer", "kvcc-2-head"]),
    (["head.kvcb", "--arch", "cpu"], ["built into the runtime"]),
    (["head.kvcb", "--layout", "mma-1"], ["mma-1 for vector codebooks", "vector-1"]),
    (["head.kvcb", "--families", "attention", "--dtype", "f32"], ["nothing to compile"]),
])
def test_what_there_is_not_is_refused(work, tmp_path, arguments, named):
    out, _ = kvcc("compile", work / arguments[0], *arguments[1:], "-o", tmp_path / "out", "--emit-only", "--json", code=2)
    error = json.loads(out)["error"]
    assert all(words in json.dumps(error) for words in named), error
    assert not (tmp_path / "out").exists()


def test_damaged_arrays_are_found(work, tmp_path):
    kvcc("compile", work / "head.kvcb", "-o", tmp_path, "--emit-only")
    file = tmp_path / "kvcc_head_vectors.bin"
    file.write_bytes(file.read_bytes()[:4096])
    out, err = kvcc("validate", tmp_path, code=3)
    assert "kvcc_head_vectors.bin: its sha256 is not the manifest's" in out + err and "an array at byte" in out + err


def test_every_source_compiles_for_the_emulator(work, tmp_path):
    kvcc("compile", work / "channels.kvcb", "-o", tmp_path, "--emit-only")
    sources = sorted(tmp_path.glob("*.cu"))
    assert len(sources) == 8
    for source in sources:
        subprocess.run(["c++", "-x", "c++", "-std=c++20", "-DKVCC_EMULATE", "-Wall", "-Wextra", "-Werror", "-I.", "-fsyntax-only",
                        source.name], cwd=tmp_path, check=True)
    assert not re.search("sha256", (tmp_path / sources[1].name).read_text())
