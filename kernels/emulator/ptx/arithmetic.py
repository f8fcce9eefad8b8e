"""PTX instructions that compute: integers, floats, pairs of fp16, bits."""
from parse import SIZES
from writer import C_TYPES, handles

WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


@handles("add", "sub", "mul")
def add_sub_mul(w, d, a, b):
    base = w.at.opcode.split(".")[0]
    sign = {"add": "+", "sub": "-", "mul": "*"}[base]
    if base == "mul" and w.modifiers[0] in ("lo", "hi", "wide"):
        return mul_integer(w, d, a, b)
    rounded = w.take("rn")
    kind = w.type("u16", "s16", "u32", "s32", "u64", "s64", "f32", "f16x2")
    if kind == "f32":
        return w.assign(d, f"quiet({w.value(a, kind)} {sign} {w.value(b, kind)})")
    if kind == "f16x2":
        second = w.value(b, kind) + (" ^ 0x80008000u" if base == "sub" else "")
        return w.assign(d, f"emulator::{'multiply' if base == 'mul' else 'add'}_half2({w.value(a, kind)}, {second})")
    if rounded or base == "mul":
        w.fail("modifiers")
    kind = kind.replace("s", "u")
    return w.assign(d, f"static_cast<{C_TYPES[kind]}>({w.value(a, kind)} {sign} {w.value(b, kind)})")


def product(w, part, kind, a, b):
    """C++ of the low or high half of a product, or all of it; without signed overflow."""
    if part == "lo":
        kind = kind.replace("s", "u")
        return f"static_cast<{C_TYPES[kind]}>(uint64_t{{1}} * {w.value(a, kind)} * {w.value(b, kind)})"
    if kind.endswith("64"):
        if part == "wide":
            w.fail("type")
        wide = "__int128" if kind == "s64" else "unsigned __int128"
        return f"static_cast<{C_TYPES[kind]}>(static_cast<{wide}>({w.value(a, kind)}) * {w.value(b, kind)} >> 64)"
    whole = f"static_cast<{C_TYPES[WIDER[kind]]}>(static_cast<int64_t>({w.value(a, kind)}) * {w.value(b, kind)})"
    if kind == "u32":
        whole = f"(uint64_t{{1}} * {w.value(a, kind)} * {w.value(b, kind)})"
    return whole if part == "wide" else f"static_cast<{C_TYPES[kind]}>({whole} >> {8 * SIZES[kind]})"


def mul_integer(w, d, a, b):
    part = w.need("lo", "hi", "wide")
    return w.assign(d, product(w, part, w.type("u16", "s16", "u32", "s32", "u64", "s64"), a, b))


@handles("mad")
def mad(w, d, a, b, c):
    part = w.need("lo", "hi", "wide")
    kind = w.type("u16", "s16", "u32", "s32", "u64", "s64")
    result = (WIDER[kind] if part == "wide" else kind).replace("s", "u")
    return w.assign(d, f"static_cast<{C_TYPES[result]}>(as<{C_TYPES[result]}>({product(w, part, kind, a, b)}) + {w.value(c, result)})")


@handles("fma")
def fma(w, d, a, b, c):
    w.need("rn")
    kind = w.type("f32", "f16x2")
    arguments = f"({w.value(a, kind)}, {w.value(b, kind)}, {w.value(c, kind)})"
    return w.assign(d, f"quiet(std::fma{arguments})" if kind == "f32" else f"emulator::fma_half2{arguments}")


@handles("div", "rem")
def div(w, d, a, b):
    base = w.at.opcode.split(".")[0]
    if base == "div" and w.take("rn"):
        w.type("f32")
        return w.assign(d, f"quiet({w.value(a, 'f32')} / {w.value(b, 'f32')})")
    kind = w.type("u16", "s16", "u32", "s32", "u64", "s64")
    return w.assign(d, f"{'divide' if base == 'div' else 'remainder'}<{C_TYPES[kind]}>({w.value(a, kind)}, {w.value(b, kind)})")


@handles("rcp", "sqrt")
def rcp_sqrt(w, d, a):
    base = w.at.opcode.split(".")[0]
    w.need("rn")
    w.type("f32")
    return w.assign(d, f"quiet({'1.0f / ' if base == 'rcp' else 'std::sqrt'}({w.value(a, 'f32')}))")


@handles("ex2")
def ex2(w, d, a):
    w.need("approx")
    w.need("ftz")
    w.type("f32")
    return w.assign(d, f"emulator::exp2_approximate({w.value(a, 'f32')})")


@handles("neg", "abs")
def neg_abs(w, d, a):
    base = w.at.opcode.split(".")[0]
    kind = w.type("s16", "s32", "s64", "f32", "f16x2")
    if kind in ("f32", "f16x2"):
        mask = 0x80000000 if kind == "f32" else 0x80008000
        bits = f"{w.value(a, 'b32')} ^ {mask:#x}u" if base == "neg" else f"{w.value(a, 'b32')} & {mask ^ 0xffffffff:#x}u"
        return w.assign(d, f"as<{C_TYPES[kind]}>({bits})")
    unsigned = C_TYPES[kind.replace("s", "u")]
    value = w.value(a, kind)
    negated = f"{unsigned}{{0}} - {unsigned}({value})"
    return w.assign(d, f"static_cast<{unsigned}>({negated if base == 'neg' else f'{value} >= 0 ? {unsigned}({value}) : {negated}'})")


@handles("min", "max")
def min_max(w, d, a, b):
    base = w.at.opcode.split(".")[0]
    kind = w.type("u16", "s16", "u32", "s32", "u64", "s64", "f32")
    name = {"min": "minimum", "max": "maximum"}[base] if kind == "f32" else f"std::{base}<{C_TYPES[kind]}>"
    return w.assign(d, f"{name}({w.value(a, kind)}, {w.value(b, kind)})")


# ---- bits
@handles("and", "or", "xor")
def logic(w, d, a, b):
    kind = w.type("pred", "b16", "b32", "b64")
    sign = {"and": "&", "or": "|", "xor": "^"}[w.at.opcode.split(".")[0]]
    return w.assign(d, f"static_cast<{C_TYPES[kind]}>({w.value(a, kind)} {sign} {w.value(b, kind)})")


@handles("not")
def not_(w, d, a):
    kind = w.type("pred", "b16", "b32", "b64")
    return w.assign(d, f"!{w.value(a, kind)}" if kind == "pred" else f"static_cast<{C_TYPES[kind]}>(~{w.value(a, kind)})")


@handles("shl", "shr")
def shift(w, d, a, n):
    base = w.at.opcode.split(".")[0]
    kind = w.type("b16", "b32", "b64", *(() if base == "shl" else ("u16", "s16", "u32", "s32", "u64", "s64")))
    return w.assign(d, f"shift_{'left' if base == 'shl' else 'right'}<{C_TYPES[kind]}>({w.value(a, kind)}, {w.value(n, 'u32')})")


@handles("shf")
def shf(w, d, a, b, n):
    side = {"l": "left", "r": "right"}[w.need("l", "r")]
    mode = w.need("wrap", "clamp")
    w.type("b32")
    amount = w.value(n, "u32")
    amount = f"{amount} & 31u" if mode == "wrap" else f"std::min({amount}, 32u)"
    return w.assign(d, f"funnel_{side}({w.value(a, 'b32')}, {w.value(b, 'b32')}, {amount})")


@handles("lop3")
def lop3(w, d, a, b, c, table):
    w.type("b32")
    return w.assign(d, f"lop3({w.value(a, 'b32')}, {w.value(b, 'b32')}, {w.value(c, 'b32')}, {w.value(table, 'b32')})")


@handles("prmt")
def prmt(w, d, a, b, c):
    w.type("b32")
    return w.assign(d, f"permute_bytes({w.value(a, 'b32')}, {w.value(b, 'b32')}, {w.value(c, 'b32')})")


@handles("bfe")
def bfe(w, d, a, b, c):
    kind = w.type("u32", "s32", "u64", "s64")
    return w.assign(d, f"extract_bits<{C_TYPES[kind]}>({w.value(a, kind)}, {w.value(b, 'u32')}, {w.value(c, 'u32')})")


@handles("bfi")
def bfi(w, d, a, b, c, n):
    w.type("b32")
    return w.assign(d, f"insert_bits({w.value(a, 'b32')}, {w.value(b, 'b32')}, {w.value(c, 'u32')}, {w.value(n, 'u32')})")


@handles("popc", "clz", "brev", "bfind")
def bit_counts(w, d, a):
    base = w.at.opcode.split(".")[0]
    shift_amount = base == "bfind" and w.take("shiftamt")
    kind = w.type("u32" if base == "bfind" else "b32")
    value = w.value(a, kind)
    if shift_amount:
        return w.assign(d, f"{value} == 0 ? ~0u : 31u - find_high_bit({value})")
    name = {"popc": "static_cast<uint32_t>(std::popcount", "clz": "static_cast<uint32_t>(std::countl_zero", "brev": "(reverse_bits",
            "bfind": "(find_high_bit"}[base]
    return w.assign(d, f"{name}({value}))")
