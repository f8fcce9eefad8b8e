#!/usr/bin/env python3
"""How time, memory and disk of collect and fit grow with the model and the data: layers, KV heads, samples, and tokens a
sample, each alone, on small random models. The exponent p of a figure ~ size^p is fitted over doubled sizes.

Time is processor time (user and system) less that of a run that finds everything done; disk is all files of the result;
memory is the greatest anonymous memory (RssAnon: the mapped weights and the libraries are left out), less that of a
program that has only started. Time and disk should be linear, but attention is quadratic in the tokens of a sample;
memory should not grow with samples or layers, but for what is kept of each layer: its inputs in collect (tokens x hidden
size), and tables of vector codebooks in the fit; and the fit holds two layers of all samples at a time.

    tests/bench/scaling.py [--steps 4] [--json]
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")  # transformers shows a bar for each model it saves
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support import BUILD, random_ids, tiny_llama  # noqa: E402

BASE = {"layers": 4, "heads": 4, "samples": 4, "tokens": 256}
FITS = {"fit": "kvcc-nuq3-1%-sink1", "fit, vectors": "kvcc-2"}
PROGRAMS = BUILD / "libexec/kvcc"


def measure(*command):
    """(processor seconds, peak anonymous bytes) of a program that must end well."""
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    status, peak = Path(f"/proc/{process.pid}/status"), 0
    while True:
        pid, code, usage = os.wait4(process.pid, os.WNOHANG)
        if pid != 0:
            break
        try:
            for line in status.read_text().splitlines():
                if line.startswith("RssAnon:"):
                    peak = max(peak, int(line.split()[1]) * 1024)
        except OSError:
            pass
        time.sleep(0.002)
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}\n{process.stderr.read()}")
    return usage.ru_utime + usage.ru_stime, peak


def disk(path):
    files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]
    return sum(f.stat().st_size for f in files)


def exponent(sizes, values):
    """Least-squares slope of log value over log size; NaN where a value is not above nothing."""
    if min(values) <= 0:
        return math.nan
    x, y = [math.log(s) for s in sizes], [math.log(v) for v in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y)) / sum((a - mx) ** 2 for a in x)


def run(shape, folder):
    """{stage: figures} of one model and text."""
    model, acts, ids = folder / "model", folder / "run.acts", folder / "ids.npy"
    tiny_llama(model, hidden_size=256, intermediate_size=512, num_attention_heads=16, head_dim=16, max_position_embeddings=1 << 16,
               num_hidden_layers=shape["layers"], num_key_value_heads=shape["heads"])
    random_ids(ids, shape["samples"], shape["tokens"])
    collect = [PROGRAMS / "kvcc-collect", model, "-o", acts, "--ids", ids, "--samples", shape["samples"], "--seqlen", shape["tokens"],
               "--recompute", "on", "--threads", 1]
    seconds, memory = measure(*collect, "--force")
    idle, start = measure(*collect, "--resume")
    found = {"collect": {"seconds": seconds - idle, "memory": memory - start, "whole_memory": memory, "disk": disk(acts)}}
    for stage, scheme in FITS.items():
        fit = [PROGRAMS / "kvcc-fit", acts, "-o", folder / "fit.kvcb", "--scheme", scheme, "--threads", 1]
        if "nuq" not in scheme:
            fit += ["--held-out", 1]
        seconds, memory = measure(*fit, "--force")
        idle, start = measure(*fit, "--resume")
        found[stage] = {"seconds": seconds - idle, "memory": memory - start, "whole_memory": memory, "disk": disk(folder / "fit.kvcb")}
    return found


def scaling(factor, steps, folder):
    """Figures of each size of one factor, the others at their base, and their exponents."""
    sizes = [BASE[factor] << step for step in range(steps)]
    runs = [run({**BASE, factor: size}, folder) for size in sizes]
    return {stage: {"sizes": sizes, "figures": [r[stage] for r in runs],
                    "exponents": {what: exponent(sizes, [r[stage][what] for r in runs]) for what in runs[0][stage]}}
            for stage in runs[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="sizes of each factor, each twice the one before (default 4)")
    parser.add_argument("--factors", default=",".join(BASE), help=f"some of {','.join(BASE)}")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="kvcc-scaling-") as temporary:
        for factor in options.factors.split(","):
            print(f"scaling: {factor} …", file=sys.stderr)
            results[factor] = scaling(factor, options.steps, Path(temporary))
    if options.json:
        print(json.dumps(results, indent=1))
        return
    print("exponents (figure ~ size^p), and the figures at the smallest and the largest size")
    print(f"{'stage':14}{'against':9}{'sizes':>12}{'time':>7}{'disk':>7}{'memory':>8}   seconds          MiB of disk      MiB of memory")
    for factor, stages in results.items():
        for stage, r in stages.items():
            p, first, last = r["exponents"], r["figures"][0], r["figures"][-1]
            pairs = [f"{first[w] / u:.3g} to {last[w] / u:.3g}" for w, u in (("seconds", 1), ("disk", 1 << 20), ("memory", 1 << 20))]
            print(f"{stage:14}{factor:9}{r['sizes'][0]:>6} - {r['sizes'][-1]:<4}{p['seconds']:6.2f}{p['disk']:7.2f}{p['memory']:8.2f}   "
                  + "".join(f"{pair:17}" for pair in pairs).rstrip())


if __name__ == "__main__":
    main()
