#!/usr/bin/env python3
"""calib/fit/RESULTS.md: what could be added to vector codebooks, each judged on samples that the fit has not seen.

  vector_ideas.py NAME.acts NAME.kvcb [--layers 1:value,4:key,…] [--samples 15] [--held-out 2]

The artifact is a fit of these activations with rotate=fklt-layer that held out no fewer samples.

Entropy coding: length of an ideal code for each group's codes, with the frequencies of the fitted samples. Prediction: bits
saved at the distortion that reverse water-filling reaches without it, of the transform's coordinates less their best linear
prediction from the same token's in the layer before, as they are and as the artifact decodes them, from the decoded other
tensor of the layer (key or value), or from the token before. Scale: loss of k-means codebooks of a few groups where tokens are divided by the root mean square of their
coordinates first. Stages: of codebooks of two stages, half the bits each, where the vectors of the second are added.
"""
import argparse
from pathlib import Path

import h5py
import numpy as np

from vector_weights import GROUPS, LAYERS, kmeans, load, nearest


class Unit:
    """Transform and codebooks of one tensor, all heads together."""

    def __init__(self, file, layer, kind):
        row = list(file["layer_index"][()]).index(layer)
        turn = file[f"rotation/{kind}"]
        self.forward, self.mean = turn["forward"][row, 0], turn["mean"][row, 0]
        widths, bits = file[f"{kind}/group_width"][()], file[f"{kind}/group_bits"][()]
        sizes = np.where(widths > 0, widths.astype(np.int64) << bits, 0).reshape(-1)
        at = int(sizes[:row * widths[0].size].sum())
        vectors = file[f"{kind}/vectors"]
        self.groups = []  # (first coordinate, width, bits, vectors)
        for first in np.flatnonzero(widths[row, 0]):
            width, b = int(widths[row, 0, first]), int(bits[row, 0, first])
            self.groups.append((first, width, b, vectors[at:at + (width << b)].reshape(-1, width)))
            at += width << b

    def turned(self, x):
        return (x - self.mean) @ self.forward.T

    def decoded(self, x):
        z = self.turned(x)
        for first, width, _, vectors in self.groups:
            z[:, first:first + width] = vectors[nearest(z[:, first:first + width], vectors)]
        return z


def code_length(codes, others, count):
    """Bits a code of `others` takes with the frequencies of `codes`, none of them quite 0."""
    share = (np.bincount(codes, minlength=count) + 0.5) / (len(codes) + 0.5 * count)
    return -np.log2(share)[others].mean()


def rate_at(variances, level):
    return 0.5 * np.log2(np.maximum(variances / level, 1)).mean()


def level_at(variances, bits):
    low, high = 1e-20, variances.max()
    for _ in range(120):
        level = np.sqrt(low * high)
        low, high = (level, high) if rate_at(variances, level) > bits else (low, level)
    return high


def predicted(z, from_, other, other_from, weights):
    """`other` less its prediction, in the principal axes of what is left of z: the fitted samples decide both."""
    basis, other_basis = (np.c_[f, np.ones(len(f), np.float32)] for f in (from_, other_from))
    gram = (basis * weights[:, None]).T @ basis
    ridge = 1e-4 * np.trace(gram) / len(gram) * np.eye(len(gram))
    map_ = np.linalg.solve(gram + ridge, (basis * weights[:, None]).T @ z)
    rest = z - basis @ map_
    _, axes = np.linalg.eigh((rest * weights[:, None]).T @ rest)
    return (other - other_basis @ map_) @ axes[:, ::-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("activations", type=Path)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--layers", default=LAYERS)
    parser.add_argument("--samples", type=int, help="the first ones only (default: all)")
    parser.add_argument("--held-out", type=int, default=2)
    options = parser.parse_args()
    samples = sorted(int(p.name[1:]) for p in options.activations.glob("s[0-9]*"))[:options.samples]
    fitted, held = samples[:-options.held_out], samples[-options.held_out:]
    lengths, saved, scaled, staged = [], {}, [], []
    with h5py.File(options.artifact) as file:
        for tensor in options.layers.split(","):
            layer, kind = int(tensor.split(":")[0]), tensor.split(":")[1]
            unit = Unit(file, layer, kind)
            x, g = load(options.activations, layer, kind, fitted)
            other_x, other_g = load(options.activations, layer, kind, held)
            inverse = np.linalg.inv(unit.forward)  # of gradients: dL/dz = inverse^T dL/dx
            w, other_w = (((a @ inverse) ** 2).mean(1) for a in (g, other_g))
            other_w /= w.mean()
            w /= w.mean()
            z, other = unit.turned(x), unit.turned(other_x)

            fixed = sum(bits for _, _, bits, _ in unit.groups)
            coded = sum(code_length(nearest(z[:, f:f + n], v), nearest(other[:, f:f + n], v), len(v))
                        for f, n, bits, v in unit.groups if bits > 0)
            lengths.append((fixed / z.shape[1], coded / z.shape[1]))

            def variances(a):
                return (other_w[:, None] * a ** 2).mean(0)

            before, twin = Unit(file, layer - 1, kind), {"key": "value", "value": "key"}[kind]
            last = [load(options.activations, layer - 1, kind, s)[0] for s in (fitted, held)]
            sources = {"the layer before": [before.turned(a) for a in last],
                       "the layer before, decoded": [before.decoded(a) for a in last],
                       "the layer's other tensor, decoded":
                           [Unit(file, layer, twin).decoded(load(options.activations, layer, twin, s)[0]) for s in (fitted, held)],
                       "the token before": [np.r_[np.zeros_like(a[:1]), a[:-1]] for a in (z, other)]}
            for name, (from_, other_from) in sources.items():
                rest = variances(predicted(z, from_, other, other_from, w ** 0.75))
                saved.setdefault(name, []).append([bits - rate_at(rest, level_at(variances(other), bits)) for bits in (1, 2, 3)])

            size, other_size = (np.sqrt((a ** 2).mean(1) + 1e-12) for a in (z, other))
            random = np.random.default_rng(0)
            for first, width, count in GROUPS:
                part, rest = (np.ascontiguousarray(a[:, first:first + width]) for a in (z, other))
                error = lambda decoded: (((rest - decoded) ** 2).sum(1) * other_w).mean()
                book = kmeans(part, w ** 0.5, count, random)
                plain = error(book[nearest(rest, book)])
                divided, other_divided = part / size[:, None], rest / other_size[:, None]
                shape = kmeans(divided, w ** 0.5 * size ** 2, count, random)
                scaled.append(error(shape[nearest(other_divided, shape)] * other_size[:, None]) / plain)
                half = int(np.log2(count)) // 2
                coarse = kmeans(part, w ** 0.5, count >> half, random)
                remains, other_remains = part - coarse[nearest(part, coarse)], rest - coarse[nearest(rest, coarse)]
                fine = kmeans(remains, w ** 0.5, 1 << half, random)
                staged.append(error(rest - other_remains + fine[nearest(other_remains, fine)]) / plain)
            print(f"layer {layer} {kind}: {lengths[-1][0]:.3f} bits as stored, {lengths[-1][1]:.3f} coded; saved at 2 bits by prediction from " +
                  ", ".join(f"{name} {bits[-1][1]:.3f}" for name, bits in saved.items()), flush=True)

    def said(values):
        values = np.asarray(values)
        return f"{values.mean():.3f} ±{values.std(ddof=1) / np.sqrt(len(values)):.3f}"

    print(f"entropy coding: {said([coded / fixed for fixed, coded in lengths])} of the bits stored")
    for name, bits in saved.items():
        print(f"prediction from {name}: bits saved at 1, 2, 3 bits " +
              ", ".join(said(column) for column in np.transpose(bits)))
    print(f"a scale a token: {said(scaled)} of the loss; two stages: {said(staged)}, by group " +
          ", ".join(f"{width} coordinates, {count} vectors: {said(scaled[i::len(GROUPS)])} and {said(staged[i::len(GROUPS)])}"
                    for i, (_, width, count) in enumerate(GROUPS)))


if __name__ == "__main__":
    main()
