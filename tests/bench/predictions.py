#!/usr/bin/env python3
"""Predicted times of the kernels that read a cache of layout mma-1, where no GPU is: bytes, instructions and shared memory of an element,
each measured from the machine code or from a run of the PTX on the emulator, against what a GPU moves and issues. Lower bounds: latency,
launches (2 to 4 us each) and short contexts that leave multiprocessors idle are not modelled; trust them to a factor of two.

  DRAM           92 % of the peak
  issue          128 lane instructions a clock and multiprocessor
  shared memory  one wavefront (128 bytes) a clock and multiprocessor; wide loads count as wide where lanes share words, too
  tensor cores   fp16 multiply-adds a clock and multiprocessor of the data sheet; counted for vector codebooks alone, whose keys they transform.
                 mma.sync, which the kernels use, reaches less than that on H100 and H200

The ratio to fp16 is the same at every context, as both sides are bounds without a constant part. One layer, 32 KV heads of 128 channels, one sequence, up to 8 query heads a KV head (all for the price of one)."""
import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "kernels/ptx")]

HEADS, DIM, QUERIES = 32, 128, 8
CONTEXTS = [2048 << i for i in range(7)]
DRAM_SHARE = 0.92
BITS = (2, 3, 4)
OUTLIERS = 0.01
FAMILIES = {"key_scores": ("key",), "value_mix": ("value",), "attention": ("key", "value")}


@dataclass(frozen=True)
class Gpu:
    """Data-sheet figures; the clock is what it sustains."""
    name: str
    arch: str
    multiprocessors: int
    clock: float      # Hz
    bandwidth: float  # bytes a second
    products: int     # of tensor cores, fp16 with f32 sums, a clock and multiprocessor


GPUS = [Gpu("A6000", "sm_86", 84, 1.80e9, 768e9, 512), Gpu("A100", "sm_80", 108, 1.41e9, 2039e9, 1024),
        Gpu("H100", "sm_90", 132, 1.755e9, 3350e9, 2048), Gpu("H200", "sm_90", 132, 1.755e9, 4800e9, 2048)]

# Vector codebooks at about 2 bits: pairs of 5 bits for a quarter of the coordinates, then fours of 7. What the keys' transform costs, and
# whether tables lie in shared memory, decides: without a transform the kernel multiplies by a permutation, at the same cost.
MMA_PRODUCTS = 16 * 16 * 8
GATHER_WAVEFRONTS = {"ld.v2.u32": 6.2, "ld.u32": 3.5}  # of a warp's rows of 8 and of 4 bytes in shared memory: lanes at random banks


def unit(family, bits, outliers):
    from units import Unit
    key, value = ("csr", "tail") if outliers else ("none", "none")
    if family == "value_mix":
        return Unit(family, bits=bits, axis="token", sparse=value, dim=DIM)
    return Unit(family, bits=bits, sparse=key, dim=DIM, rope="half", rotary=DIM, value_bits=bits, value_sparse=value)


def machine_code(folder, build):
    """(family, bits, arch) -> instructions an element, and wavefronts of shared loads a warp-element: from the dense loops."""
    from codegen.sass import MMA_ELEMENTS, dense_loop, disassemble
    from units import run
    units = {(family, bits): unit(family, bits, False) for family in FAMILIES for bits in BITS}
    archs = sorted({gpu.arch for gpu in GPUS})
    run([build / "tests/bin/write_cubins", folder, folder, ",".join(archs), *(u.name for u in units.values())])
    costs = {}
    for (family, bits), made in units.items():
        for arch in archs:
            function = next(f for f in disassemble(folder / f"{made.name}.{arch}.cubin") if f.name == made.symbol)
            loop = dense_loop(function, 1, len(FAMILIES[family]))
            assert loop.elements == 64 * DIM, f"{made.name}: a loop of {loop.elements} elements, not of one tile; MMAs of {MMA_ELEMENTS}"
            costs[family, bits, arch] = (loop.per_element, loop.shared_wavefronts / loop.elements)
    return costs


def traced(folder, build, nvcc):
    """What runs at 3 bits show beside the codes. (tensor, outliers) -> bytes a token that each head reads, and that all heads share;
    tensor -> lane instructions an outlier."""
    from unit_trace import Traced, outlier_cost
    tokens, heads = 256, 2
    beside, per_outlier = {}, {}
    for family, tensor, options in (("key_scores", "key", ["threshold=3.5"]), ("value_mix", "value", ["tail=1", "weights=flat"])):
        options.append(f"group={QUERIES}")
        made = {outliers: Traced(unit(family, 3, outliers), folder, build, nvcc) for outliers in (False, True)}
        for outliers in made:
            run = made[outliers].run(*options, tokens=tokens, heads=heads)
            of_head = run.touched.get(f"{tensor} ends", 0)
            if outliers:
                of_head += run.touched[f"{tensor} records"] * OUTLIERS * run.elements / run.records()
            beside[tensor, outliers] = of_head / (tokens * heads), run.touched.get(f"{tensor} ranges", 0) / tokens
        cost, share = outlier_cost(made[False], made[True], *options)
        per_outlier[tensor] = cost * share / OUTLIERS  # what it adds an element depends little on their share
    return beside, per_outlier


def predict(gpu, elements, byte_count, instructions, wavefronts):
    """Seconds by what would bind."""
    rate = gpu.multiprocessors * gpu.clock
    return {"DRAM": byte_count / (DRAM_SHARE * gpu.bandwidth), "issue": elements * instructions / (128 * rate),
            "shared memory": elements * wavefronts / rate}


def rows(costs, beside, per_outlier):
    for family, tensors in FAMILIES.items():
        for bits in BITS:
            for outliers in (False, True):
                bytes_token = 0
                for tensor in tensors:
                    of_head, shared = beside[tensor, outliers]
                    bytes_token += HEADS * (DIM * bits / 8 + of_head) + shared
                fp16_token = len(tensors) * HEADS * DIM * 2
                extra = sum(per_outlier[tensor] * OUTLIERS for tensor in tensors) if outliers else 0
                for gpu in GPUS:
                    dense, wavefronts = costs[family, bits, gpu.arch]
                    times = {}
                    for context in CONTEXTS:
                        bounds = predict(gpu, context * HEADS * DIM, context * bytes_token, dense + extra, wavefronts)
                        fp16 = context * fp16_token / (DRAM_SHARE * gpu.bandwidth)
                        binds = max(bounds, key=bounds.get)
                        times[context] = {"microseconds": bounds[binds] * 1e6, "fp16_microseconds": fp16 * 1e6, "ratio": fp16 / bounds[binds]}
                    yield {"kernel": family, "bits": bits, "outliers": OUTLIERS if outliers else 0, "gpu": gpu.name, "bytes_per_token": bytes_token,
                           "bytes_per_element": bytes_token / (HEADS * DIM), "instructions_per_element": dense + extra,
                           "wavefronts_per_element": wavefronts, "binds": binds, "contexts": times}


def traced_vectors(folder, build, nvcc):
    """Of attention over vector codebooks, an element of keys and values together: instructions of PTX, wavefronts of shared memory without
    the tables' rows, those of the rows by where the tables lie (in the L1 cache a sector each), MMAs of a warp; and bytes."""
    from unit_trace import Traced
    from units import VectorUnit
    made = VectorUnit("attention", dim=DIM, rotary=DIM)
    run = Traced(made, folder, build, nvcc).run(f"group={QUERIES}", tokens=256, heads=1)
    dense = run.dense_instructions()
    loads = [i for i in dense if i["opcode"] in GATHER_WAVEFRONTS]
    gathers = {"shared memory": sum(i["issues"] * GATHER_WAVEFRONTS[i["opcode"]] for i in loads), "L1 cache": sum(i["sectors"] for i in loads)}
    count = lambda some: sum(i["issues"] for i in some) / run.elements  # noqa: E731
    return {"instructions": 32 * count(dense), "wavefronts": sum(i["wavefronts"] for i in dense) / run.elements, "gathers": {where: all_ / run.elements for where, all_ in gathers.items()},
            "mmas": count([i for i in dense if i["opcode"].startswith("mma")]), "bytes": 2 * made.token_bits() / 8 / DIM, "bits": made.token_bits() / DIM}


def vector_rows(cost):
    """Of each GPU, with tables in shared memory and read through the L1 cache: what binds, and the ratio to fp16."""
    for gpu in GPUS:
        for where, wavefronts in cost["gathers"].items():
            bounds = predict(gpu, 1, cost["bytes"], cost["instructions"], cost["wavefronts"] + wavefronts)
            bounds["tensor cores"] = cost["mmas"] * MMA_PRODUCTS / (gpu.products * gpu.multiprocessors * gpu.clock)
            binds = max(bounds, key=bounds.get)
            fp16 = 4 / (DRAM_SHARE * gpu.bandwidth)
            yield {"kernel": "attention of vector codebooks", "bits": cost["bits"], "gpu": gpu.name, "tables": where, "binds": binds,
                   "ratio": fp16 / bounds[binds], "ratios": {name: fp16 / seconds for name, seconds in bounds.items()}}


def measure(build):
    from codegen.conftest import _nvcc
    from codegen.sass import tool
    nvcc = _nvcc()
    if nvcc is None or tool("nvdisasm") is None:
        sys.exit("predictions: no nvcc or no nvdisasm ('make nvcc', 'make oracles'): nothing was measured, nothing is predicted")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        beside, per_outlier = traced(folder, build, nvcc)
        return list(rows(machine_code(folder, build), beside, per_outlier)), per_outlier, traced_vectors(folder, build, nvcc)


def show(predictions, per_outlier, cost):
    print("predicted, no GPU was used: lower bounds, to a factor of two")
    print(__doc__.split("\n\n", 1)[1])
    print("\nAn element of attention is a key's and a value's. Lane instructions an outlier adds: "
          + ", ".join(f"{cost:.0f} ({tensor})" for tensor, cost in per_outlier.items()))
    for gpu in GPUS:
        print(f"\n{gpu.name}: {gpu.multiprocessors} multiprocessors at {gpu.clock / 1e9:.2f} GHz, {gpu.bandwidth / 1e9:.0f} GB/s; us at tokens in the cache")
        print(f"  {'kernel':<11} bits outliers B/token  B/el instr/el binds         {' '.join(f'{c // 1024:>6}K' for c in CONTEXTS)}   x fp16")
        for row in predictions:
            if row["gpu"] != gpu.name:
                continue
            times = " ".join(f"{row['contexts'][c]['microseconds']:7.1f}" for c in CONTEXTS)
            print(f"  {row['kernel']:<11} {row['bits']:>4} {row['outliers']:>8.0%} {row['bytes_per_token']:>7.0f} {row['bytes_per_element']:>5.3f} {row['instructions_per_element']:>8.2f}"
                  f" {row['binds']:<13} {times}   {row['contexts'][CONTEXTS[-1]]['ratio']:.2f}")


    print(f"\nVector codebooks, {cost['bits']:.2f} bits, keys and values transformed; an element of keys and values together: {cost['bytes']:.3f} bytes, "
          f"{cost['instructions']:.1f} instructions of PTX, {cost['mmas'] * MMA_PRODUCTS:.0f} products of tensor cores, {cost['wavefronts']:.3f} wavefronts, "
          + ", ".join(f"{count:.3f} more for tables in {where}" for where, count in cost["gathers"].items()) + ". Times the speed of fp16, by what would bind:")
    for row in vector_rows(cost):
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in row["ratios"].items())
        print(f"  {row['gpu']:<6} tables in {row['tables']:<13}: {row['ratio']:.2f} ({row['binds']}); {ratios}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    build = Path(os.environ.get("KVCC_BUILD", TESTS.parent / "build")).resolve()
    predictions, per_outlier, cost = measure(build)
    if options.json:
        print(json.dumps({"note": "predicted, no GPU was used", "instructions_per_outlier": per_outlier, "predictions": predictions,
                          "vectors": {"cost": cost, "predictions": list(vector_rows(cost))}}, indent=1))
    else:
        show(predictions, per_outlier, cost)


if __name__ == "__main__":
    main()
