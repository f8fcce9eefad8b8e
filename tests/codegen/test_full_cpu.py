"""Units of the CPU of every shipped row (kernels/list) of mma-1, and of configurations drawn at random: compiled as kvcc compile does it, loaded
and compared with the reference; and a library in use by the runtime. The seed is new every day; KVCC_SEED repeats a run."""
import ctypes
import datetime
import os
import re
import subprocess

import numpy as np
import pytest

from support import BUILD, SOURCE, kvcc

SEED = int(os.environ.get("KVCC_SEED", datetime.date.today().strftime("%Y%m%d")))
COUNT = 20
REPEATED = 3  # a draw may give one again


def run(units):
    done = subprocess.run([BUILD / "tests/test_codegen", "--gtest_filter=EmittedCpuUnits.OfConfigurationsEqualTheReference"],
                          capture_output=True, text=True, env={**os.environ, "KVCC_UNITS": units})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return re.findall(r"^(\w+): \d units$", done.stdout, re.M)


def test_the_shipped_rows():
    rows = sum(len(re.findall(r"^KVCC_SHIP\w*\(", path.read_text(), re.M))
               for path in (SOURCE / "kernels/list").glob("*.inc") if not path.name.startswith("vector_"))
    assert len(run("@shipped:mma")) == rows > 30


def test_drawn_configurations():
    print(f"seed {SEED}")
    assert len(run(f"@drawn:{SEED}:{COUNT}")) >= COUNT - REPEATED


class Options(ctypes.Structure):
    """KvccOptions of kernels/host/kvcc_runtime.h."""
    _fields_ = [("size", ctypes.c_uint32), ("threads", ctypes.c_int32), ("max_tokens", ctypes.c_int64), ("arithmetic", ctypes.c_int32),
                ("reserved", ctypes.c_int32), ("units", ctypes.c_char_p)]


@pytest.mark.parametrize("arithmetic", [0, 1], ids=["f32", "i16"])
def test_the_runtime_computes_the_same_with_the_library(driver, tmp_path_factory, arithmetic):
    """As with its own units: their text is one."""
    work = tmp_path_factory.mktemp("runtime")
    driver("write_codebook", work / "tiny.kvcb", "kvcc-nuq3-1%-sink1", 2, 2, 3, 64, 64)
    kvcc("export", work / "tiny.kvcb", "--to", "safetensors", "-o", work / "tiny.safetensors")
    kvcc("compile", work / "tiny.kvcb", "--arch", "cpu", "-o", work / "out", "--cache-dir", BUILD / "tests/cpu_units")
    runtime = ctypes.CDLL(str(BUILD / "lib/libkvcc_runtime.so"))
    runtime.kvcc_error_message.restype = ctypes.c_char_p

    def call(function, *arguments):
        assert getattr(runtime, function)(*arguments) == 0, runtime.kvcc_error_message()

    def floats(array):
        return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    artifact = ctypes.c_void_p()
    call("kvcc_artifact_open", str(work / "tiny.safetensors").encode(), ctypes.byref(artifact))
    random = np.random.default_rng(3)
    key, value = (random.standard_normal((300, 2, 64), dtype=np.float32) for _ in range(2))
    query = random.standard_normal((6, 64), dtype=np.float32)
    results = []
    for units in (None, str(work / "out/kvcc_tiny_cpu.so").encode()):
        options = Options(ctypes.sizeof(Options), 2, 0, arithmetic, 0, units)
        sequence = ctypes.c_void_p()
        call("kvcc_create", artifact, ctypes.byref(options), ctypes.byref(sequence))
        out, keys, values = np.empty((6, 64), np.float32), np.empty_like(key), np.empty_like(value)
        call("kvcc_append", sequence, 1, floats(key), floats(value), ctypes.c_int64(300))
        call("kvcc_attend", sequence, 1, floats(query), ctypes.c_float(0), ctypes.c_int64(0), floats(out))
        call("kvcc_read", sequence, 1, ctypes.c_int64(0), ctypes.c_int64(300), floats(keys), floats(values))
        runtime.kvcc_free(sequence)
        results.append((out, keys, values))
    runtime.kvcc_artifact_free(artifact)
    for own, library in zip(*results):
        assert np.isfinite(own).all() and own.any() and own.tobytes() == library.tobytes()
