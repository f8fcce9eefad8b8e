#!/usr/bin/env python3
"""scikit-learn's KMeans as KVQuant calls it, timed on layers of an activations folder: the yardstick of `kvcc fit`.

Per layer and tensor one codebook: thresholds by percentile (keys per channel, values per token), values normalised to
[-1, 1], outliers and the first token of each sample left out, KMeans(n_clusters=2^b, random_state=0, n_init="auto",
max_iter=50) weighted by the Fisher diagonal.

Prints JSON: "seconds" is KMeans alone, over all layers, tensors and widths asked for; "percentile_seconds" what precedes
it; "tensors" lists seconds and weighted error, sum F (y - Q(y))^2, of each.
"""
import argparse
import json
import sys
import time
from pathlib import Path

import h5py
import numpy as np
from sklearn.cluster import KMeans


def read(acts, layer, name):
    """All samples' rows [N, H D] of a layer (the model's number), the first tokens' row numbers."""
    rows, firsts, count = [], [], 0
    for folder in sorted(acts.glob("s[0-9]*"), key=lambda p: int(p.name[1:])):
        files = [p for p in folder.glob("l*.h5") if int(p.stem[1:]) == layer]
        if not files:
            continue
        with h5py.File(files[0]) as f:
            data = f[name]
            values = data[()]
            if values.dtype == np.uint16:  # bf16
                values = (values.astype(np.uint32) << 16).view(np.float32)
        values = values.reshape(values.shape[0], -1)
        firsts.append(count)
        count += len(values)
        rows.append(values)
    if not rows:
        sys.exit(f"{acts}: no shard of layer {layer}")
    return np.concatenate(rows), firsts


def normalised(x, axis, sparse):
    """y of every element, and whether it is an inlier."""
    t = 1 - sparse / 2
    upper = np.percentile(x, 100 * t, axis=axis, keepdims=True)
    lower = np.percentile(x, 100 * (1 - t), axis=axis, keepdims=True)
    half = np.maximum((upper - lower) / 2, np.finfo(np.float32).tiny)
    y = ((x - (upper + lower) / 2) / half).astype(np.float32)
    return y, (y <= 1) & (y >= -1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("activations", type=Path, help="folder NAME.acts")
    parser.add_argument("--layers", default="0", help="the model's numbers, separated by commas (default 0)")
    parser.add_argument("--bits", default="4,3,2", help="widths, separated by commas (default 4,3,2)")
    parser.add_argument("--tensors", default="key,value", help="key, value or both (default both)")
    parser.add_argument("--sparse", type=float, default=0.01, help="fraction kept exactly, both tails (default 0.01)")
    options = parser.parse_args()
    tensors, percentile_seconds = [], 0.0
    for layer in map(int, options.layers.split(",")):
        for name in options.tensors.split(","):
            x, firsts = read(options.activations, layer, name)
            gradient, _ = read(options.activations, layer, f"{name}_grad")
            start = time.perf_counter()
            y, keep = normalised(x, 0 if name == "key" else 1, options.sparse)
            keep[firsts] = False
            points, weights = y[keep].reshape(-1, 1), gradient[keep].astype(np.float32) ** 2
            percentile_seconds += time.perf_counter() - start
            weights = weights / weights.mean()  # KVQuant's mean loss differs from our sum by such a factor
            for bits in map(int, options.bits.split(",")):
                start = time.perf_counter()
                fitted = KMeans(n_clusters=2**bits, random_state=0, n_init="auto", max_iter=50).fit(
                    points, sample_weight=weights)
                seconds = time.perf_counter() - start
                centres = np.sort(fitted.cluster_centers_[:, 0].astype(np.float64))
                cell = np.searchsorted((centres[1:] + centres[:-1]) / 2, points[:, 0])
                error = float(np.sum(weights * (points[:, 0] - centres[cell]) ** 2, dtype=np.float64))
                tensors.append({"layer": layer, "tensor": name, "bits": bits, "points": len(points),
                                "iterations": int(fitted.n_iter_), "seconds": seconds, "weighted_error": error})
                print(f"layer {layer} {name} {bits} bits: {seconds:.2f} s", file=sys.stderr)
    print(json.dumps({"seconds": sum(t["seconds"] for t in tensors), "percentile_seconds": percentile_seconds,
                      "tensors": tensors}, indent=1))


if __name__ == "__main__":
    main()
