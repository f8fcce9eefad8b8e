"""kvcc compile --arch cpu as users run it: the library, the cache, the manifest, the C header, refusals."""
import ctypes
import json
import os
import shutil
import subprocess
import time

import pytest

from support import SOURCE, kvcc, kvcc_json

FEW = "pack_value,copy_pages"  # compile quickly; that all units are right is tested by EmittedCpuUnits


@pytest.fixture(scope="module")
def work(tmp_path_factory, driver):
    folder = tmp_path_factory.mktemp("модель é")
    driver("write_codebook", folder / "tiny.kvcb", "kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64)
    driver("write_codebook", folder / "other.kvcb", "kvcc-nuq4-1%-sink1", 2, 2, 3, 64, 32)  # mma-1 has no values of 32 channels
    return folder


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def built(work):
    result = kvcc_json("compile", work / "tiny.kvcb", "--arch", "cpu", "-o", work / "out", "--cache-dir", work / "cache", "--threads", 2,
                       "--families", FEW)
    return work / "out", result


def test_sources_alone_need_no_compiler(work, tmp_path):
    env = {"PATH": "/nowhere", "CXX": ""}
    result = kvcc_json("compile", work / "tiny.kvcb", "--arch", "cpu", "-o", tmp_path / "out", "--emit-only", env=env)
    assert len(list((tmp_path / "out").glob("*.cc"))) == 9 and not list((tmp_path / "out").glob("*.so"))
    assert "cxx_version" not in result and result["nvcc_version"] == ""
    for kernel in result["kernels"]:
        assert (kernel["arch"], kernel["library"], kernel["instruction_sets"]) == ("cpu", "", [])
        assert kernel["source"] == kernel["name"].removesuffix("_merge").removesuffix("_select") + ".cc"
        assert kernel["launch"]["block"] == [1, 1, 1]
        names = [argument["name"] for argument in kernel["arguments"]]
        assert names[0] == "params" and names[-2:] == ["first", "last"] and "tables.relative_cosine" in names
    assert {kernel["spec"].get("dtype", "f32") for kernel in result["kernels"]} == {"f32"}
    kvcc("validate", tmp_path / "out")


def test_both_machines_in_one_folder(work, tmp_path):
    arguments = ["compile", work / "tiny.kvcb", "--arch", "sm_90,cpu", "-o", tmp_path / "out"]
    plan = kvcc_json(*arguments, "--dry-run")
    assert plan["archs"] == ["sm_90", "cpu"] and plan["compilations"] == 8 * 2 + 8 + 2 and not (tmp_path / "out").exists()
    result = kvcc_json(*arguments, "--emit-only")
    assert {(k["arch"], k["spec"]["dtype"]) for k in result["kernels"] if k["family"] == "attention"} == {("", "f16"), ("cpu", "f32")}
    same = kvcc_json(*arguments, "--emit-only", "--dtype", "bf16")
    assert {(k["arch"], k["spec"]["dtype"]) for k in same["kernels"] if k["family"] == "attention"} == {("", "bf16"), ("cpu", "bf16")}
    kvcc("validate", tmp_path / "out")
    kvcc("inspect", tmp_path / "out")
    # f32 is the CPU's alone in layout mma-1, and that layout is the CPU's only one.
    out, _ = kvcc(*arguments, "--emit-only", "--dtype", "f32", "--json", code=2)
    assert "has no dtype f32" in json.loads(out)["error"]["message"]


def test_what_the_cpu_does_not_have_is_refused(work, tmp_path):
    arguments = ["compile", "-o", tmp_path / "out", "--emit-only"]
    _, err = kvcc(*arguments, work / "other.kvcb", "--arch", "cpu", code=2)
    assert "head dimension 32" in err and "layout mma-1" in err
    _, err = kvcc(*arguments, work / "tiny.kvcb", "--arch", "cpu", "--layout", "linear-1", code=2)
    assert "linear-1 for the CPU" in err
    for word in ("CPU", "cpu,", "avx2"):
        kvcc(*arguments, work / "tiny.kvcb", "--arch", word, code=2)
    assert not (tmp_path / "out").exists()


def test_the_library_is_listed_and_loads(built):
    out, result = built
    assert (result["compiled"], result["cached"]) == (4, 0)
    assert result["cxx_version"] and result["highway_version"].count(".") == 2
    assert {k["family"] for k in result["kernels"]} == {"pack_value_select", "pack_value", "copy_pages"}
    library = ctypes.CDLL(str(out / "kvcc_tiny_cpu.so"))
    for kernel in result["kernels"]:
        assert kernel["library"] == "kvcc_tiny_cpu.so" and len(kernel["instruction_sets"]) > 1
        assert getattr(library, kernel["symbol"])
    # Nothing but entries and the table is seen from outside.
    table = subprocess.run(["nm", "-D", "--defined-only", out / "kvcc_tiny_cpu.so"], capture_output=True, text=True, check=True).stdout
    assert {line.split()[-1] for line in table.splitlines()} == {k["symbol"] for k in result["kernels"]} | {"kvcc_cpu_library"}
    kvcc("validate", out)
    out, _ = kvcc("inspect", out)
    assert result["cxx_version"] in out


def test_unchanged_inputs_compile_nothing(built, work):
    out, _ = built
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    arguments = ["compile", work / "tiny.kvcb", "--arch", "cpu", "-o", out, "--cache-dir", work / "cache", "--families", FEW]
    start = time.monotonic()
    again = kvcc_json(*arguments)
    seconds = time.monotonic() - start
    assert (again["compiled"], again["cached"], again["written"], again["removed"]) == (0, 4, 0, 0)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert seconds < 5  # a fraction of one on an idle machine


def test_same_bytes_without_the_cache_in_another_folder(built, work, tmp_path):
    kvcc("compile", work / "tiny.kvcb", "--arch", "cpu", "-o", tmp_path / "elsewhere", "--cache-dir", tmp_path / "cache", "--threads", 1,
         "--families", FEW, env={"TMPDIR": str(tmp_path)})
    assert files(tmp_path / "elsewhere") == files(built[0])


def test_damaged_entries_of_the_cache_are_made_anew(built, work, tmp_path):
    shutil.copytree(work / "cache", tmp_path / "cache")
    entries = sorted((tmp_path / "cache").rglob("*.entry"), key=lambda entry: entry.stat().st_size)
    assert len(entries) == 4
    data = bytearray(entries[0].read_bytes())
    data[len(data) // 2] ^= 1
    entries[0].write_bytes(data)
    entries[1].write_bytes(entries[1].read_bytes()[:-100])
    again = kvcc_json("compile", work / "tiny.kvcb", "--arch", "cpu", "-o", tmp_path / "out", "--cache-dir", tmp_path / "cache",
                      "--families", FEW)
    assert again["compiled"] == 2 and files(tmp_path / "out") == files(built[0])


def test_a_damaged_library_is_not_sound(built, tmp_path):
    shutil.copytree(built[0], tmp_path / "out")
    library = tmp_path / "out/kvcc_tiny_cpu.so"
    library.write_bytes(library.read_bytes()[:-1])
    out, _ = kvcc("validate", tmp_path / "out", "--json", code=3)
    assert "kvcc_tiny_cpu.so: its sha256" in out


def test_the_folder_is_self_contained(built, tmp_path):
    """But for Highway and the standard library."""
    out, result = built
    moved = tmp_path / "moved"
    shutil.copytree(out, moved)
    for source in ("copy_pages__any.cc", "kvcc_tiny_cpu.cc"):
        subprocess.run(["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-I.", "-fsyntax-only", source], cwd=moved, check=True)


def test_files_of_earlier_machines_are_removed(work, tmp_path):
    kvcc("compile", work / "tiny.kvcb", "--arch", "cpu,sm_90", "-o", tmp_path, "--emit-only")
    assert list(tmp_path.glob("*.cc")) and (tmp_path / "kernels/cpu").exists()
    kvcc("compile", work / "tiny.kvcb", "--arch", "sm_90", "-o", tmp_path, "--emit-only")
    assert list(tmp_path.glob("*.cu")) and not list(tmp_path.glob("*.cc")) and not list(tmp_path.glob("kernels/cpu/*"))


C_PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "kvcc_tiny.h"
int main(void) {
  void* library = dlopen("./" KVCC_TINY_CPU_LIBRARY, RTLD_NOW);
  const KvccCpuLibrary* table;
  uint8_t from[256], to[256];
  const int32_t pairs[2] = {0, 1};
  KvccCopyPagesParams p;
  KvccCpuTables tables;
  KvccGrid grid;
  KvccCpuUnit unit;
  KvccCpuLibraryFunction function;
  int i;
  if (!library) return 1;
  *(void**)&function = dlsym(library, KVCC_CPU_LIBRARY_SYMBOL);
  table = function();
  if (table->contract != KVCC_CPU_CONTRACT || strcmp(table->content_sha256, KVCC_TINY_CONTENT_SHA256) != 0) return 2;
  for (i = 0; i < 256; ++i) from[i] = (uint8_t)i, to[i] = 0;
  memset(&p, 0, sizeof p);
  memset(&tables, 0, sizeof tables);
  p.source = from;
  p.target = to;
  p.pairs = pairs;
  p.source_page_bytes = p.target_page_bytes = p.fixed_bytes = 128;
  p.count = 1;
  grid = kvcc_grid_copy_pages(&p);
  *(void**)&unit = dlsym(library, KVCC_TINY_CPU_COPY_PAGES);
  unit(&p, &tables, 0, grid.x * grid.y * grid.z);
  if (memcmp(to + 128, from, 128) != 0) return 3;
  for (i = 0; i < table->count; ++i) printf("%d %s\\n", (int)table->units[i].family, table->units[i].name);
  printf("%s\\n", table->target());
  return 0;
}
"""


@pytest.mark.parametrize("compiler", [["cc", "-std=c99"], ["c++", "-std=c++11", "-x", "c++"]], ids=["c99", "c++11"])
def test_the_header_is_used_from_c(built, tmp_path, compiler):
    out, result = built
    (tmp_path / "use.c").write_text(C_PROGRAM)
    flags = [flag for flag in ["-Wall", "-Wextra", "-Werror", "-D_POSIX_C_SOURCE=200809L"]]
    subprocess.run([*compiler, *flags, f"-I{out}", "-o", tmp_path / "use", tmp_path / "use.c", "-ldl"], check=True)
    lines = subprocess.run([tmp_path / "use"], cwd=out, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == [kernel["name"] for kernel in result["kernels"]]
    assert lines[-1] in result["kernels"][0]["instruction_sets"]


def test_a_missing_compiler_is_named_with_its_cure(work, tmp_path):
    arguments = ["compile", work / "tiny.kvcb", "--arch", "cpu", "-o", tmp_path / "out", "--cache-dir", tmp_path / "cache"]
    for env, named in (({"PATH": "/nowhere", "CXX": ""}, "no c++, g++ or clang++ in PATH"), ({"CXX": "/nowhere/c++"}, "/nowhere/c++")):
        _, err = kvcc(*arguments, code=1, env=env)
        assert named in err and "apt-get install g++ libhwy-dev" in err and "--emit-only" in err
    # A compiler that does not find Highway.
    (tmp_path / "c++").write_text("#!/bin/sh\ncase \"$*\" in *--version*) echo c++ 12;; *) exec c++ -nostdinc \"$@\";; esac\n")
    (tmp_path / "c++").chmod(0o755)
    _, err = kvcc(*arguments, code=1, env={"CXX": str(tmp_path / "c++")})
    assert "does not find hwy/highway.h" in err and "libhwy-dev" in err
    assert not (tmp_path / "out").exists()


def test_a_failing_compiler_is_quoted(work, tmp_path):
    (tmp_path / "c++").write_text("#!/bin/sh\ncase \"$*\" in *--version*) echo c++ 12;; *-dM*) exec c++ \"$@\";;\n"
                                  "*) echo 'k.cc: error: no such thing'; exit 1;; esac\n")
    (tmp_path / "c++").chmod(0o755)
    out, _ = kvcc("compile", work / "tiny.kvcb", "--arch", "cpu", "-o", tmp_path / "out", "--cache-dir", tmp_path / "cache", "--json", code=1,
                  env={"CXX": str(tmp_path / "c++")})
    assert "no such thing" in json.loads(out)["error"]["message"]
    assert not (tmp_path / "out").exists() and not list((tmp_path / "cache").rglob("*.entry"))
