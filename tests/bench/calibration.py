#!/usr/bin/env python3
"""What calibration costs, as ratios of runs on this machine (a part of `make bench`, or by itself):

1. running layers twice in the backward pass (--recompute on) against keeping all activations;
2. products in bf16 (--dtype bf16) against f32, where the processor has them, and what that does to codebooks: the
   distance (kvcc diff: sqrt(2) is two codecs of the same error with nothing in common) of every head's codebook from bf16
   activations to that from f32 ones, beside the distance between two calibrations on other text.
"""
import argparse
import json
import math
import os
import subprocess
import tempfile
import time
from pathlib import Path

SCHEME = "kvcc-nuq3-1%-sink1"


def ids_of(data, folder, first, samples, seqlen):
    """Rows [first, first + samples) of the shared calibration ids where they are, else random ones."""
    import numpy as np
    path = Path(data or "") / "smollm2" / "calibration_ids.npy"
    if path.exists():
        ids = np.load(path)[first:first + samples, :seqlen]
    else:
        ids = np.random.default_rng(first).integers(0, 49152, (samples, seqlen))
    out = folder / f"ids{first}.npy"
    np.save(out, ids.astype(np.int32))
    return out


def has_bf16():
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


def quantiles(distances):
    finite = sorted(d for d in distances if d is not None and math.isfinite(d))
    at = lambda share: finite[min(len(finite) - 1, int(share * len(finite)))]
    return {"median": at(0.5), "90 %": at(0.9), "largest": finite[-1], "heads": len(distances)}


def measure(kvcc, model, samples, seqlen, turns=2, data=None):
    figures = {"samples": samples, "seqlen": seqlen}
    with tempfile.TemporaryDirectory(prefix="kvcc-calibration-") as temporary:
        folder = Path(temporary)
        ids = {name: ids_of(data, folder, first, samples, seqlen) for name, first in (("a", 0), ("b", samples))}

        def collect(name, text, *more):
            start = time.perf_counter()
            subprocess.run([kvcc, "collect", model, "-o", folder / f"{name}.acts", "--ids", ids[text], "--samples", str(samples),
                            "--seqlen", str(seqlen), "--force", "--quiet", *more], check=True, stdout=subprocess.DEVNULL)
            return time.perf_counter() - start

        ways = {"f32": ("--recompute", "off"), "twice": ("--recompute", "on")}
        if has_bf16():
            ways["bf16"] = ("--recompute", "off", "--dtype", "bf16")
        seconds = {name: [] for name in ways}
        for _ in range(turns):  # in turns: another load on the machine meets all of them
            for name, more in ways.items():
                seconds[name].append(collect(name, "a", *more))
        best = {name: min(times) for name, times in seconds.items()}
        figures["seconds_a_sample"] = {name: time_ / samples for name, time_ in best.items()}
        figures["recompute_ratio"] = best["twice"] / best["f32"]
        if "bf16" not in ways:
            return figures
        figures["bf16_ratio"] = best["bf16"] / best["f32"]
        collect("other", "b", *ways["f32"])
        for name in ("f32", "bf16", "other"):
            subprocess.run([kvcc, "fit", folder / f"{name}.acts", "--scheme", SCHEME, "-o", folder / f"{name}.kvcb", "--force",
                            "--quiet"], check=True, stdout=subprocess.DEVNULL)
        for other in ("bf16", "other"):
            done = subprocess.run([kvcc, "diff", folder / "f32.kvcb", folder / f"{other}.kvcb", "--json"], stdout=subprocess.PIPE)
            heads = json.loads(done.stdout)["heads"]
            figures[f"distance_{other}"] = quantiles([h["distance"] for h in heads])
            figures.setdefault("heads", {})[other] = {f"{h['layer']} {h['kind']} {h['head']}": h["distance"] for h in heads}
        both = figures.pop("heads")
        figures["heads_nearer_in_bf16"] = sum(d is not None and both["other"][name] is not None and d < both["other"][name]
                                              for name, d in both["bf16"].items())
    return figures


def print_table(f):
    print(f"collect, {f['samples']} samples of {f['seqlen']} (best of the turns)")
    for name, what in {"f32": "all kept", "twice": "layers run twice", "bf16": "all kept, --dtype bf16"}.items():
        if name in f["seconds_a_sample"]:
            print(f"  {what:24s}{f['seconds_a_sample'][name]:7.2f} s a sample   {f['seconds_a_sample'][name] / f['seconds_a_sample']['f32']:5.2f}")
    if "bf16_ratio" not in f:
        print("  --dtype bf16 was not run: the processor has neither AVX-512-BF16 nor AMX")
        return
    print(f"distance of a head's {SCHEME} codebook from that of the f32 activations")
    for name, what in {"bf16": "bf16, the same text", "other": "f32, other text"}.items():
        d = f[f"distance_{name}"]
        print(f"  {what:24s}median {d['median']:.4f}   90 % {d['90 %']:.4f}   largest {d['largest']:.4f}")
    print(f"  nearer in bf16 than on other text: {f['heads_nearer_in_bf16']} of {f['distance_bf16']['heads']} heads")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvcc", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--samples", type=int, default=2, help="samples a run (default 2)")
    parser.add_argument("--seqlen", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(options.kvcc, options.model, options.samples, options.seqlen, options.turns, os.environ.get("KVCC_DATA"))
    print(json.dumps(figures, indent=1)) if options.json else print_table(figures)


if __name__ == "__main__":
    main()
