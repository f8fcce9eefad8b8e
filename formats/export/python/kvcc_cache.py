"""A transformers cache that holds keys and values as a kvcc artifact says: numpy, torch and transformers, nothing of kvcc.

    kvcc export NAME.kvcb --to safetensors -o NAME.safetensors
    cache = KvccCache("NAME.safetensors")
    model(input_ids, past_key_values=cache)

The values are simulated: they are quantised and dequantised as formats/spec/online-values.md and codebook.md say, and held
as f32, not packed. Positions count from 0 without gaps: no padding on the left. transformers 5 or later."""
import json
import math
import struct

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

DTYPES = {"U8": "<u1", "U16": "<u2", "U32": "<u4", "I64": "<i8", "F32": "<f4", "F64": "<f8"}


def read_safetensors(path):
    """(metadata, {name: tensor}) of an export."""
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else len(data)
    if length > len(data) - 8:
        raise ValueError(f"{path}: truncated: no whole header in {len(data)} bytes")
    header = json.loads(data[8:8 + length])
    metadata, tensors = header.pop("__metadata__", {}), {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if entry["dtype"] not in DTYPES:
            continue  # of a later version
        dtype = np.dtype(DTYPES[entry["dtype"]])
        if not 0 <= begin <= end <= len(data) - 8 - length or end - begin != math.prod(entry["shape"]) * dtype.itemsize:
            raise ValueError(f"{path}: {name}: bytes {begin} to {end} for {entry['dtype']} {entry['shape']}")
        flat = np.frombuffer(data, dtype, (end - begin) // dtype.itemsize, 8 + length + begin)
        flat = flat.astype(np.int64) if dtype.kind in "ui" else flat.copy()
        tensors[name] = torch.from_numpy(flat.reshape(entry["shape"]))
    return metadata, tensors


class Rope:
    """Tables of cosines and sines from the metadata. `max_positions`: the model's max_position_embeddings, which dynamic
    scaling needs, and yarn and longrope where their parameters leave something out."""

    def __init__(self, metadata, max_positions=None):
        self.theta, self.dim = float(metadata["model.rope_theta"]), int(metadata["model.rope_rotary_dim"])
        self.kind, self.scaling = metadata["model.rope_kind"], metadata["model.rope_scaling"]
        if self.kind not in ("half-split", "interleaved"):
            raise ValueError(f"RoPE kind {self.kind}; wanted half-split or interleaved")
        if self.scaling not in ("none", "linear", "llama3", "yarn", "longrope", "dynamic"):
            raise ValueError(f"RoPE scaling {self.scaling}; wanted none, linear, llama3, yarn, longrope or dynamic")
        self.max_positions = max_positions
        self.parameters = {k: v for k, v in json.loads(metadata.get("model.rope_scaling_json") or "{}").items() if v is not None}

    def parameter(self, name, default=None):
        value = self.parameters.get(name, default)
        if value is None:
            raise ValueError(f"RoPE scaling {self.scaling}: no {name} in the metadata; KvccCache(…, max_positions=N) may help")
        return value

    def frequencies(self, length):
        """(inverse frequencies f32 [dim / 2], factor of cosine and sine) for a sequence of `length` tokens."""
        theta, dim = self.theta, self.dim
        if self.scaling == "dynamic":
            most, factor = self.parameter("max_position_embeddings", self.max_positions), self.parameter("factor")
            theta *= (factor * max(length, most) / most - (factor - 1)) ** (dim / (dim - 2))
        powers = theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)
        plain = 1.0 / powers
        if self.scaling == "linear":
            return plain / self.parameter("factor"), 1.0
        if self.scaling == "llama3":
            return self.llama3(plain), 1.0
        if self.scaling in ("yarn", "longrope"):
            context = self.parameter("original_max_position_embeddings", self.max_positions)
            stretch = self.max_positions / context if self.max_positions else None
            return getattr(self, self.scaling)(powers, context, stretch, length)
        return plain, 1.0

    def llama3(self, plain):
        if "freq_factors" in self.parameters and "low_freq_factor" not in self.parameters:  # a GGUF file's own divisors
            return plain / torch.tensor(self.parameters["freq_factors"], dtype=torch.float32)
        factor, context = self.parameter("factor"), self.parameter("original_max_position_embeddings")
        low, high = self.parameter("low_freq_factor"), self.parameter("high_freq_factor")
        wavelength = 2 * math.pi / plain
        scaled = torch.where(wavelength > context / low, plain / factor, plain)
        smooth = (context / wavelength - low) / (high - low)
        between = (1 - smooth) * scaled / factor + smooth * scaled
        return torch.where((wavelength < context / high) | (wavelength > context / low), scaled, between)

    def yarn(self, powers, context, stretch, _):
        factor, dim = self.parameter("factor", stretch), self.dim

        def magnitude(m):
            return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0

        def pair(turns):
            return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        m, m_all = self.parameters.get("mscale"), self.parameters.get("mscale_all_dim")
        attention = self.parameters.get("attention_factor", magnitude(m) / magnitude(m_all) if m and m_all else magnitude(1))
        low, high = pair(self.parameters.get("beta_fast") or 32), pair(self.parameters.get("beta_slow") or 1)
        if self.parameters.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        high += 0.001 * (low == high)
        kept = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
        return 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept, attention

    def longrope(self, powers, context, stretch, length):
        attention = self.parameters.get("attention_factor")
        if attention is None:
            factor = self.parameter("factor", stretch)
            attention = math.sqrt(1 + math.log(factor) / math.log(context)) if factor > 1 else 1.0
        divisors = self.parameter("long_factor" if length > context else "short_factor")
        return 1.0 / (torch.tensor(divisors, dtype=torch.float32) * powers), attention

    def tables(self, first, last, length, like):
        """Cosines and sines [last - first, dim / 2] as f64, rounded as the model rounds its own to the dtype of `like`."""
        frequencies, factor = self.frequencies(length)
        angles = torch.arange(first, last, dtype=torch.float32)[:, None] * frequencies
        return [(table * factor).to(like.dtype).double().to(like.device) for table in (angles.cos(), angles.sin())]

    def pairs(self, x):
        """Views of the two partners of every pair, [..., dim / 2] each."""
        return (x[..., :self.dim // 2], x[..., self.dim // 2:self.dim]) if self.kind == "half-split" else (
            x[..., 0:self.dim:2], x[..., 1:self.dim:2])

    def turn(self, x, first, length, like, back=False):
        """x [B, H, T, D] of positions `first` on, rotated, or rotated back; f32, computed in f64."""
        out = x.double()
        (a, b), (cos, sin) = self.pairs(out), self.tables(first, first + x.shape[-2], length, like)
        turned = ((a * cos + b * sin) / (cos**2 + sin**2), (b * cos - a * sin) / (cos**2 + sin**2)) if back else (
            a * cos - b * sin, b * cos + a * sin)
        for partner, value in zip(self.pairs(out), turned):
            partner.copy_(value)
        return out.float()


def record(x):
    """What is stored exactly, is stored as fp16."""
    half = x.half()
    if not torch.isfinite(half).all():
        raise ValueError("a key or value that fp16 can't hold (NaN, infinite, or above 65504)")
    return half.float()


class Quantiser:
    """One tensor (key or value) of one layer: `scheme` of the artifact, `row` of its layer, `get` its datasets."""

    def __init__(self, scheme, sparse, row, get):
        self.full, self.channel, self.sparse = scheme["grid"] == "fp", scheme.get("axis") == "channel", sparse
        if self.full:
            return
        bits, levels = get("bits")[row], get("codebook")[row]
        last = (1 << bits)[:, None] - 1  # boundaries beyond a head's own levels are never below a value
        self.levels, boundaries = levels, 0.5 * (levels[:, :-1] + levels[:, 1:])
        self.boundaries = torch.where(torch.arange(boundaries.shape[1]) < last, boundaries, math.inf).contiguous()
        if self.channel:
            self.scale, self.zero = get("scale")[row][:, None], get("zero")[row][:, None]
            self.lower = get("threshold_lower")[row][:, None] if sparse > 0 else None
            self.upper = get("threshold_upper")[row][:, None] if sparse > 0 else None

    def to(self, device):
        for name, value in vars(self).items():
            if torch.is_tensor(value):
                setattr(self, name, value.to(device))

    def __call__(self, x):
        """What the cache gives back for x [B, H, T, D], f32."""
        if self.full or x.shape[-2] == 0:
            return record(x)
        if not torch.isfinite(x).all():
            raise ValueError("a key or value that is NaN or infinite")
        return self.per_channel(x) if self.channel else self.per_token(x)

    def decode(self, y, scale, zero):
        heads = y.shape[1]
        flat = y.transpose(0, 1).reshape(heads, -1).contiguous()
        codes = torch.searchsorted(self.boundaries, flat)  # number of boundaries below: a tie takes the lower level
        level = self.levels.gather(1, codes).reshape(heads, y.shape[0], *y.shape[2:]).transpose(0, 1)
        return (level.double() * scale.double() + zero.double()).float()  # one rounding, as fma

    def per_channel(self, x):
        if self.lower is None:
            return self.decode((x - self.zero) / self.scale, self.scale, self.zero)
        inside = torch.minimum(torch.maximum(x, self.lower), self.upper)
        out, outlier = self.decode((inside - self.zero) / self.scale, self.scale, self.zero), inside != x
        out[outlier] = record(x[outlier])
        return out

    def per_token(self, x):
        batch, heads, tokens, dim = x.shape
        flat, n = x.transpose(1, 2).reshape(batch, tokens, heads * dim), heads * dim
        tail = 1 + math.floor(self.sparse / 2 * (n - 1) + 1e-9) if self.sparse > 0 and n >= 3 else 0
        ordered, column = flat.sort(dim=-1, stable=True)  # ties by column
        low, high = ordered[..., tail:tail + 1], ordered[..., n - tail - 1:n - tail]
        scale, zero = record(0.5 * (high - low)), record(0.5 * (high + low)) + 0.0
        scale = torch.where(scale == 0, 2.0**-24, scale)
        y = (torch.minimum(torch.maximum(flat, low), high) - zero) / scale
        y = y.reshape(batch, tokens, heads, dim).transpose(1, 2)
        out = self.decode(y, scale[:, None], zero[:, None]).transpose(1, 2).reshape(flat.shape)
        if tail:
            outliers = torch.cat([column[..., :tail], column[..., n - tail:]], -1)
            out.scatter_(-1, outliers, record(flat.gather(-1, outliers)))
        return out.reshape(batch, tokens, heads, dim).transpose(1, 2)


class KvccLayer(DynamicLayer):
    """keys and values hold what the cache holds, f32, keys before RoPE where the scheme takes them there. The first `sink`
    and the last `residual` tokens are fp16; others are quantised when they come, or when they leave the window."""

    def __init__(self, key, value, rope, sink, residual):
        super().__init__()
        self.quantisers, self.rope, self.sink, self.residual = (key, value), rope, sink, residual
        self.packed = 0  # tokens before this one are in their final form

    def lazy_initialization(self, key_states, value_states):
        super().lazy_initialization(key_states.float(), value_states.float())
        self.packed = 0
        for quantiser in self.quantisers:
            quantiser.to(self.device)

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        past, length = self.get_seq_length(), self.get_seq_length() + key_states.shape[-2]
        key, value = key_states.float(), value_states.float()
        if self.rope:
            key = self.rope.turn(key, past, length, key_states, back=True)
        first, end = max(min(self.packed, past), self.sink), max(length - self.residual, self.sink)
        held = []
        for quantiser, old, new in zip(self.quantisers, (self.keys, self.values), (key, value)):
            x = torch.cat([old, new], -2) if past else new
            middle = quantiser(x[..., first:end, :])
            held.append(torch.cat([record(x[..., :first, :]) if first > past else x[..., :first, :], middle,
                                   record(x[..., first + middle.shape[-2]:, :])], -2))
        (self.keys, self.values), self.packed = held, min(max(first, end), length)
        key = self.rope.turn(self.keys, 0, length, key_states) if self.rope else self.keys
        return key.to(key_states.dtype), self.values.to(value_states.dtype)


class KvccCache(Cache):
    """The cache that the export at `path` describes; for one model and any number of calls."""

    def __init__(self, path, max_positions=None):
        self.metadata, tensors = read_safetensors(path)
        if self.metadata.get("format") != "kvcc-codebook" or self.metadata.get("format_version", "").split(".")[0] != "1":
            raise ValueError(f"{path}: format {self.metadata.get('format')} {self.metadata.get('format_version')}; "
                             "wanted kvcc-codebook 1.x (kvcc export --to safetensors)")
        scheme, index = json.loads(self.metadata["scheme_json"]), tensors["layer_index"].tolist()
        rope = Rope(self.metadata, max_positions) if scheme["k"].get("site") == "prerope" else None
        layers = [DynamicLayer() for _ in range(max(index) + 1)]
        for row, layer in enumerate(index):
            parts = [Quantiser(scheme[kind[0]], scheme["sparse"], row, lambda name, kind=kind: tensors[f"{kind}/{name}"])
                     for kind in ("key", "value")]
            layers[layer] = KvccLayer(*parts, rope, scheme["sink"], scheme["residual"])
        super().__init__(layers=layers)
