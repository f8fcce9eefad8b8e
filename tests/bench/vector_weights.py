#!/usr/bin/env python3
"""calib/fit/RESULTS.md: how much of tokens' weights the fit of vector codebooks should believe, judged on samples that it has not seen.

  vector_weights.py NAME.acts [--layers 1:value,4:key,…] [--samples 15] [--held-out 3]

For each weighting, with the metric as kvcc fit has it: the loss that coordinates of the transform leave at 1, 2 and 3 bits an
element by reverse water-filling (transform), and that k-means codebooks of three groups leave (codebooks), both on the
samples that are held out and with their own weights; means over tensors (groups) against weights as they are.
"""
import argparse
from pathlib import Path

import h5py
import numpy as np

LAYERS = "1:value,4:key,10:value,15:key,20:value,26:value"
WEIGHTS = {"w": lambda w: w, "w^0.75": lambda w: w ** 0.75, "w^0.5": lambda w: w ** 0.5, "at most 10": lambda w: np.minimum(w, 10),
           "0.5 w + 0.5": lambda w: 0.5 * w + 0.5, "0.1 w + 0.9": lambda w: 0.1 * w + 0.9, "1": np.ones_like}
GROUPS = ((4, 2, 64), (24, 4, 256), (80, 4, 32))  # first coordinate, width, vectors


def load(folder, layer, kind, samples):
    """Values and gradients of the samples' tokens but the first, [tokens, channels] each."""
    rows = [[], []]
    for sample in samples:
        with h5py.File(folder / f"s{sample:04}/l{layer:04}.h5") as file:
            for to, name in zip(rows, (kind, f"{kind}_grad")):
                values = file[name][()]
                to.append(values.reshape(len(values), -1)[1:])
    return np.concatenate(rows[0]), np.concatenate(rows[1])


def transform(x, root, weights):
    """Mean and T [N, N] of the Karhunen-Loeve transform of (x - mean) root, and its variances, greatest first."""
    mean = (weights[:, None] * x).sum(0) / weights.sum()
    covariance = (((x - mean) * weights[:, None]).T @ (x - mean) / weights.sum()).astype(float)
    values, vectors = np.linalg.eigh(root @ covariance @ root)
    return mean, (root @ vectors[:, ::-1]).astype(np.float32), np.maximum(values[::-1], 1e-30)


def left(variances, bits):
    """Shares of coordinates' variances that reverse water-filling leaves at a mean of `bits` a coordinate."""
    low, high = 1e-20, variances.max()
    for _ in range(120):
        level = np.sqrt(low * high)
        if 0.5 * np.log2(np.maximum(variances / level, 1)).mean() > bits:
            low = level
        else:
            high = level
    return np.minimum(variances, high) / variances


def nearest(z, vectors):
    return ((vectors * vectors).sum(1)[None] - 2 * z @ vectors.T).argmin(1)


def kmeans(z, weights, count, random, rounds=10):
    vectors = z[random.choice(len(z), count, replace=False, p=weights / weights.sum())].copy()
    for _ in range(rounds):
        code = nearest(z, vectors)
        mass = np.bincount(code, weights, count)
        for j in range(z.shape[1]):
            vectors[:, j] = np.where(mass > 0, np.bincount(code, weights * z[:, j], count) / np.maximum(mass, 1e-20), vectors[:, j])
    return vectors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("activations", type=Path)
    parser.add_argument("--layers", default=LAYERS)
    parser.add_argument("--samples", type=int, help="the first ones only (default: all)")
    parser.add_argument("--held-out", type=int, default=3)
    options = parser.parse_args()
    samples = sorted(int(p.name[1:]) for p in options.activations.glob("s[0-9]*"))[:options.samples]
    turned = {(name, bits): [] for name in WEIGHTS for bits in (1, 2, 3)}
    coded = {name: [] for name in WEIGHTS}
    for tensor in options.layers.split(","):
        layer, kind = tensor.split(":")
        x, g = load(options.activations, int(layer), kind, samples[:-options.held_out])
        other, other_g = load(options.activations, int(layer), kind, samples[-options.held_out:])
        w = (g * g / (g * g).mean(0)).mean(1)
        w /= w.mean()
        divided = g / np.sqrt(np.maximum(w, 1e-20))[:, None]
        metric = (divided.T @ divided / len(g)).astype(float)
        metric = 0.9 * metric + 0.1 * np.diag(np.diag(metric))
        values, vectors = np.linalg.eigh(metric)
        root, inverse = vectors * np.sqrt(values) @ vectors.T, vectors / np.sqrt(values) @ vectors.T
        other_w = ((other_g @ inverse) ** 2).mean(1)
        print(f"layer {layer} {kind}: {len(w)} tokens weigh as much as {w.sum() ** 2 / (w * w).sum():.0f} equal ones", flush=True)
        for name, weigh in WEIGHTS.items():
            mean, turn, variances = transform(x, root, weigh(w))
            spread = (other_w[:, None] * ((other - mean) @ turn) ** 2).mean(0)
            for bits in (1, 2, 3):
                turned[name, bits].append((left(variances, bits) * spread).sum())
        mean, turn, _ = transform(x, root, w ** 0.75)
        z, other_z = (x - mean) @ turn, (other - mean) @ turn
        random = np.random.default_rng(0)
        for first, width, count in GROUPS:
            part, held = (np.ascontiguousarray(a[:, first:first + width]) for a in (z, other_z))
            for name, weigh in WEIGHTS.items():
                book = kmeans(part, weigh(w), count, random)
                coded[name].append((((held - book[nearest(held, book)]) ** 2).sum(1) * other_w).mean())
    for name in WEIGHTS:
        shares = [np.mean(np.divide(turned[name, bits], turned["w", bits])) for bits in (1, 2, 3)]
        books = np.divide(coded[name], coded["w"])
        print(f"{name:12s} transform " + " ".join(f"{share:.3f}" for share in shares) +
              f"   codebooks {books.mean():.3f} ±{books.std(ddof=1) / np.sqrt(len(books)):.3f}")


if __name__ == "__main__":
    main()
