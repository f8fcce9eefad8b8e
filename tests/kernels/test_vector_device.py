"""The scalar kernels of vector codebooks compile for GPUs without spills, in both forms, within the shared memory of a block."""
import re
import subprocess
import sys

import pytest

from support import SOURCE, kvcc_json

NVCC = kvcc_json("--version")["nvcc_path"]
UNIT = """
#include "kernels/device/vector_dequantise.cuh"
#include "kernels/device/vector_key_scores.cuh"
#include "kernels/device/vector_pack.cuh"
#include "kernels/device/vector_value_mix.cuh"
namespace kvcc::device {
template <bool transform>
struct Made {
  static constexpr bool kTransform = transform, kMixed = false;
  static constexpr int kHeadDim = 128, kRotaryDim = 128, kGroupTile = 8;
  static constexpr Rope kRope = Rope::half;
  static constexpr Dtype kDtype = Dtype::f16;
};
}  // namespace kvcc::device
using namespace kvcc::device;
""" + "".join(f"KVCC_KERNEL({name.lower()}_{form}, {name}<Made<{form}>>)\n" for form in ("true", "false")
              for name in ("VectorPack", "VectorKeyScores", "VectorValueMix", "VectorDequantise"))


@pytest.mark.skipif(not NVCC, reason="nvcc is missing")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_no_spills(tmp_path, arch):
    (tmp_path / "unit.cu").write_text(UNIT)
    done = subprocess.run([NVCC, "-cubin", f"-arch={arch}", "-std=c++20", "-O3", "-fmad=false", "-Werror", "all-warnings", f"-I{SOURCE}",
                           "-Xptxas", "-v,--warn-on-spills,--warning-as-error", "-o", tmp_path / "out.cubin", tmp_path / "unit.cu"],
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    entries = re.findall(r"Compiling entry function '(\w+)'.*?Used (\d+) registers.*?(\d+) bytes smem", done.stderr, re.S)
    assert len(entries) == 8, done.stderr
    for name, registers, shared in entries:
        print(arch, name, registers, "registers", shared, "bytes", file=sys.stderr)
        assert int(registers) <= 128 and int(shared) <= 48 * 1024, name
