"""Small good files of every kind that kvcc reads, in parts that a test can spoil one at a time. No torch."""
import json
import struct

BYTES = [chr(code) for code in [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]]  # GPT-2's alphabet, nearly
CONFIG = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
          "num_key_value_heads": 1, "intermediate_size": 4, "vocab_size": 200, "rms_norm_eps": 1e-5,
          "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu"}


def shapes():
    """Of the tensors of CONFIG, by Hugging Face name."""
    found = {"model.embed_tokens.weight": [200, 8], "model.norm.weight": [8]}
    for layer in range(2):
        at = f"model.layers.{layer}."
        found |= {at + "input_layernorm.weight": [8], at + "post_attention_layernorm.weight": [8],
                  at + "self_attn.q_proj.weight": [8, 8], at + "self_attn.k_proj.weight": [4, 8],
                  at + "self_attn.v_proj.weight": [4, 8], at + "self_attn.o_proj.weight": [8, 8],
                  at + "mlp.gate_proj.weight": [4, 8], at + "mlp.up_proj.weight": [4, 8],
                  at + "mlp.down_proj.weight": [8, 4]}
    return found


def elements(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


class Safetensors:
    """`header` is a dict or a text; `data` the bytes after it."""

    def __init__(self, names=None):
        self.header, size = {"__metadata__": {"format": "pt"}}, 0
        for name, shape in shapes().items():
            if names is not None and name not in names:
                continue
            end = size + 4 * elements(shape)
            self.header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [size, end]}
            size = end
        self.data = struct.pack("<f", 0.5) * (size // 4)
        self.length = None

    def bytes(self):
        text = self.header if isinstance(self.header, bytes) else json.dumps(self.header).encode()
        return struct.pack("<Q", len(text) if self.length is None else self.length) + text + self.data


def tokenizer():
    vocab = {token: id for id, token in enumerate([*BYTES, "ab", "abc"])}
    return {"model": {"type": "BPE", "vocab": vocab, "merges": ["a b", "ab c"]},
            "added_tokens": [{"id": 199, "content": "<end>", "special": True}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}}


GGUF_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.layers.": "blk.",
              "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
              "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q", I64: "<q", F64: "<d"}


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


class Gguf:
    """Metadata as [key, type, value] (arrays: value is (type, list)); tensors as [name, extents from the innermost, type, offset]."""

    def __init__(self):
        self.magic, self.version, self.tensor_count, self.value_count = b"GGUF", 3, None, None
        tokens = [*BYTES, "ab", "abc"] + [f"unused{i}" for i in range(200 - len(BYTES) - 2)]
        self.values = [["general.architecture", STRING, "llama"], ["general.alignment", U32, 32],
                       ["llama.block_count", U32, 2], ["llama.context_length", U32, 64],
                       ["llama.embedding_length", U32, 8], ["llama.feed_forward_length", U32, 4],
                       ["llama.attention.head_count", U32, 2], ["llama.attention.head_count_kv", U32, 1],
                       ["llama.attention.layer_norm_rms_epsilon", F32, 1e-5],
                       ["tokenizer.ggml.model", STRING, "gpt2"], ["tokenizer.ggml.pre", STRING, "smollm"],
                       ["tokenizer.ggml.tokens", ARRAY, (STRING, tokens)],
                       ["tokenizer.ggml.merges", ARRAY, (STRING, ["a b", "ab c"])],
                       ["tokenizer.ggml.token_type", ARRAY, (I32, [1] * 200)],
                       ["tokenizer.ggml.eos_token_id", U32, 1]]
        self.tensors, self.size = [], 0
        for name, shape in shapes().items():
            for long, short in GGUF_NAMES.items():
                name = name.replace(long, short)
            self.tensors.append([name, shape[::-1], 0, self.size])
            self.size += (4 * elements(shape) + 31) // 32 * 32
        self.boundaries = []

    def set(self, key, kind, value):
        self.values = [[key, kind, value] if entry[0] == key else entry for entry in self.values]

    def drop(self, key):
        self.values = [entry for entry in self.values if entry[0] != key]

    def tensor(self, name):
        return next(entry for entry in self.tensors if entry[0] == name)

    def value_bytes(self, kind, value):
        if isinstance(value, bytes):
            return value
        if kind == STRING:
            return text(value)
        if kind == ARRAY:
            each, items = value
            return struct.pack("<IQ", each, len(items)) + b"".join(self.value_bytes(each, item) for item in items)
        return struct.pack(FORMATS[kind], value)

    def bytes(self):
        parts = [self.magic, struct.pack("<I", self.version),
                 struct.pack("<Q", len(self.tensors) if self.tensor_count is None else self.tensor_count),
                 struct.pack("<Q", len(self.values) if self.value_count is None else self.value_count)]
        for key, kind, value in self.values:
            parts += [text(key), struct.pack("<I", kind), self.value_bytes(kind, value)]
        for name, extents, kind, offset in self.tensors:
            parts += [text(name), struct.pack("<I", len(extents)), struct.pack(f"<{len(extents)}Q", *extents),
                      struct.pack("<I", kind), struct.pack("<Q", offset)]
        self.boundaries, at = [], 0
        for part in parts:
            self.boundaries.append(at)
            at += len(part)
        head = b"".join(parts)
        return head + b"\0" * (-len(head) % 32) + struct.pack("<f", 0.5) * (self.size // 4)
