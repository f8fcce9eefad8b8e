"""Made-up units of the device families, as codegen's templates write them, and their ways to a shared object: from source by g++, and
from nvcc's PTX by the translator."""
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support import SOURCE

HEADERS = {"attention": "attention", "key_scores": "mma_key_scores", "value_mix": "mma_value_mix", "pack_key": "mma_pack",
           "pack_value": "mma_pack", "dequantise_key": "mma_dequantise", "dequantise_value": "mma_dequantise"}
NVCC_FLAGS = ["-std=c++20", "-O3", "-fmad=false", "-prec-div=true", "-ftz=false", "-lineinfo"]  # those of codegen/build
CXX_FLAGS = ["-std=c++20", "-O1", "-ffp-contract=off", "-DKVCC_EMULATE", "-shared", "-fPIC", "-fno-gnu-unique", f"-I{SOURCE}"]
HEADS = 2


@dataclass(frozen=True)
class Unit:
    """One configuration. Of attention the first three are the keys'."""
    family: str
    bits: int = 3
    axis: str = "channel"
    sparse: str = "none"
    dim: int = 64
    rope: str = "none"
    rotary: int = 0
    group_tile: int = 8
    dtype: str = "f16"
    layout: str = "mma-1"
    value_bits: int = 3
    value_axis: str = "token"
    value_sparse: str = "none"

    @property
    def symbol(self):
        parts = [self.family, self.bits, self.axis, self.sparse, self.dim, self.rope, self.rotary, self.group_tile, self.dtype]
        if self.family == "attention":
            parts += [self.value_bits, self.value_axis, self.value_sparse]
        return "kvcc_" + "_".join(map(str, parts)) + "_" + self.layout.replace("-", "")

    def entries(self):
        """(suffix, body) of each entry."""
        if self.layout == "linear-1":
            return [("", {"key_scores": "KeyScores", "pack_value": "PackToken"}[self.family])]
        return {"attention": [("", "Attention"), ("_merge", "AttentionMerge")], "key_scores": [("", "MmaKeyScores")],
                "value_mix": [("", "MmaValueMix"), ("_merge", "MmaValueMerge")],
                "pack_key": [("", "MmaPack")] + [("_select", "MmaSelect")] * (self.axis == "token"),
                "pack_value": [("", "MmaPack")] + [("_select", "MmaSelect")] * (self.axis == "token"),
                "dequantise_key": [("", "MmaDequantise")], "dequantise_value": [("", "MmaDequantise")]}[self.family]

    def options(self):
        """The case's settings that follow from the configuration, for ptx_run."""
        names = ["family", "layout", "dim", "bits", "axis", "sparse", "value_bits", "value_axis", "value_sparse", "rope", "rotary", "dtype"]
        return [f"{name}={getattr(self, name)}" for name in names]

    def text(self):
        header = HEADERS[self.family]
        if self.layout == "linear-1":
            header = {"key_scores": "key_scores", "pack_value": "pack_token"}[self.family]
        lines = [f'#include "kernels/device/{header}.cuh"', f"namespace {self.symbol}_unit {{", "using namespace kvcc::device;"]
        tensor = "value" if self.family in ("value_mix", "pack_value", "dequantise_value") else "key"
        if self.family == "attention":
            value = (self.value_bits, self.value_axis, self.value_sparse, "value")
            lines += levels("Key", self.bits) + levels("Value", self.value_bits) + ["struct Config {"]
            lines += self.config("Key", self.bits, self.axis, self.sparse, "key") + self.config("Value", *value)
            lines += [f"  static constexpr int kRotaryDim = {self.rotary}, kGroupTile = {self.group_tile};",
                      f"  static constexpr Rope kRope = Rope::{self.rope};", f"  static constexpr Dtype kDtype = Dtype::{self.dtype};", "};"]
        else:
            lines += levels("Config", self.bits) + self.config("Config", self.bits, self.axis, self.sparse, tensor)
        lines.append("}")
        lines += [f"KVCC_KERNEL({self.symbol}{suffix}, kvcc::device::{body}<{self.symbol}_unit::Config>)" for suffix, body in self.entries()]
        return "\n".join(lines) + "\n"

    def config(self, name, bits, axis, sparse, tensor):
        lines = [f"struct {name} {{",
                 f"  static constexpr int kBits = {bits}, kHeadDim = {self.dim}, kRotaryDim = {self.rotary}, kGroupTile = {self.group_tile};",
                 f"  static constexpr Axis kAxis = Axis::{axis};",
                 f"  static constexpr kvcc::linear::Sparse kSparse = kvcc::linear::Sparse::{sparse};",
                 f"  static constexpr Rope kRope = Rope::{self.rope};", f"  static constexpr Dtype kDtype = Dtype::{self.dtype};",
                 "  static constexpr bool kMixed = false;"]
        if self.layout == "mma-1":
            lines.append(f"  static constexpr kvcc::mma::Tensor kTensor = kvcc::mma::Tensor::{tensor};")
        lines += [f"  static KVCC_HD const float* levels(int, int head) {{ return k{name}Levels + head * {1 << bits}; }}", "};"]
        return lines


def levels(name, bits):
    made = random.Random(bits)
    rows = [sorted(made.uniform(-1, 1) for _ in range(1 << bits)) for _ in range(HEADS)]
    return [f"KVCC_TABLE float k{name}Levels[{HEADS << bits}] = {{"] + ["    " + ", ".join(f"{x:.9e}f" for x in row) + "," for row in rows] + ["};"]


def run(command, **kw):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **kw)
    assert done.returncode == 0, f"{command[0]} … {command[-1]}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def from_source(unit, folder):
    """The shared object of the unit's text."""
    (folder / f"{unit.symbol}.cu").write_text(unit.text())
    out = folder / f"{unit.symbol}.source.so"
    run(["g++", *CXX_FLAGS, "-o", out, "-x", "c++", folder / f"{unit.symbol}.cu"])
    return out


def to_ptx(unit, folder, nvcc, arch):
    (folder / f"{unit.symbol}.cu").write_text(unit.text())
    out = folder / f"{unit.symbol}.{arch}.ptx"
    run([nvcc, *NVCC_FLAGS, "-ptx", f"-arch={arch}", f"-I{SOURCE}", "-o", out.name, f"{unit.symbol}.cu"], cwd=folder)
    return out


def translated(ptx, trace=False):
    """The shared object of a PTX file."""
    code, out = ptx.with_suffix(".trace.cc" if trace else ".cc"), ptx.with_suffix(".trace.so" if trace else ".so")
    run([sys.executable, SOURCE / "kernels/emulator/ptx/ptx_to_cpp.py", ptx, code, *(["--trace"] if trace else [])])
    run(["g++", *CXX_FLAGS, "-Wall", "-Wextra", "-Werror", "-o", out, code])
    return out


def ptx_run(build, source, symbol, libraries, unit, *options):
    """Output name -> (bytes, bytes that hold something)."""
    lines = run([Path(build) / "tests/bin/ptx_run", source, symbol, *libraries, "--", *unit.options(), *options]).splitlines()
    return {name: (int(size), int(written)) for name, size, written in map(str.split, lines)}
