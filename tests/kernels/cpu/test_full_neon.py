"""The CPU units and their tests compiled for aarch64 and run under qemu: NEON, which no machine of ours has.

Needs Debian's g++-aarch64-linux-gnu, qemu-user and googletest (`apt-get install`). Everything is compiled here, headers of
Highway, GoogleTest and fmt included, as Debian has their libraries for the build machine only; rapidcheck is left out for that.
"""

import os
import pathlib
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

SOURCE = pathlib.Path(os.environ.get("KVCC_SOURCE", pathlib.Path(__file__).resolve().parents[3]))
BUILD = pathlib.Path(os.environ["KVCC_BUILD"]) / "neon"
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
GOOGLETEST = pathlib.Path("/usr/src/googletest/googletest")
HEADERS = ["hwy", "gtest", "gmock", "fmt"]
# As the build proper: -ffp-contract=off, for a value decodes as one fused multiply-add that is spelt out.
# Sections by function: what no test reaches is left out of the program, and what it would need is not compiled.
FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-ffunction-sections", "-fdata-sections", "-DFMT_HEADER_ONLY", "-DKVCC_NO_RAPIDCHECK", f"-I{SOURCE}", f"-I{BUILD}/include"]

missing = [name for name in (COMPILER, EMULATOR) if not shutil.which(name)]
missing += [str(path) for path in [GOOGLETEST, *(pathlib.Path("/usr/include") / h for h in HEADERS)] if not path.exists()]
pytestmark = pytest.mark.skipif(
    bool(missing),
    reason=f"SKIPPED: no {', '.join(missing)} (apt-get install g++-aarch64-linux-gnu qemu-user googletest)",
)


def sources():
    for folder in ("kernels/cpu", "kernels/reference", "formats/codec", "tests/kernels/cpu", "tests/kernels/cpu/neon"):
        yield from sorted((SOURCE / folder).glob("*.cc"))
    yield SOURCE / "formats/core/error.cc"
    yield GOOGLETEST / "src/gtest-all.cc"
    yield GOOGLETEST / "src/gtest_main.cc"


def compile_one(source):
    target = BUILD / (source.parent.name + "_" + source.stem + ".o")
    extra = [f"-I{GOOGLETEST}"] if source.is_relative_to(GOOGLETEST) else ["-Wall", "-Wextra"]
    ccache = [shutil.which("ccache")] if shutil.which("ccache") else []
    done = subprocess.run([*ccache, COMPILER, *FLAGS, *extra, "-c", source, "-o", target], capture_output=True, text=True)
    assert done.returncode == 0, f"{source}:\n{done.stderr[-4000:]}"
    return target


@pytest.fixture(scope="module")
def program():
    (BUILD / "include").mkdir(parents=True, exist_ok=True)
    for name in HEADERS:
        link = BUILD / "include" / name
        if not link.is_symlink():
            link.symlink_to(f"/usr/include/{name}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources()))
    linked = subprocess.run([COMPILER, "-static", "-Wl,--gc-sections", *objects, "-o", BUILD / "test_kernels_cpu", "-lpthread"], capture_output=True, text=True)
    assert linked.returncode == 0, linked.stderr[-4000:]
    return BUILD / "test_kernels_cpu"


def test_units_on_neon(program):
    done = subprocess.run([EMULATOR, program, "--gtest_brief=1"], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "[  PASSED  ]" in done.stdout


def test_they_are_neon_instructions(program):
    """And not the scalar fallback: the pack units divide and compare four lanes at a time."""
    listing = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", BUILD / "cpu_pack.o"],
        capture_output=True, text=True, check=True,
    ).stdout
    assert "fdiv\tv" in listing and "fcmgt\tv" in listing and ".4s" in listing
