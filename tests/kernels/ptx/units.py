"""Made-up units, emitted by codegen, and their ways to a shared object: from source by g++, and from nvcc's PTX by the translator."""
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support import SOURCE

NVCC_FLAGS = ["-std=c++20", "-O3", "-fmad=false", "-prec-div=true", "-ftz=false", "-lineinfo"]  # those of codegen/build
CXX_FLAGS = ["-std=c++20", "-O1", "-ffp-contract=off", "-DKVCC_EMULATE", "-shared", "-fPIC", "-fno-gnu-unique", f"-I{SOURCE}"]


@dataclass(frozen=True)
class Unit:
    """A configuration. Of attention the first tensor is the keys."""
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
    def name(self):
        """In codegen's grammar."""
        text = f"{self.family}_nuq{self.bits}_{self.axis}_d{self.dim}_{self.sparse}"
        if self.family in ("key_scores", "attention"):
            text += "_norope" if self.rope == "none" else f"_{self.rope}{self.rotary}"
        if self.family == "attention":
            text += f"_v_nuq{self.value_bits}_{self.value_axis}_d{self.dim}_{self.value_sparse}"
        if self.family in ("key_scores", "attention", "value_mix"):
            text += f"_g{self.group_tile}"
        return f"{text}_{self.dtype}__{self.layout.replace('-', '')}"

    @property
    def symbol(self):
        return "kvcc_" + self.name

    def options(self):
        """The case's settings that follow from the configuration, for ptx_run."""
        names = ["family", "layout", "dim", "bits", "axis", "sparse", "value_bits", "value_axis", "value_sparse", "rope", "rotary", "dtype"]
        return [f"{name}={getattr(self, name)}" for name in names]


@dataclass(frozen=True)
class VectorUnit:
    """Of vector codebooks on tensor cores: both tensors of one form, pairs for a quarter of the coordinates, then fours."""
    family: str
    form: str = "head"
    dim: int = 128
    rotary: int = 128
    pair_bits: int = 5
    four_bits: int = 7
    room: tuple = (8, 256, 32)         # steps, bits of a token, KiB of tables
    value_room: tuple = (8, 256, 32)

    @property
    def name(self):
        def tensor(room):
            return "vq_{}_d{}_s{}_b{}_t{}".format(self.form, self.dim, *room)
        values = f"_v_{tensor(self.value_room)}" if self.family == "attention" else ""
        return f"{self.family}_{tensor(self.room)}_half{self.rotary}{values}_g8_f16__vector1"

    @property
    def symbol(self):
        return "kvcc_" + self.name

    def token_bits(self):
        """Of a head."""
        return self.dim // 8 * self.pair_bits + self.dim * 3 // 16 * self.four_bits

    def options(self):
        names = ["family", "form", "dim", "rotary", "pair_bits", "four_bits"]
        return ["layout=vector-1", "rope=half", f"steps={self.room[0]}", f"value_steps={self.value_room[0]}",
                *(f"{name}={getattr(self, name)}" for name in names)]


def run(command, **kw):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **kw)
    assert done.returncode == 0, f"{command[0]} … {command[-1]}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def text_of(unit, folder, build):
    """The unit's file, emitted once."""
    path = folder / f"{unit.name}.cu"
    if not path.exists():
        run([Path(build) / "tests/bin/write_units", folder, unit.name])
    return path


def from_source(unit, folder, build):
    """The shared object of the unit's text."""
    out = folder / f"{unit.name}.source.so"
    run(["g++", *CXX_FLAGS, "-o", out, "-x", "c++", text_of(unit, folder, build)])
    return out


def to_ptx(unit, folder, build, nvcc, arch):
    source, out = text_of(unit, folder, build), folder / f"{unit.name}.{arch}.ptx"
    run([nvcc, *NVCC_FLAGS, "-ptx", f"-arch={arch}", f"-I{SOURCE}", "-o", out.name, source.name], cwd=folder)
    return out


def translated(ptx, trace=False):
    """The shared object of a PTX file."""
    code, out = ptx.with_suffix(".trace.cc" if trace else ".cc"), ptx.with_suffix(".trace.so" if trace else ".so")
    run([sys.executable, SOURCE / "kernels/emulator/ptx/ptx_to_cpp.py", ptx, code, *(["--trace"] if trace else [])])
    run(["g++", *CXX_FLAGS, "-Wall", "-Wextra", "-Werror", "-o", out, code])
    return out


def ptx_run(build, source, libraries, unit, *options):
    """Output name -> (bytes, bytes that hold something)."""
    lines = run([Path(build) / "tests/bin/ptx_run", source, unit.symbol, *libraries, "--", *unit.options(), *options]).splitlines()
    return {name: (int(size), int(written)) for name, size, written in map(str.split, lines)}
