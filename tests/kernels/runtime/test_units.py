"""options.units: a library of units takes the place of the built-in ones, and is refused by name where it does not
fit. The libraries here hand every block on to the built-in units and count the calls."""
import ctypes
import subprocess

import numpy as np
import pytest
from runtime_api import Runtime, make_artifact, options
from support import BUILD, SOURCE

UNITS = '''
#include <atomic>
#include "kernels/cpu/library.h"
static const KvccCpuConfig config = {{64, KVCC_AXIS_CHANNEL, KVCC_SPARSE_LISTED}, {64, KVCC_AXIS_TOKEN, KVCC_SPARSE_LISTED},
                                     KVCC_ROPE_HALF, 64, KVCC_DTYPE_F32};
static std::atomic<int> calls[KVCC_CPU_COPY_PAGES + 1];
template <int family>
static void run(const void* params, const KvccCpuTables* tables, uint32_t first, uint32_t last) {
  ++calls[family];
  kvcc_cpu_run(family, &config, params, tables, first, last);
}
#define UNIT(family, key, value) {family, key, value, DTYPE, #family, run<family>},
static const KvccCpuLibraryUnit units[] = {
    UNIT(KVCC_CPU_PACK_KEY, 3, 0) UNIT(KVCC_CPU_PACK_VALUE_SELECT, 0, 3) UNIT(KVCC_CPU_PACK_VALUE, 0, 3)
    UNIT(KVCC_CPU_ATTENTION, 3, VALUE_BITS) UNIT(KVCC_CPU_ATTENTION_MERGE, 3, 3)
    UNIT(KVCC_CPU_DEQUANTISE_KEY, 3, 0) UNIT(KVCC_CPU_DEQUANTISE_VALUE, 0, 3) UNIT(KVCC_CPU_COPY_PAGES, 0, 0)};
static const KvccCpuLibrary library = {sizeof(KvccCpuLibrary), CONTRACT, SHA, "made", "scheme", units, 8, LAYERS, 2, nullptr};
extern "C" const KvccCpuLibrary* NAME(void) { return &library; }
extern "C" int calls_of(int family) { return calls[family]; }
'''


def sanitised():
    return "KVCC_SANITIZE:STRING=\n" not in (BUILD / "CMakeCache.txt").read_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Makes libraries; `of` is the artifact's folder."""
    folder = tmp_path_factory.mktemp("units")
    if sanitised():
        pytest.skip("SKIPPED: the library is built with sanitisers")
    _, metadata = make_artifact(folder / "model.safetensors")
    (folder / "units.cc").write_text(UNITS)

    def make(name="units", **changes):
        macros = {"DTYPE": "KVCC_DTYPE_F32", "VALUE_BITS": "3", "CONTRACT": "KVCC_CPU_CONTRACT", "LAYERS": "2",
                  "NAME": "kvcc_cpu_library", "SHA": f'"{metadata["content_sha256"]}"', **changes}
        path = folder / f"{name}.so"
        subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", "-I", SOURCE, *(f"-D{k}={v}" for k, v in macros.items()),
                        folder / "units.cc", BUILD / "lib/libkvcc_kernels_cpu.a", "-lhwy", "-Wl,--no-undefined", "-o", path],
                       check=True)
        return path
    make.folder = folder
    return make


@pytest.fixture(scope="module")
def runtime(made):
    r = Runtime()
    r.artifact = r.made("artifact_open", made.folder / "model.safetensors")
    return r


def decode(r, cache):
    random = np.random.default_rng(5)
    rows = lambda *shape: random.standard_normal(shape).astype(np.float32)
    out, back = np.empty((6, 64), np.float32), np.empty((2, 1200, 2, 64), np.float32)
    key = rows(1200, 2, 64)
    key[1100:, 1] *= 20  # lists must grow
    r.call("append", cache, 1, key, rows(1200, 2, 64), 1200)
    r.call("attend", cache, 1, rows(6, 64), 0.0, 0, out)
    r.call("read", cache, 1, 0, 1200, back[0], back[1])
    return out.tobytes() + back.tobytes()


def test_a_library_takes_the_place_of_the_units_built_in(runtime, made):
    path = made()
    wanted = decode(runtime, runtime.made("create", runtime.artifact, options(threads=1)))
    cache = runtime.made("create", runtime.artifact, options(threads=2, units=str(path).encode()))
    assert decode(runtime, cache) == wanted
    calls = ctypes.CDLL(str(path)).calls_of  # the library that is loaded already
    assert all(calls(family) > 0 for family in (1, 2, 3, 7, 8, 9, 10, 11))
    runtime.library.kvcc_free(cache)


@pytest.mark.parametrize("changes, code, message", [
    ({"SHA": '"' + 64 * "b" + '"'}, 2, "made of the artifact " + 64 * "b"),
    ({"CONTRACT": "99"}, 3, "of contract 99"),
    ({"LAYERS": "3"}, 3, "3 layers of 2 heads"),
    ({"NAME": "another"}, 3, "no kvcc_cpu_library in it"),
    ({"VALUE_BITS": "4"}, 2, "no unit of attention for keys of 3 bits and values of 3 bits"),
    ({"DTYPE": "KVCC_DTYPE_F16"}, 2, "that takes f32"),
])
def test_libraries_that_do_not_fit_are_named(runtime, made, changes, code, message):
    path = made("other", **changes)
    handle = ctypes.c_void_p(1)
    runtime.call("create", runtime.artifact, options(threads=1, units=str(path).encode()), ctypes.byref(handle), code=code)
    assert handle.value is None
    assert message in runtime.message() and str(path) in runtime.message()


def test_files_that_are_no_library(runtime, made):
    (made.folder / "text").write_text("text")
    for name in ("text", "missing.so"):
        handle = ctypes.c_void_p()
        runtime.call("create", runtime.artifact, options(units=str(made.folder / name).encode()), ctypes.byref(handle), code=3)
        assert name in runtime.message()
