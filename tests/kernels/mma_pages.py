"""Layouts linear-1 and mma-1 once more, from the words of formats/spec/cache.md and cache-mma.md alone: whole bit
strings and lists, no words or planes made by the library's functions."""
import numpy as np

TOKENS, LANES = 64, 32
CLASSES = 8


class Shape:
    """One layer's tensor. bits: a width a head; sparse: none, csr or tail."""

    def __init__(self, tensor, dim, bits, token_axis=False, sparse="none", tail=0):
        self.tensor, self.dim, self.bits = tensor, dim, list(bits)
        self.token_axis, self.sparse, self.tail = token_axis, sparse, tail
        self.heads = len(self.bits)


def padded(page):
    return page + bytes(-len(page) % 128)


def mma_page_bytes(shape, capacity):
    size = sum(8 * shape.dim * b for b in shape.bits) + 256 * shape.token_axis
    if shape.sparse != "none":
        size += shape.heads * (2 * CLASSES + 4 * capacity)
    return (size + 127) // 128 * 128


def read_linear(page, shape):
    """codes [64, H, D], ranges [64, 2] u16, records: a dict (slot, column) -> fp16 bits, in the order of the list."""
    codes = np.zeros((TOKENS, shape.heads, shape.dim), np.int64)
    at = 0
    for h, b in enumerate(shape.bits):
        row = (shape.dim * b + 31) // 32 * 4
        for slot in range(TOKENS):
            string = np.unpackbits(np.frombuffer(page[at:at + row], np.uint8), bitorder="little")
            string = string[:shape.dim * b].reshape(shape.dim, b)
            codes[slot, h] = string @ (1 << np.arange(b))
            at += row
    ranges = None
    if shape.token_axis:
        ranges = np.frombuffer(page[at:at + 256], "<u2").reshape(TOKENS, 2)
        at += 256
    records = {}
    if shape.sparse == "csr":
        ends = np.frombuffer(page[at:at + 256], "<u4")
        at += 256
    elif shape.sparse == "tail":
        ends = 2 * shape.tail * np.arange(1, TOKENS + 1)
    if shape.sparse != "none":
        entries = np.frombuffer(page[at:], "<u2").reshape(-1, 2)
        for slot in range(TOKENS):
            first = 0 if slot == 0 else ends[slot - 1]
            for column, value in entries[first:max(ends[slot], first)]:
                records[slot, int(column)] = int(value)
    return codes, ranges, records


# Where the b words of a group keep bit k of pair e: (word, bit).
def field(e, b):
    if b == 2:
        return [(e // 8, (4 * (e % 8) + 3 + k) % 32) for k in range(4)]
    if b == 3 and e == 15:
        return [(k // 2, (31, 0)[k % 2]) for k in range(6)]
    if b == 3:
        return [(e // 5, 1 + 6 * (e % 5) + k) for k in range(6)]
    if b == 4:
        return [(e // 4, (8 * (e % 4) + 7 + k) % 32) for k in range(8)]
    return [(e // 2, 16 * (e % 2) + k) for k in range(16)]


def planes(words):
    """Widths of a tile's planes, in words a lane."""
    return [4] * (words // 4) + {0: [], 1: [1], 2: [2], 3: [2, 1]}[words % 4]


def owner(tensor, dim, token, channel):
    """(lane, pair, second)"""
    pair = token // 8 * (dim // 8) + channel // 8
    row, column = (token % 8, channel % 8) if tensor == "key" else (channel % 8, token % 8)
    return 4 * row + column // 2, pair, column % 2


def group_words(pairs, b):
    """The b words of sixteen pairs."""
    words = [0] * b
    for e, pair in enumerate(pairs):
        for k, (word, bit) in enumerate(field(e, b)):
            words[word] |= (int(pair) >> k & 1) << bit
    return words


def tile(codes, tensor, b):
    """Bytes of a tile, from codes [64, D]."""
    dim = codes.shape[1]
    pairs = np.zeros((LANES, dim), np.int64)
    for token in range(TOKENS):
        for channel in range(dim):
            lane, pair, second = owner(tensor, dim, token, channel)
            pairs[lane, pair] |= int(codes[token, channel]) << b * second
    share = np.array([sum((group_words(group, b) for group in pairs[lane].reshape(-1, 16)), [])
                      for lane in range(LANES)], np.uint32)
    out, first = b"", 0
    for width in planes(share.shape[1]):
        out += share[:, first:first + width].astype("<u4").tobytes()
        first += width
    return out


def mma_page(codes, ranges, records, shape, capacity):
    """A page from codes [64, H, D] (0 where a slot is not filled), ranges and records as read_linear gives them."""
    page = b"".join(tile(codes[:, h], shape.tensor, b) for h, b in enumerate(shape.bits))
    if shape.token_axis:
        page += ranges.astype("<u2").tobytes()
    if shape.sparse != "none":
        ends, lists = b"", b""
        for h, b in enumerate(shape.bits):
            mine = [(slot, column - h * shape.dim, value) for (slot, column), value in records.items()
                    if column // shape.dim == h]
            entries, count = [], []
            for k in range(CLASSES):
                for token, channel, value in sorted(mine):
                    if token // 8 != k:
                        continue
                    code = int(codes[token, h, channel]) if b <= 4 else 0
                    entries.append((channel + 256 * (token % 8) + 2048 * code, value))
                count.append(len(entries))
            assert len(entries) <= capacity
            ends += np.array(count, "<u2").tobytes()
            lists += np.array(entries, "<u2").tobytes() + bytes(4 * (capacity - len(entries)))
        page += ends + lists
    return padded(page)
