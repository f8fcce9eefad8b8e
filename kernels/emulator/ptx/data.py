"""PTX instructions that move, compare and convert values, and that read and write memory."""
from parse import SIZES
from writer import C_TYPES, Access, handles

INTEGERS = {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"}
BITS = {"b16", "b32", "b64"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}


# ---- moves
@handles("mov")
def mov(w, d, a):
    kind = w.type("pred", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64")
    if d.startswith("{"):
        parts = w.vector(d)
        bits = 8 * SIZES[kind] // len(parts)
        return f"{{ const auto whole = {w.value(a, kind)}; " + " ".join(
            w.assign(p, f"static_cast<uint{bits}_t>(whole >> {bits * i})") for i, p in enumerate(parts) if p != "_") + " }"
    if a.startswith("{"):
        parts = w.vector(a)
        part = f"b{8 * SIZES[kind] // len(parts)}"
        whole = C_TYPES[kind]
        return w.assign(d, f"static_cast<{whole}>(" + " | ".join(
            f"static_cast<{whole}>({w.value(p, part)}) << {8 * SIZES[part] * i}" for i, p in enumerate(parts)) + ")")
    return w.assign(d, w.value(a, kind))


@handles("selp")
def selp(w, d, a, b, p):
    kind = w.type("b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64")
    return w.assign(d, f"({w.value(p, 'pred')} ? {w.value(a, kind)} : {w.value(b, kind)})")


@handles("cvta")
def cvta(w, d, a):
    to = w.take("to")
    space = w.need("global", "shared", "local", "const", "param")
    w.type("u64")
    value = w.value(a, "u64")
    if space in ("shared", "local"):
        base = f"reinterpret_cast<uint64_t>({space})"
        return w.assign(d, f"{value} - {base}" if to else f"{base} + {value}")
    if space == "param" and a == w.entry.parameter:
        return w.assign(d, "reinterpret_cast<uint64_t>(param)")
    return w.assign(d, value)


# ---- comparison and conversion
def comparison(w, how, kind, a, b):
    x, y = w.value(a, kind), w.value(b, kind)
    if kind == "f32":
        if how in ("num", "nan"):
            return f"{'!' if how == 'num' else ''}({x} != {x} || {y} != {y})"
        if how == "ne":  # ordered: false with NaN
            return f"({x} < {y} || {x} > {y})"
        if how.endswith("u") and how[:-1] in COMPARISONS:
            opposite = {"eq": f"{x} < {y} || {x} > {y}", "ne": f"{x} == {y}", "lt": f"{x} >= {y}", "le": f"{x} > {y}", "gt": f"{x} <= {y}",
                        "ge": f"{x} < {y}"}[how[:-1]]
            return f"!({opposite})"
    if how not in COMPARISONS or (how in ("lo", "ls", "hi", "hs") and not kind.startswith("u")):
        w.fail(f"comparison .{how}")
    return f"({x} {COMPARISONS[how]} {y})"


@handles("setp")
def setp(w, d, a, b, c=None):
    how = w.modifiers.pop(0)
    join = w.take("and", "or", "xor")
    kind = w.type("b16", "b32", "b64", "u16", "s16", "u32", "s32", "u64", "s64", "f32")
    if kind in BITS and how not in ("eq", "ne"):
        w.fail("comparison of bits")
    if (join is None) != (c is None):
        w.fail("operands")
    test = comparison(w, how, kind, a, b)
    if join is None:
        joined = "{}"
    else:
        third = w.value(c.lstrip("!"), "pred")
        joined = f"({{}} {dict([('and', '&'), ('or', '|'), ('xor', '^')])[join]} {'!' if c.startswith('!') else ''}{third})"
    first, *second = d.split("|")
    code = f"const bool holds = {test}; " + w.assign(first, f"static_cast<bool>{'(' + joined.format('holds') + ')'}")
    if second:
        code += " " + w.assign(second[0], f"static_cast<bool>({joined.format('!holds')})")
    return f"{{ {code} }}"


@handles("cvt")
def cvt(w, d, *sources):
    mode = w.take("rn", "rz", "rni", "rzi", "rmi", "rpi")
    to, kind = w.type(), None
    kind = w.type()
    if len(sources) == 2:
        if (mode, kind) != ("rn", "f32") or to not in ("f16x2", "bf16x2"):
            w.fail("conversion")
        one = "float_to_half" if to == "f16x2" else "float_to_bfloat16"
        high, low = (w.value(s, "f32") for s in sources)
        return w.assign(d, f"uint32_t{{{one}({high})}} << 16 | {one}({low})")
    a = sources[0]
    if to in INTEGERS and kind in INTEGERS and mode is None:
        return w.assign(d, f"static_cast<{C_TYPES[to]}>({w.value(a, kind)})")
    if to == "f32" and kind in INTEGERS and mode == "rn":
        return w.assign(d, f"static_cast<float>({w.value(a, kind)})")
    if to == "f32" and kind == "f16" and mode is None:
        return w.assign(d, f"half_to_float({w.value(a, 'b16')})")
    if to == "f32" and kind == "bf16" and mode is None:
        return w.assign(d, f"quiet(bfloat16_to_float({w.value(a, 'b16')}))")
    if to in ("f16", "bf16") and kind == "f32" and mode == "rn":
        return w.assign(d, f"{'float_to_half' if to == 'f16' else 'float_to_bfloat16'}({w.value(a, 'f32')})")
    whole = {"rni": "std::nearbyint", "rzi": "std::trunc", "rmi": "std::floor", "rpi": "std::ceil"}
    if kind == "f32" and mode in whole and to in INTEGERS | {"f32"}:
        rounded = f"{whole[mode]}({w.value(a, 'f32')})"
        return w.assign(d, f"quiet({rounded})" if to == "f32" else f"to_integer<{C_TYPES[to]}>({rounded})")
    w.fail("conversion")


# ---- memory
def space_of(w, *spaces):
    space = w.take(*spaces) or "generic"
    return "global" if space == "const" else space


@handles("ld")
def ld(w, d, a):
    w.take("volatile")
    space = space_of(w, "global", "shared", "local", "param", "const")
    w.take("nc")
    w.take("L1::no_allocate")
    count = int((w.take("v2", "v4") or "v1")[1])
    kind = w.type(*SIZES)
    parts, size = w.vector(d), SIZES[kind]
    if len(parts) != count:
        w.fail("operands")
    address = w.address(a, space)
    w.access = Access(space, address, count * size)
    loads = " ".join(w.assign(p, f"load<{C_TYPES[kind]}>(at + {i * size})") for i, p in enumerate(parts) if p != "_")
    return f"{{ const uint8_t* const at = {address}; check_alignment(at, {count * size}, {w.place()}); {loads} }}"


@handles("st")
def st(w, a, d):
    w.take("volatile")
    space = space_of(w, "global", "shared", "local")
    count = int((w.take("v2", "v4") or "v1")[1])
    kind = w.type(*SIZES)
    parts, size = w.vector(d), SIZES[kind]
    if len(parts) != count:
        w.fail("operands")
    address = w.address(a, space)
    w.access = Access(space, address, count * size)
    stores = " ".join(f"store<{C_TYPES[kind]}>(at + {i * size}, {w.value(p, kind)});" for i, p in enumerate(parts))
    return f"{{ uint8_t* const at = {address}; check_alignment(at, {count * size}, {w.place()}); {stores} }}"


@handles("atom", "red")
def atom(w, *operands):
    destination, address, value = operands if w.at.opcode.startswith("atom") else ("_", *operands)
    w.take("relaxed")
    w.take("gpu", "cta")
    space = space_of(w, "global", "shared")
    operation = w.need("add", "or", "max")
    w.type(*{"add": ("u32", "s32"), "or": ("b32",), "max": ("u32",)}[operation])
    where = w.address(address, space)
    w.access = Access(space, where, 4)
    return w.assign(destination, f"emulator::atomic_{operation}(atomic_word({where}), {w.value(value, 'u32')})")


@handles("membar", "fence")
def fence(w):
    if w.at.opcode.startswith("fence"):
        w.need("acq_rel", "sc")
    w.need("gl", "gpu")
    return "emulator::fence();"


@handles("cp")
def cp_async(w, *operands):
    w.need("async")
    what = w.need("cg", "commit_group", "wait_group")
    if what == "commit_group":
        return "emulator::copy_async_commit();"
    if what == "wait_group":
        return f"emulator::copy_async_wait({int(operands[0])});"
    w.need("shared")
    w.need("global")
    if int(operands[2], 0) != 16:
        w.fail("size")
    source = w.address(operands[1], "global")
    w.access = Access("global", source, 16)
    return f"emulator::copy_async_16({w.address(operands[0], 'shared')}, {source}, {w.place()});"
