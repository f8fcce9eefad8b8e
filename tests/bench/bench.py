#!/usr/bin/env python3
"""`make bench`: kvcc against the reference path, as ratios measured in one run on this machine.

1. collect: forward and backward of calibration samples, `kvcc collect --recompute off` against PyTorch from Python
   (transformers), the same ids, seconds a sample and peak memory, the two in turn.
2. fit: all key and value tensors at 4, 3 and 2 bits, `kvcc fit` against scikit-learn's KMeans as KVQuant calls it.
   scikit-learn is timed on a few layers and scaled to all of them (--full times every layer).
   The whole calibration follows from 1 and 2: 16 samples and three widths, against the reference's gradients, its pass that
   collects activations, percentiles and k-means. Then what saving memory and bf16 cost (calibration.py).
3. inspect: the time of one call.
4. eval: what each scheme costs, in passes of the plain model over the same window with their loss, in one run.
5. attention: decoding over the packed cache by the CPU units against fp16 and f32 rows (cpu_attention.cc), and the
   instructions that they take (cpu_instructions.py).

Prints a table and, with --json, the raw figures.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import calibration
import cpu_instructions

HERE = Path(__file__).resolve().parent


def run(command, **kw):
    """Runs a command; returns (stdout, seconds, peak resident bytes)."""
    start = time.perf_counter()
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, **kw)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, command))} ended with {process.returncode}")
    return out.decode(), time.perf_counter() - start, usage.ru_maxrss * 1024


def calibration_ids(data, folder, samples, seqlen):
    """The ids that both sides work on: shared ones where they are, else random ones (the time does not depend on them)."""
    import numpy as np
    path = Path(data or "") / "smollm2" / "calibration_ids.npy"
    ids = np.load(path) if path.exists() else np.random.default_rng(0).integers(0, 49152, (samples, seqlen))
    out = folder / "ids.npy"
    np.save(out, ids[:samples, :seqlen].astype(np.int32))
    return out


# One of each kind of codec.
EVAL_SCHEMES = ["int4", "kivi-2", "kvarn-2", "quarot-4", "flexgen-4", "turboquant-3", "turboquant-3-prod", "polarquant-a", "polarquant-b",
                "qjl", "kitty", "oscar-norm", "q4_0", "fp8"]


def evaluation(options, folder, fitted):
    """Seconds of a scheme (forward pass, quantisation, comparison) over seconds of full precision, by scheme and mode."""
    import numpy as np
    ids = np.random.default_rng(0).integers(0, 49152, options.seqlen).astype(np.int32)
    path = Path(os.environ.get("KVCC_DATA") or "") / "smollm2" / "evaluation_ids.npy"
    np.save(folder / "window.npy", np.load(path)[:options.seqlen] if path.exists() else ids)
    command = [options.kvcc, "eval", options.model, "--ids", folder / "window.npy", "--windows", 1, "--seqlen", options.seqlen,
               "--mode", "full,pseudo-decode", "--json", "--quiet", "--cache-dir", folder / "cache"]
    for scheme in EVAL_SCHEMES:
        command += ["--scheme", scheme]
    for scheme in fitted:
        command += ["--codebook", folder / f"fitted.{scheme}.kvcb"]
    plain, *rows = json.loads(run(command)[0])["results"]
    return {"seqlen": options.seqlen, "plain_seconds": plain["seconds"],
            "ratios": {f"{row['scheme']} {row['mode']}": row["seconds"] / plain["seconds"] for row in rows}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvcc", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--samples", type=int, default=4, help="samples a collect run (default 4)")
    parser.add_argument("--fit-samples", type=int, default=16, help="samples of the fit (default 16)")
    parser.add_argument("--seqlen", type=int, default=2048)
    parser.add_argument("--layers", default="0,7,15,23", help="layers on which scikit-learn is timed")
    parser.add_argument("--full", action="store_true", help="16 samples, every layer: an hour")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.full:
        options.samples, options.layers = 16, ",".join(map(str, range(30)))
    figures = {}
    with tempfile.TemporaryDirectory(prefix="kvcc-bench-") as temporary:
        folder = Path(temporary)
        acts = folder / "bench.acts"

        def collect(samples):
            return run([options.kvcc, "collect", options.model, "-o", acts, "--ids",
                        calibration_ids(os.environ.get("KVCC_DATA"), folder, samples, options.seqlen), "--samples", samples,
                        "--seqlen", options.seqlen, "--recompute", "off", "--force", "--quiet"])

        print("collect …", file=sys.stderr)
        ours, theirs, collections = [], [], []
        for turn in range(2):
            _, seconds, peak = collect(options.samples)
            ours.append((seconds / options.samples, peak))
            out, _, _ = run([sys.executable, HERE / "fisher_reference.py", "--model", options.model, "--ids", folder / "ids.npy",
                             "--samples", options.samples, "--collection"])
            reference = json.loads(out)
            theirs.append((reference["seconds_per_sample"], reference["peak_rss_bytes"]))
            collections.append(reference["collection_seconds_per_sample"])
        figures["collect"] = {
            "samples": options.samples, "seqlen": options.seqlen,
            "kvcc_seconds_a_sample": min(s for s, _ in ours), "kvcc_peak_bytes": max(p for _, p in ours),
            "python_seconds_a_sample": min(s for s, _ in theirs), "python_collection_seconds_a_sample": min(collections),
            "python_peak_bytes": max(p for _, p in theirs)}

        print("fit …", file=sys.stderr)
        collect(options.fit_samples)
        schemes = [f"kvquant-nuq{b}-1%-sink1" for b in (4, 3, 2)]
        run([options.kvcc, "fit", acts, "-o", folder / "warm", "--scheme", schemes[0], "--force", "--quiet"])
        fit_seconds = []
        for turn in range(3):
            arguments = [options.kvcc, "fit", acts, "-o", folder / "fitted", "--force", "--quiet"]
            for scheme in schemes:
                arguments += ["--scheme", scheme]
            _, seconds, _ = run(arguments)
            fit_seconds.append(seconds)
        out, _, _ = run([sys.executable, HERE / "kmeans_reference.py", acts, "--layers", options.layers, "--bits", "4,3,2"])
        reference = json.loads(out)
        import h5py
        with h5py.File(folder / f"fitted.{schemes[0]}.kvcb") as artifact:
            layers = artifact["key/codebook"].shape[0]
        timed = len(options.layers.split(","))
        figures["fit"] = {"kvcc_seconds": statistics.median(fit_seconds), "sklearn_seconds_timed": reference["seconds"],
                          "sklearn_layers_timed": timed, "layers": layers,
                          "sklearn_seconds_scaled": reference["seconds"] * layers / timed,
                          "percentile_seconds_scaled": reference["percentile_seconds"] * layers / timed}
        c, f, n = figures["collect"], figures["fit"], options.fit_samples
        whole = {"samples": n, "kvcc_seconds": n * c["kvcc_seconds_a_sample"] + f["kvcc_seconds"],
                 "reference_seconds": n * (c["python_seconds_a_sample"] + c["python_collection_seconds_a_sample"]) +
                                      f["sklearn_seconds_scaled"] + f["percentile_seconds_scaled"]}
        figures["whole"] = {**whole, "times_faster": whole["reference_seconds"] / whole["kvcc_seconds"]}

        print("ways to collect …", file=sys.stderr)
        figures["ways"] = calibration.measure(options.kvcc, options.model, min(options.samples, 2), options.seqlen,
                                              data=os.environ.get("KVCC_DATA"))

        times = []
        for _ in range(10):
            _, seconds, _ = run([options.kvcc, "inspect", folder / f"fitted.{schemes[0]}.kvcb", "--json"])
            times.append(seconds)
        figures["inspect"] = {"kvcc_seconds": statistics.median(times)}

        print("eval …", file=sys.stderr)
        figures["eval"] = evaluation(options, folder, schemes)

        print("attention …", file=sys.stderr)
        program = Path(options.kvcc).resolve().parents[1] / "tests/bin/cpu_attention"
        attention_table, _, _ = run([program, "--json", folder / "attention.json"])
        figures["attention"] = json.loads((folder / "attention.json").read_text())
        instructions, _, _ = run([sys.executable, HERE / "cpu_instructions.py", program, "--json"])
        figures["instructions"] = json.loads(instructions)

    if options.json:
        print(json.dumps(figures, indent=1))
        return
    c, f = figures["collect"], figures["fit"]
    gib = 2.0**30
    print(f"collect, {c['samples']} samples of {c['seqlen']} (best of two turns)")
    print(f"  kvcc            {c['kvcc_seconds_a_sample']:7.2f} s a sample   peak {c['kvcc_peak_bytes'] / gib:5.2f} GiB"
          "   (loading, hashing and writing included)")
    print(f"  PyTorch, Python {c['python_seconds_a_sample']:7.2f} s a sample   peak {c['python_peak_bytes'] / gib:5.2f} GiB"
          "   (forward and backward alone)")
    print(f"  ratio           {c['kvcc_seconds_a_sample'] / c['python_seconds_a_sample']:7.2f}")
    print(f"fit, {f['layers']} layers, keys and values, at 4, 3 and 2 bits, {options.fit_samples} samples of {c['seqlen']}")
    print(f"  kvcc            {f['kvcc_seconds']:7.2f} s (whole program, thresholds and reading included; median of three)")
    print(f"  scikit-learn    {f['sklearn_seconds_scaled']:7.2f} s ({f['sklearn_layers_timed']} layers timed, scaled; k-means alone)")
    print(f"  times faster    {f['sklearn_seconds_scaled'] / f['kvcc_seconds']:7.1f}")
    w = figures["whole"]
    print(f"the whole calibration, {w['samples']} samples of {c['seqlen']}, three schemes: kvcc {w['kvcc_seconds']:.0f} s, the reference "
          f"{w['reference_seconds']:.0f} s\n  times faster    {w['times_faster']:7.1f}   (from the figures above, and percentiles "
          f"{f['percentile_seconds_scaled']:.0f} s and the reference's pass for activations "
          f"{c['python_collection_seconds_a_sample']:.2f} s a sample)")
    calibration.print_table(figures["ways"])
    print(f"inspect --json    {figures['inspect']['kvcc_seconds'] * 1000:7.1f} ms\n")
    e = figures["eval"]
    print(f"eval, one window of {e['seqlen']}: a plain pass with its loss takes {e['plain_seconds']:.2f} s; times that:")
    for name, ratio in sorted(e["ratios"].items(), key=lambda item: -item[1]):
        print(f"  {name:50s} {ratio:5.2f}")
    print()
    print(attention_table)
    cpu_instructions.print_table(figures["instructions"])


if __name__ == "__main__":
    main()
