"""Quantised caches in numpy, put into transformers' Llama: what kvcc eval must give. Written from formats/spec and
METHODS.md, not from the C++ code."""
import math

import numpy as np
import torch

F = np.float32


def half(x):
    return x.astype(np.float16).astype(F)


def nearest(levels, y):
    """levels [C]; a tie goes to the lower level."""
    boundaries = (F(0.5) * (levels[:-1] + levels[1:])).astype(F)
    return levels[np.searchsorted(boundaries, y, side="left")]


def decode(level, scale, zero):
    """One rounding, as a fused multiply-add; exact in double for these sizes but for the last rounding."""
    return (level.astype(np.float64) * scale + zero).astype(F)


def integer_levels(bits):
    return np.linspace(-1, 1, 1 << bits).astype(F)


def tail_of(sparse, channels):
    return channels - math.ceil((1 - sparse / 2) * (channels - 1)) if sparse else 0


def token(x, levels, tail):
    """x [T, H, D], levels [H, C]: one range a token over all heads, `tail` elements of each end kept exactly."""
    tokens, heads, dim = x.shape
    flat = x.reshape(tokens, -1).astype(F)
    out = np.empty_like(flat)
    for t, row in enumerate(flat):
        order = np.lexsort((np.arange(row.size), row))
        outliers = np.concatenate([order[:tail], order[row.size - tail:]])
        inliers = np.delete(row, outliers)
        low, high = inliers.min(), inliers.max()
        scale, zero = half(F(0.5) * (high - low)), half(F(0.5) * (high + low))
        scale = max(scale, F(2.0**-24))
        y = (row - zero) / scale
        for h in range(heads):
            part = slice(h * dim, (h + 1) * dim)
            out[t, part] = decode(nearest(levels[h], y[part]), scale, zero)
        out[t, outliers] = half(row[outliers])
    return out.reshape(x.shape)


def channel(x, levels, scale, zero, lower, upper):
    """x [T, H, D]; levels [H, C]; scale and the rest [H, D]; lower is None without a sparse part."""
    y = (x - zero) / scale
    out = np.stack([decode(nearest(levels[h], y[:, h]), scale[h], zero[h]) for h in range(x.shape[1])], 1)
    return out if lower is None else np.where((x < lower) | (x > upper), half(x), out)


def hooked_log_probabilities(model, ids, handles, plain):
    """[T, V] of one pass, after which the hooks are gone and transformers has its rotation `plain` back."""
    from transformers.models.llama import modeling_llama
    try:
        with torch.no_grad():
            return torch.log_softmax(model(torch.as_tensor(ids, dtype=torch.long)[None]).logits[0], -1).double().numpy()
    finally:
        modeling_llama.apply_rotary_pos_emb = plain
        for handle in handles:
            handle.remove()


def simulate(model, ids, before=None, after=None):
    """Log-probabilities [T, vocab] with keys and values replaced. before(layer, "key" or "value", x [T, H, D]) is called
    before RoPE, after(layer, "key", x) after it; either may be None."""
    from transformers.models.llama import modeling_llama
    handles, layer_now = [], [0]
    dim = model.config.head_dim

    def replace(layer, kind):
        def hook(module, arguments, output):
            layer_now[0] = layer
            x = output[0].numpy().reshape(output.shape[1], -1, dim)
            return torch.from_numpy(before(layer, kind, x).astype(F)).reshape(output.shape)
        return hook

    plain = modeling_llama.apply_rotary_pos_emb

    def rotary(q, k, *arguments, **keywords):
        q, k = plain(q, k, *arguments, **keywords)
        x = k[0].transpose(0, 1).numpy()
        k = torch.from_numpy(after(layer_now[0], "key", x).astype(F)).transpose(0, 1)[None]
        return q, k

    def note(layer):
        def hook(module, arguments, keywords=None):
            layer_now[0] = layer
        return hook

    for l, block in enumerate(model.model.layers):
        handles.append(block.self_attn.q_proj.register_forward_pre_hook(note(l)))
        if before:
            handles.append(block.self_attn.k_proj.register_forward_hook(replace(l, "key")))
            handles.append(block.self_attn.v_proj.register_forward_hook(replace(l, "value")))
    if after:
        modeling_llama.apply_rotary_pos_emb = rotary
    return hooked_log_probabilities(model, ids, handles, plain)


def compare(full, scheme, ids):
    """(nll, kl, top-1 agreement) of the T - 1 predictions."""
    full, scheme = full[:-1], scheme[:-1]
    labels = np.asarray(ids)[1:]
    nll = -scheme[np.arange(len(labels)), labels].mean()
    kl = (np.exp(full) * (full - scheme)).sum(1).mean()
    return nll, kl, (full.argmax(1) == scheme.argmax(1)).mean()
