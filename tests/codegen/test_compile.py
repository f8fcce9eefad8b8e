"""kvcc compile as users run it: sources alone, cubins and PTX, the cache, the manifest, the C header, refusals."""
import json
import pathlib
import re
import shutil
import subprocess

import pytest

from support import SOURCE, kvcc, kvcc_json

LINEAR = {"pack_key", "pack_value", "key_scores", "value_mix", "value_merge", "dequantise_key", "dequantise_value", "copy_pages"}
FAMILIES = LINEAR | {"pack_value_select", "attention", "attention_merge"}


@pytest.fixture(scope="module")
def work(tmp_path_factory, driver):
    folder = tmp_path_factory.mktemp("модель é")
    driver("write_codebook", folder / "tiny.kvcb", "kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64)
    driver("write_codebook", folder / "other.kvcb", "kvcc-nuq4-1%-sink1", 2, 2, 3, 64, 32)  # mma-1 has no values of 32 channels
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
    assert result["layout"] == "mma-1" and result["layout_reason"] == ""
    assert all("dynamic_shared_bytes" not in kernel["launch"] for kernel in result["kernels"])
    kvcc("validate", tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.cu"))) == 8


def test_the_layout_and_the_families_can_be_chosen(work, tmp_path):
    result = kvcc_json("compile", work / "tiny.kvcb", "-o", tmp_path / "linear", "--emit-only", "--layout", "linear-1")
    assert result["layout"] == "linear-1" and {kernel["family"] for kernel in result["kernels"]} == LINEAR
    some = kvcc_json("compile", work / "tiny.kvcb", "-o", tmp_path / "some", "--emit-only", "--families", "pack_value,copy_pages")
    assert {kernel["family"] for kernel in some["kernels"]} == {"pack_value_select", "pack_value", "copy_pages"}
    kvcc("compile", work / "tiny.kvcb", "-o", tmp_path / "x", "--emit-only", "--layout", "mma", code=2)
    _, err = kvcc("compile", work / "tiny.kvcb", "-o", tmp_path / "x", "--emit-only", "--families", "packing", code=2)
    assert "pack_key" in err
    assert not (tmp_path / "x").exists()


def test_what_mma_does_not_have_falls_back_and_says_why(work, tmp_path):
    result = kvcc_json("compile", work / "other.kvcb", "-o", tmp_path / "auto", "--emit-only")
    assert result["layout"] == "linear-1" and "head dimension 32" in result["layout_reason"]
    _, err = kvcc("compile", work / "other.kvcb", "-o", tmp_path / "auto", "--emit-only")
    assert "layout linear-1: mma-1 has no" in err and "head dimension 32" in err
    out, _ = kvcc("compile", work / "other.kvcb", "-o", tmp_path / "mma", "--emit-only", "--layout", "mma-1", "--json", code=2)
    assert "head dimension 32" in json.loads(out)["error"]["message"] and not (tmp_path / "mma").exists()
    old = kvcc_json("compile", work / "tiny.kvcb", "-o", tmp_path / "old", "--emit-only", "--arch", "sm_75,sm_90")
    assert old["layout"] == "linear-1" and "sm_75" in old["layout_reason"]


def test_every_source_compiles_for_the_emulator(work, tmp_path):
    kvcc("compile", work / "tiny.kvcb", "-o", tmp_path, "--emit-only")
    for source in sorted(tmp_path.glob("*.cu")):
        subprocess.run(["c++", "-x", "c++", "-std=c++20", "-DKVCC_EMULATE", "-Wall", "-Wextra", "-Werror", "-I.", "-fsyntax-only",
                        source.name], cwd=tmp_path, check=True)


def test_dry_run_writes_nothing(work, tmp_path):
    plan = kvcc_json("compile", work / "tiny.kvcb", "--arch", "sm_80,sm_90", "-o", tmp_path / "out", "--dry-run")
    assert plan["compilations"] == 8 * 3 and not (tmp_path / "out").exists()


def test_every_kernel_is_built_without_spills(built):
    out, result = built
    kernels = result["kernels"]
    assert {(k["family"], k["arch"]) for k in kernels} == {(f, a) for f in FAMILIES for a in ("sm_80", "sm_90", "compute_80")}
    for kernel in kernels:
        assert kernel["spill_bytes"] == 0
        assert (out / kernel["source"]).exists() and (out / (kernel["cubin"] or kernel["ptx"])).exists()
        if kernel["cubin"]:
            assert kernel["min_blocks"] >= 1
            shared = kernel["shared_bytes"] + kernel["launch"]["dynamic_shared_bytes"]
            assert 0 < kernel["registers"] <= 255 and shared <= 99 * 1024
        names = [argument["name"] for argument in kernel["arguments"]]
        assert names[0] == "params" and {"params.cache.pages", "params.key.pages", "params.source"} & set(names)
        assert kernel["launch"]["grid"] in (out / "formats/layout/launch.h").read_text() + (out / "formats/layout/mma_launch.h").read_text()
    assert any(kernel["launch"]["dynamic_shared_bytes"] > 0 for kernel in kernels if kernel["family"] == "attention")
    order = {k["symbol"]: (k["launch"]["stage"], k["launch"]["when"]) for k in kernels}
    name = "kvcc_pack_value_nuq3_token_d64_tail_f16__mma1"
    assert order[name + "_select"] == (0, "always") and order[name] == (1, "always")
    merge = next(k for k in kernels if k["family"] == "attention_merge")
    assert order[merge["symbol"]] == (1, "splits > 1") and order[merge["symbol"].removesuffix("_merge")] == (0, "always")
    kvcc("validate", out)


def test_cubins_come_from_the_ptx_that_is_kept(built, nvcc, tmp_path):
    """Assembled again from the PTX, for another architecture too, with nothing else at hand."""
    out, result = built
    ptx = next(k["ptx"] for k in result["kernels"] if k["family"] == "key_scores" and k["ptx"])
    for arch in ("sm_90", "sm_120"):
        subprocess.run([nvcc, "-cubin", "-O3", "-fmad=false", "-lineinfo", f"-arch={arch}", "-o", tmp_path / f"{arch}.cubin", out / ptx],
                       check=True)
    code = {name: sections(path) for name, path in
            (("kept", out / ptx.replace("compute_80.ptx", "sm_90.cubin")), ("again", tmp_path / "sm_90.cubin"))}
    assert code["kept"] and code["kept"] == code["again"]


def sections(path):
    """Machine code of a cubin: its .text sections, name to bytes."""
    table = subprocess.run(["readelf", "-SW", str(path)], capture_output=True, text=True, check=True).stdout
    data, found = path.read_bytes(), {}
    for match in re.finditer(r"(\.text\.\S+)\s+PROGBITS\s+\w+ (\w+) (\w+)", table):
        offset, size = int(match.group(2), 16), int(match.group(3), 16)
        found[match.group(1)] = data[offset:offset + size]
    return found


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
        if kernel["family"] == "copy_pages":  # one for all artifacts
            assert result["content_sha256"] not in text and "Do not edit" in text
            continue
        assert result["content_sha256"] in text and "Do not edit" in text and "codegen/templates/kernel.cu.in" in text


def test_unchanged_inputs_compile_nothing(built, work):
    out, result = built
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    again = kvcc_json("compile", work / "tiny.kvcb", "--arch", "sm_80,sm_90", "-o", out, "--cache-dir", work / "cache")
    assert (again["compiled"], again["cached"], again["written"]) == (0, 24, 0)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_same_bytes_without_the_cache_in_another_folder(built, work, tmp_path):
    kvcc("compile", work / "tiny.kvcb", "--arch", "sm_80,sm_90", "-o", tmp_path / "elsewhere", "--cache-dir", tmp_path / "cache",
         "--threads", 1, env={"TMPDIR": str(tmp_path)})
    assert files(tmp_path / "elsewhere") == files(built[0])


def test_same_bytes_whatever_a_killed_run_left(built, work, tmp_path):
    """Line information names /tmp/kvcc-HASH/NAME.cu, which is gone when the cubin is assembled, or is there and has a time and a size."""
    out, result = built
    shutil.copytree(work / "cache", tmp_path / "cache")
    entries = list((tmp_path / "cache").rglob("*.entry"))
    cubins = [entry for entry in entries if b"\x7fELF" in entry.read_bytes()]
    assert (len(entries), len(cubins)) == (24, 16)
    for cubin in cubins:
        cubin.unlink()
    strays = {name for ptx in out.glob("*.ptx") for name in re.findall(r'\.file\s+\d+ "(/tmp/kvcc-[0-9a-f]{16}/[^/"]+\.cu)"', ptx.read_text())}
    assert len(strays) == 8
    strays = [pathlib.Path(stray) for stray in sorted(strays)]
    try:
        for stray in strays:
            stray.parent.mkdir()
            stray.write_text("left")
        again = kvcc_json("compile", work / "tiny.kvcb", "--arch", "sm_80,sm_90", "-o", tmp_path / "out", "--cache-dir", tmp_path / "cache")
    finally:
        for stray in strays:
            shutil.rmtree(stray.parent, ignore_errors=True)
    assert again["compiled"] == 16 and files(tmp_path / "out") == files(out)


def test_the_header_states_shared_memory_where_it_is_known(built, work, tmp_path):
    out, result = built
    header = (out / "kvcc_tiny.h").read_text()
    for kernel in result["kernels"]:
        name = re.search(rf'#define (\w+) "{kernel["symbol"]}"', header).group(1)
        assert f"#define {name}_DYNAMIC_SHARED_BYTES {kernel['launch']['dynamic_shared_bytes']}\n" in header
    assert "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES" in header
    kvcc("compile", work / "tiny.kvcb", "-o", tmp_path, "--emit-only")
    header = (tmp_path / "kvcc_tiny.h").read_text()
    assert "#define" in header and "_DYNAMIC_SHARED_BYTES " not in header.split("/* Entries")[1] and "--emit-only compiled none" in header


def test_files_that_are_removed_are_counted(work, tmp_path):
    kvcc("compile", work / "tiny.kvcb", "-o", tmp_path, "--emit-only")
    before = len(list(tmp_path.rglob("*.*")))
    fewer = ["compile", work / "tiny.kvcb", "-o", tmp_path, "--emit-only", "--families", "pack_key"]
    result = kvcc_json(*fewer)
    assert result["removed"] == before - len(list(tmp_path.rglob("*.*"))) > 7
    out, _ = kvcc(*fewer)
    assert "0 files written, 0 files removed" in out


def test_kernels_of_a_newer_schema_are_not_replaced_unasked(work, tmp_path):
    (tmp_path / "kernels.json").write_text('{"schema_version": 7}')
    arguments = ["compile", work / "tiny.kvcb", "-o", tmp_path, "--emit-only"]
    _, err = kvcc(*arguments, code=3)
    assert "kernels format 7" in err and "at most 1" in err and [path.name for path in tmp_path.iterdir()] == ["kernels.json"]
    kvcc(*arguments, "--force")
    assert json.loads((tmp_path / "kernels.json").read_text())["schema_version"] == 1


@pytest.mark.parametrize("arguments, named", [(["-o", ""], "-o"), (["--families", ""], "--families"), (["--families", "pack_key,"], "pack_key,"),
                                              (["--arch", "sm_80,"], "sm_80,")])
def test_empty_words_are_refused(work, tmp_path, arguments, named):
    folder = [] if "-o" in arguments else ["-o", tmp_path / "out"]
    _, err = kvcc("compile", work / "tiny.kvcb", "--emit-only", *folder, *arguments, code=2)
    assert named in err and not (tmp_path / "out").exists()


def test_architectures_are_checked_where_nvcc_is_at_hand(work, nvcc, tmp_path):
    for mode in ("--dry-run", "--emit-only"):
        _, err = kvcc("compile", work / "tiny.kvcb", "-o", tmp_path / "out", "--arch", "sm_999", mode, code=2)
        assert "sm_999" in err and not (tmp_path / "out").exists()


def test_what_no_compiler_says_is_cut(work, tmp_path):
    (tmp_path / "nvcc").write_text("#!/bin/sh\necho first; echo second; exit 3\n")
    (tmp_path / "nvcc").chmod(0o755)
    _, err = kvcc("compile", work / "tiny.kvcb", "-o", tmp_path / "out", code=1, env={"KVCC_NVCC": str(tmp_path / "nvcc")})
    assert "first" in err and "second" not in err


def test_an_interrupt_says_that_the_cache_keeps_what_is_done(work, tmp_path):
    (tmp_path / "nvcc").write_text('#!/bin/sh\ncase "$1" in --version) echo V13.0.88;; --list-gpu-arch) echo compute_80;;\n'
                                   "*) kill -INT $PPID; exit 1;; esac\n")
    (tmp_path / "nvcc").chmod(0o755)
    _, err = kvcc("compile", work / "tiny.kvcb", "--arch", "sm_80", "-o", tmp_path / "out", "--cache-dir", tmp_path / "cache", "--threads", 1, code=130,
                  env={"KVCC_NVCC": str(tmp_path / "nvcc")})
    assert "takes what is compiled from the cache" in err


def test_files_of_an_earlier_artifact_are_removed_and_others_kept(work, tmp_path):
    out = tmp_path / "out"
    kvcc("compile", work / "tiny.kvcb", "-o", out, "--emit-only")
    (out / "mine.txt").write_text("kept")
    kvcc("compile", work / "other.kvcb", "-o", out, "--emit-only")
    assert not list(out.glob("attention*")) and not list(out.glob("kernels/device/mma_*"))
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
  %(params)s scores;
  memset(&scores, 0, sizeof scores);
  key = value = scores.cache;
  kvcc_%(name)s_key_pages(&key, 1, 64);
  kvcc_%(name)s_value_pages(&value, 1, %(capacity)d);
  scores.cache = key;
  scores.cache.sequences = 2;
  scores.group = 3;
  scores.%(extent)s;
  /* what copy_pages gets: the parts of a page add up */
  if ((kvcc_%(name)s_key_fixed_bytes(1) + KVCC_%(upper)s_KEY_LISTS * 64 * 4 + 127) / 128 * 128 != key.page_bytes) return 1;
  if ((kvcc_%(name)s_value_fixed_bytes(1) + KVCC_%(upper)s_VALUE_LISTS * %(capacity)d * 4 + 127) / 128 * 128 != value.page_bytes) return 2;
  printf("%%d %%d %%d %%d %%u %%u\\n", key.code_words, (int)key.page_bytes, value.code_words, (int)value.page_bytes,
         %(grid)s.x, %(grid)s.y);
  return 0;
}
"""
LINEAR_C = {"params": "KvccKeyScoresParams", "capacity": 0, "extent": "max_length = 100", "grid": "kvcc_grid_key_scores(&scores, 64)"}
MMA_C = {"params": "KvccMmaKeyScoresParams", "capacity": 32, "extent": "splits = 4", "grid": "kvcc_grid_mma_key_scores(&scores)"}


@pytest.mark.parametrize("compiler", [["cc", "-std=c99"], ["c++", "-std=c++11", "-x", "c++"]], ids=["c99", "c++11"])
@pytest.mark.parametrize("name, layout, wanted", [("tiny", "linear-1", [768, 3584, 768, 3840, 4, 2]),
                                                  ("other", "linear-1", [1024, 4608, 512, 2816, 4, 2]),
                                                  ("tiny", "mma-1", [768, 3712, 768, 3712, 4, 2])])
def test_the_header_compiles_and_computes(work, tmp_path, compiler, name, layout, wanted):
    """Hand-computed. linear-1: 64 tokens x 2 heads x 6 words of codes; keys 64 row ends and 64 records, values 64 ranges and 128
    records. The other has 4 bits, and values of 32 channels. mma-1: 768 words of codes; keys 2 x 8 class ends of 2 bytes and 2 x 64
    records, 3616 bytes; values 64 ranges, 2 x 32 class ends and 2 x 32 records, 3712; in steps of 128."""
    kvcc("compile", work / f"{name}.kvcb", "-o", tmp_path, "--emit-only", "--layout", layout)
    (tmp_path / "use.c").write_text(C_PROGRAM % {"name": name, "upper": name.upper(), **(MMA_C if layout == "mma-1" else LINEAR_C)})
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
    assert not (tmp_path / "out").exists() and not list((tmp_path / "cache").rglob("*.entry"))


SPILLING = """#!/bin/sh
case "$1" in --version) echo V13.0.88; exit;; --list-gpu-arch) echo compute_80; exit;; esac
for out; do [ "$before" = -o ] && break; before=$out; done
case $out in
*.ptx)
  for symbol in $(sed -n 's/^KVCC_KERNEL(\\([a-z0-9_]*\\),.*/\\1/p' *.cu); do
    printf '.global .align 4 .u32 %s_shared_bytes = 64;\n.visible .entry %s(\n)\n.minnctapersm 2\n{\n}\n' $symbol $symbol
  done > $out;;
*)
  cp *.ptx $out
  for symbol in $(sed -n 's/^.visible .entry \\([a-z0-9_]*\\)(/\\1/p' *.ptx); do
    printf "Compiling entry function '%s'\n8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\nUsed 255 registers\n" $symbol
  done;;
esac
"""


@pytest.mark.parametrize("dtype, shipped", [("f16", True), ("bf16", False)])
def test_what_spills_with_one_block_is_refused_where_shipped_and_warned_of_else(work, tmp_path, dtype, shipped):
    """With an nvcc whose every kernel spills. The f16 unit is a row of kernels/list, the bf16 one is not."""
    (tmp_path / "nvcc").write_text(SPILLING)
    (tmp_path / "nvcc").chmod(0o755)
    arguments = ["compile", work / "tiny.kvcb", "--arch", "sm_80", "--families", "attention", "--dtype", dtype, "-o", tmp_path / "out",
                 "--cache-dir", tmp_path / "cache", "--json"]
    out, err = kvcc(*arguments, code=1 if shipped else 0, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    if shipped:
        message = json.loads(out)["error"]["message"]
        assert "attention_nuq3_channel_d64_csr_half64_v_nuq3_token_d64_tail_g8_f16__mma1 for sm_80" in message and "12 bytes" in message
        assert not (tmp_path / "out").exists()
        return
    kernels = [kernel for kernel in json.loads(out)["kernels"] if kernel["cubin"]]
    assert len(kernels) == 2 and all(kernel["spill_bytes"] == 12 and kernel["min_blocks"] == 1 for kernel in kernels)
    for kernel in kernels:
        assert f"{kernel['symbol']} spills 12 bytes" in err and "sm_80" in err
    assert ".minnctapersm 2" in next((tmp_path / "out").glob("*.ptx")).read_text()  # the PTX that is kept states its own
    _, err = kvcc(*arguments, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert "spills 12 bytes" in err  # from the cache too
