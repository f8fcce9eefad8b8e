"""Proof without a GPU: configurations of kernels/list compile to cubins without spills, and headers compile alone. The shipped rows of
mma-1 are in test_shipped.py."""
import subprocess

import pytest

from support import BUILD, SOURCE

# A dozen that between them have every choice of every list of linear-1, and one way each that units of mma-1 have of being unusual.
REPRESENTATIVE = [
    "pack_key_nuq3_channel_d64_csr_f16__linear1",
    "pack_key_nuq8_channel_d256_none_bf16__linear1",
    "pack_value_nuq2_token_d128_tail_f32__linear1",
    "pack_value_int5mixed_token_d80_tail_bf16__linear1",
    "key_scores_nuq4_channel_d128_csr_half128_g8_f16__linear1",
    "key_scores_nuq3_channel_d80_csr_interleaved20_g1_bf16__linear1",
    "key_scores_nf2_token_d96_none_norope_g4_f32__linear1",
    "key_scores_nuq8_channel_d256_csr_half256_g8_f32__linear1",
    "value_mix_nuq3_token_d64_tail_g3_f16__linear1",
    "value_mix_nuq6_token_d192_none_g8_f32__linear1",
    "value_mix_nuq1mixed_channel_d16_csr_g2_bf16__linear1",
    "dequantise_key_nuq7_channel_d32_csr_f32__linear1",
    "dequantise_value_nuq5_token_d256_tail_f32__linear1",
    "copy_pages__any",
    "pack_value_nuq2mixed_token_d64_tail_bf16__mma1",
    "key_scores_nuq4mixed_channel_d64_csr_half32_g8_bf16__mma1",
    "attention_nuq2mixed_channel_d64_csr_half64_v_nf4mixed_token_d64_tail_g8_f16__mma1",
]
SECOND_ENTRIES = 5  # of three units of value_mix, one of pack_value, one of attention


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_representatives_compile_without_spills(nvcc, driver, tmp_path, arch):
    lines = driver("compile_proof", tmp_path, arch, 1, *REPRESENTATIVE).splitlines()
    assert len(lines) == len(REPRESENTATIVE) + SECOND_ENTRIES
    for line in lines:
        name, symbol, registers, spill, shared, min_blocks, stated = line.split()
        assert symbol.startswith("kvcc_" + name)
        most = (128, 48 * 1024) if name.endswith("__linear1") else (255, 99 * 1024)
        assert int(registers) <= most[0] and int(spill) == 0 and int(shared) <= most[1] and min_blocks == stated, line


SPILL = """extern "C" __global__ void __launch_bounds__(1024, %d) spill(float* x) {
  float v[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) x[(63 - i) * 1024 + threadIdx.x] = v[i] * v[(i * 7 + 3) & 63];
}
"""


def compile_file(tmp_path, text, *options):
    """As kvcc compile compiles a unit: its own functions and flags."""
    source = tmp_path / "unit.cu"
    source.write_text(text)
    return subprocess.run([BUILD / "tests/bin/compile_proof", tmp_path / "cache", "sm_80", "--unit", source, *options],
                          capture_output=True, text=True)


@pytest.mark.parametrize("options", [[], ["--shipped"]])
def test_what_spills_is_given_fewer_blocks(nvcc, tmp_path, options):
    """64 live numbers of 256 threads: in the 32 registers that eight blocks leave they spill, in the 64 of four or the 80 of three they
    need not. The entry beside it keeps its own bound."""
    kept = 'extern "C" __global__ void __launch_bounds__(128, 4) kept(float* x) { x[threadIdx.x] = 0.0f; }\n'
    text = SPILL.replace("1024", "256")
    done = compile_file(tmp_path, kept + text % 8, *options)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    beside, (symbol, registers, spill, blocks) = map(str.split, done.stdout.splitlines())
    assert beside[0] == "kept" and beside[2:] == ["0", "4"]
    assert symbol == "spill" and spill == "0" and 1 < int(blocks) < 8 and 32 < int(registers) <= 65536 // 256 // int(blocks)
    # The first that does: with one block more it spills. And what was assembled is what the source with that bound gives.
    (tmp_path / "unit.cu").write_text(text % (int(blocks) + 1))
    log = subprocess.run([nvcc, "-cubin", "-O3", "-arch=sm_80", "-Xptxas", "-v", "-o", "/dev/null", tmp_path / "unit.cu"],
                         capture_output=True, text=True, check=True).stderr
    assert " 0 bytes spill stores" not in log
    assert done.stdout == compile_file(tmp_path, kept + text % 8, *options).stdout  # from the cache
    assert compile_file(tmp_path, kept + text % int(blocks), *options).stdout == done.stdout


def test_what_spills_at_one_block_fails_where_shipped_and_is_warned_of_else(nvcc, tmp_path):
    """64 live numbers in the 64 registers that a block of 1024 threads leaves, addresses beside them."""
    done = compile_file(tmp_path, SPILL % 2, "--shipped")
    assert done.returncode == 1 and done.stdout == "", done.stdout + done.stderr
    warned = compile_file(tmp_path, SPILL % 2)
    symbol, registers, spill, blocks = warned.stdout.split()
    assert warned.returncode == 0 and symbol == "spill" and int(spill) > 0 and blocks == "1"
    for words in (done.stderr, warned.stderr):
        assert f"unit for sm_80: spill spills {spill} bytes" in words


def test_local_memory_that_is_no_spill_fails(nvcc, tmp_path):
    done = compile_file(tmp_path, """extern "C" __global__ void indexed(float* x, int i) {
  float v[64];
  for (int k = 0; k < 64; ++k) v[k] = x[k * i];
  for (int k = 0; k < i; ++k) v[(k * i) & 63] += v[(k * 7 + i) & 63];
  for (int k = 0; k < 64; ++k) x[k] = v[k];
}
""")
    assert done.returncode == 1 and done.stdout == "" and "of local memory" in done.stderr, done.stdout + done.stderr


def test_a_warning_would_fail(nvcc, tmp_path):
    done = compile_file(tmp_path, 'extern "C" __global__ void unused(float* x) { int never; x[0] = 1.0f; }\n')
    assert done.returncode == 1 and "never" in done.stderr, done.stdout + done.stderr


HEADERS = sorted(str(path.relative_to(SOURCE)) for folder in ("kernels/device", "formats/layout")
                 for path in (SOURCE / folder).glob("*.*h")) + ["formats/codec/element.h"]


def test_device_headers_compile_alone(nvcc, tmp_path):
    """Each under nvcc (all in one run of several files would share includes) and under g++, warnings as errors."""
    assert len(HEADERS) >= 13
    for header in HEADERS:
        (tmp_path / "alone.cu").write_text(f'#include "{header}"\n')
        subprocess.run([nvcc, "-std=c++20", "-arch=sm_80", "-Werror", "all-warnings", f"-I{SOURCE}", "--cuda", "-o", "/dev/null",
                        str(tmp_path / "alone.cu")], check=True)
        subprocess.run(["c++", "-x", "c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{SOURCE}", "-fsyntax-only",
                        str(tmp_path / "alone.cu")], check=True)
