"""Modes of evaluation as a program would decode them: block after block or token after token, with a cache of transformers
that is read back as a quantised one would be. Slow, and written from METHODS.md 11.2 and 4, not from the C++ code."""
import inspect

import numpy as np
import torch

import oracle


def hold(x, coder, sink, residual, unit=1):
    """What a cache of x [n, H, D] gives back: sinks and the last tokens in fp16. Where tokens are coded in blocks, whole
    units of them are, counted from the sinks on, and the rest is the tail (KIVI's rule, METHODS.md 4)."""
    out = oracle.half(x)
    first = min(sink, len(x))
    end = first + (len(x) - first) // unit * unit if unit > 1 else max(len(x) - residual, first)
    if end > sink:
        out[sink:end] = coder(x[sink:end])
    return out


def decode(model, ids, coder, mode, block=128, prompt=0, sink=0, residual=0, prerope=False, key_unit=1):
    """Log-probabilities [T, vocab]. coder(layer, "key" or "value", x [n, H, D]) gives quantised rows; keys before RoPE
    with `prerope`; whole units of key_unit tokens. Also the attention inputs' outputs [L][T, hidden of o_proj's input]."""
    from transformers import DynamicCache
    from transformers.models.llama import modeling_llama

    tokens = len(ids)
    before = {}  # keys before RoPE by layer
    outputs = {}

    class HeldCache(DynamicCache):
        def update(self, key, value, layer, *arguments, **keywords):
            first = self.get_seq_length(layer)
            keys, values = super().update(key, value, layer, *arguments, **keywords)
            if mode == "prefill-exact" and first == 0:
                return keys, values
            count = keys.shape[2] if mode == "prefill-exact" else first
            held = {}
            for kind, x in (("key", keys), ("value", values)):
                rows = x[0, :, :count].transpose(0, 1).numpy()
                if kind == "key" and prerope:
                    rows = before[layer][:count]
                unit = key_unit if kind == "key" else 1
                kept = hold(rows, lambda r: coder(layer, kind, r), sink, residual, unit) if count else rows
                kept = torch.from_numpy(np.ascontiguousarray(kept)).transpose(0, 1)[None]
                if kind == "key" and prerope and count:
                    positions = torch.arange(count)[None]
                    cos, sin = model.model.rotary_emb(kept, positions)
                    kept = modeling_llama.apply_rotary_pos_emb(kept, kept, cos, sin)[1]
                held[kind] = torch.cat([kept, x[:, :, count:]], 2) if count else x
            return held["key"], held["value"]

    handles = []
    for l, layer in enumerate(model.model.layers):
        def note(module, arguments, output, l=l):
            x = output[0].numpy().reshape(output.shape[1], -1, model.config.head_dim)
            before[l] = np.concatenate([before[l], x]) if l in before else x
        handles.append(layer.self_attn.k_proj.register_forward_hook(note))

        def mixed(module, arguments, l=l):
            outputs.setdefault(l, []).append(arguments[0][0].numpy().copy())
        handles.append(layer.self_attn.o_proj.register_forward_pre_hook(mixed))
    if mode == "pseudo-decode":
        edges = list(range(0, tokens, block)) + [tokens]
    else:
        edges = [0] + list(range(prompt, tokens + 1))
    cache = HeldCache(config=model.config)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    logits = []
    try:
        with torch.no_grad():
            for begin, end in zip(edges, edges[1:]):
                now = torch.as_tensor(ids[begin:end], dtype=torch.long)[None]
                logits.append(model(now, use_cache=True, **{name: cache}).logits[0])
    finally:
        for handle in handles:
            handle.remove()
    return torch.log_softmax(torch.cat(logits), -1).double().numpy(), [np.concatenate(outputs[l]) for l in sorted(outputs)]
