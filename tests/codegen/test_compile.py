"""kvcc compile as users run it: sources alone, cubins and PTX, the cache, the manifest, the C header, refusals."""
import json
import re
import subprocess

import pytest

from support import SOURCE, kvcc, kvcc_json

FAMILIES = {"pack_key", "pack_value", "key_scores", "value_mix", "value_merge", "dequantise_key", "dequantise_value"}


@pytest.fixture(scope="module")
def work(tmp_path_factory, driver):
    folder = tmp_path_factory.mktemp("модель é")
    driver("write_codebook", folder / "tiny.kvcb", "kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64)
    driver("write_codebook", folder / "other.kvcb", "kvcc-nuq4-1%-sink1", 2, 2, 3, 64, 32)
    return folder


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def built(work, nvcc):
    result = kvcc_json("compile", work / "tiny.kvcb", "--arch", "sm_80,sm_90", "-o", work / "out", "--cache-dir", work / "cache",
                       "--threads", 2)
    return work / "out", result


def test_sources_alone_need_no_nvcc(work, tmp_path):
    env = {"PATH": "/usr/bin:/bin", "CUDA_HOME": "/nowhere", "VIRTUAL_ENV": "/nowhere"}
    result = kvcc_json("compile", work / "tiny.kvcb", "-o", tmp_path / "out", "--emit-only", env=env)
    assert {kernel["family"] for kernel in result["kernels"]} == FAMILIES
    assert result["nvcc_version"] == "" and all(kernel["cubin"] == "" for kernel in result["kernels"])
    kvcc("validate", tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.cu"))) == 6


def test_dry_run_writes_nothing(work, tmp_path):
    plan = kvcc_json("compile", work / "tiny.kvcb", "--arch", "sm_80,sm_90", "-o", tmp_path / "out", "--dry-run")
    assert plan["compilations"] == 6 * 3 and not (tmp_path / "out").exists()


def test_every_kernel_is_built_without_spills(built):
    out, result = built
    kernels = result["kernels"]
    assert {(k["family"], k["arch"]) for k in kernels} == {(f, a) for f in FAMILIES for a in ("sm_80", "sm_90", "compute_90")}
    for kernel in kernels:
        assert kernel["spill_bytes"] == 0
        assert (out / kernel["source"]).exists() and (out / (kernel["cubin"] or kernel["ptx"])).exists()
        if kernel["cubin"]:
            assert 0 < kernel["registers"] <= 128 and kernel["shared_bytes"] <= 48 * 1024
        names = [argument["name"] for argument in kernel["arguments"]]
        assert names[0] == "params" and "params.cache.pages" in names
    kvcc("validate", out)


def test_symbols_are_those_of_the_manifest(built):
    out, result = built
    listed = {}
    for kernel in result["kernels"]:
        listed.setdefault(kernel["cubin"] or kernel["ptx"], set()).add(kernel["symbol"])
    for name, symbols in listed.items():
        if name.endswith(".ptx"):
            found = set(re.findall(r"\.entry (\w+)", (out / name).read_text()))
        else:
            table = subprocess.run(["readelf", "-Ws", str(out / name)], capture_output=True, text=True, check=True).stdout
            found = {line.split()[-1] for line in table.splitlines() if " FUNC " in line and " GLOBAL " in line}
        assert found == symbols, name


def test_units_name_their_origin_and_embed_the_levels(built):
    out, result = built
    for kernel in result["kernels"]:
        text = (out / kernel["source"]).read_text()
        assert result["content_sha256"] in text and "Do not edit" in text and "codegen/templates/kernel.cu.in" in text


def test_unchanged_inputs_compile_nothing(built, work):
    out, result = built
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    again = kvcc_json("compile", work / "tiny.kvcb", "--arch", "sm_80,sm_90", "-o", out, "--cache-dir", work / "cache")
    assert (again["compiled"], again["cached"], again["written"]) == (0, 18, 0)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_same_bytes_without_the_cache_in_another_folder(built, work, tmp_path):
    kvcc("compile", work / "tiny.kvcb", "--arch", "sm_80,sm_90", "-o", tmp_path / "elsewhere", "--cache-dir", tmp_path / "cache",
         "--threads", 1, env={"TMPDIR": str(tmp_path)})
    assert files(tmp_path / "elsewhere") == files(built[0])


def test_files_of_an_earlier_artifact_are_removed_and_others_kept(work, tmp_path):
    out = tmp_path / "out"
    kvcc("compile", work / "tiny.kvcb", "-o", out, "--emit-only")
    (out / "mine.txt").write_text("kept")
    kvcc("compile", work / "other.kvcb", "-o", out, "--emit-only")
    names = {path.name for path in out.iterdir()}
    assert "kvcc_other.h" in names and "kvcc_tiny.h" not in names and "mine.txt" in names
    assert not [name for name in names if name.endswith(".cu") and "nuq3_" in name]
    kvcc("validate", out)


def test_the_folder_is_self_contained(built, nvcc, tmp_path):
    out, result = built
    moved = tmp_path / "moved"
    subprocess.run(["cp", "-r", str(out), str(moved)], check=True)
    source = next(k["source"] for k in result["kernels"] if k["family"] == "pack_value")
    subprocess.run([nvcc, "-std=c++20", "-fmad=false", "-cubin", "-arch=sm_80", "-I.", "-o", "x.cubin", source], cwd=moved, check=True)


C_PROGRAM = """
#include <stdio.h>
#include <string.h>
#include "kvcc_%(name)s.h"
int main(void) {
  KvccCache key, value;
  KvccKeyScoresParams scores;
  memset(&scores, 0, sizeof scores);
  key = value = scores.cache;
  kvcc_%(name)s_key_pages(&key, 1, 64);
  kvcc_%(name)s_value_pages(&value, 1, 0);
  scores.cache = key;
  scores.cache.sequences = 2;
  scores.group = 3;
  scores.max_length = 100;
  printf("%%d %%d %%d %%d %%u %%u\\n", key.code_words, (int)key.page_bytes, value.code_words, (int)value.page_bytes,
         kvcc_grid_key_scores(&scores, 64).x, kvcc_grid_key_scores(&scores, 64).y);
  return 0;
}
"""


@pytest.mark.parametrize("compiler", [["cc", "-std=c99"], ["c++", "-std=c++11", "-x", "c++"]], ids=["c99", "c++11"])
@pytest.mark.parametrize("name, wanted", [("tiny", [768, 3584, 768, 3840, 4, 2]), ("other", [1024, 4608, 512, 2816, 4, 2])])
def test_the_header_compiles_and_computes(work, tmp_path, compiler, name, wanted):
    """Hand-computed: 64 tokens x 2 heads x 6 words of codes; keys 64 row ends and 64 records, values 64 ranges and 128
    records. The other has 4 bits, and values of 32 channels."""
    kvcc("compile", work / f"{name}.kvcb", "-o", tmp_path, "--emit-only")
    (tmp_path / "use.c").write_text(C_PROGRAM % {"name": name})
    subprocess.run([*compiler, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I.", "-o", "use", "use.c"], cwd=tmp_path, check=True)
    out = subprocess.run([str(tmp_path / "use")], capture_output=True, text=True, check=True).stdout
    assert [int(word) for word in out.split()] == wanted


def test_the_header_of_mixed_widths_compiles_and_computes(tmp_path):
    """tests/golden/codegen/mixed: key heads of 3 and 2, then 2 and 3 bits. No artifact has them yet."""
    golden = SOURCE / "tests/golden/codegen/mixed"
    (tmp_path / "use.c").write_text(
        """#include <stdio.h>
#include "kvcc_tiny_3.h"
int main(void) {
  KvccCache c = {0};
  kvcc_tiny_3_key_pages(&c, 1, 0);
  printf("%d %u %u\\n", c.code_words, kvcc_tiny_3_key_head_words[0][1], kvcc_tiny_3_key_head_words[1][1]);
  return 0;
}
""")
    subprocess.run(["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{golden}", f"-I{SOURCE}", "-o", "use", "use.c"],
                   cwd=tmp_path, check=True)
    out = subprocess.run([str(tmp_path / "use")], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["640", "384", "256"]


def test_F63_unknown_architectures_are_refused_beforehand(work, nvcc, tmp_path):
    out, _ = kvcc("compile", work / "tiny.kvcb", "--arch", "sm_70,sm_80", "-o", tmp_path / "out", "--json", code=2)
    message = json.loads(out)["error"]["message"]
    assert "sm_70" in message and "sm_75" in message and not (tmp_path / "out").exists()
    kvcc("compile", work / "tiny.kvcb", "--arch", "80", "-o", tmp_path / "out", code=2)


def test_what_no_kernel_serves_is_refused_by_name(driver, tmp_path):
    driver("write_codebook", tmp_path / "odd.kvcb", "kvcc-nuq3-1%-sink1", 1, 2, 1, 72, 72)
    out, _ = kvcc("compile", tmp_path / "odd.kvcb", "-o", tmp_path / "out", "--emit-only", "--json", code=2)
    assert "head dimension 72" in json.loads(out)["error"]["message"]


def test_a_failing_compiler_is_quoted(work, tmp_path):
    fake = tmp_path / "nvcc"
    fake.write_text("#!/bin/sh\ncase \"$1\" in --version) echo V13.0.88;; --list-gpu-arch) echo compute_80;;\n"
                    "*) echo 'ptxas error : Registers are spilled to local memory'; exit 255;; esac\n")
    fake.chmod(0o755)
    out, _ = kvcc("compile", work / "tiny.kvcb", "--arch", "sm_80", "-o", tmp_path / "out", "--cache-dir", tmp_path / "cache", "--json",
                  code=1, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert "Registers are spilled" in json.loads(out)["error"]["message"]
    assert not (tmp_path / "out").exists() and not list((tmp_path / "cache").rglob("*.cubin"))
