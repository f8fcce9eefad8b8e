"""One PTX instruction to one C++ statement. Every opcode and every modifier is named here: what is not is an error, so that nothing
is executed as something else."""
import re

from parse import SIZES, PtxError

C_TYPES = {"b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t", "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t", "f16": "uint16_t",
           "bf16": "uint16_t", "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t", "f32": "float", "f16x2": "uint32_t",
           "bf16x2": "uint32_t", "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t", "pred": "bool"}
INTEGERS = {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"}
BITS = {"b16", "b32", "b64"}
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
SPECIAL = {"%tid.x": "emulator::thread_index()", "%tid.y": "0u", "%tid.z": "0u", "%ctaid.x": "emulator::block_index().x",
           "%ctaid.y": "emulator::block_index().y", "%ctaid.z": "emulator::block_index().z", "%ntid.y": "1u", "%ntid.z": "1u",
           "%laneid": "(emulator::thread_index() & 31u)"}
HANDLERS = {}


def handles(*names):
    def register(function):
        for name in names:
            HANDLERS[name] = function
        return function
    return register


class Access:
    """A memory access, for the trace: space, C++ address, bytes, whether it reads."""

    def __init__(self, space, address, size, reads):
        self.space, self.address, self.size, self.reads = space, address, size, reads


class Writer:
    """C++ of the instructions of one entry. symbols: name -> (space, C++ address or offset)."""

    def __init__(self, entry, symbols):
        self.entry, self.symbols, self.access = entry, symbols, None
        self.registers = {name: C_TYPES[kind] for name, kind in entry.registers.items()}

    def statement(self, instruction):
        """The C++ statement; self.access is then what it reads or writes of memory, or None."""
        self.at, self.access = instruction, None
        base, *modifiers = instruction.opcode.split(".")
        if base not in HANDLERS:
            self.fail("opcode that the translator does not know")
        self.modifiers = modifiers
        code = HANDLERS[base](self, *instruction.operands)
        if self.modifiers:
            self.fail(f"modifier .{self.modifiers[0]} that the translator does not know here")
        return f"if ({instruction.guard}) {{ {code} }}" if instruction.guard else code

    def fail(self, message):
        raise PtxError(self.at.line, f"{message}: {self.at.text}")

    # ---- modifiers
    def take(self, *wanted):
        """The next modifier when it is one of these, else None."""
        return self.modifiers.pop(0) if self.modifiers and self.modifiers[0] in wanted else None

    def need(self, *wanted):
        found = self.take(*wanted)
        if found is None:
            self.fail(f"one of {', '.join('.' + w for w in wanted)} is wanted")
        return found

    def type(self, *kinds):
        return self.need(*(kinds or C_TYPES))

    # ---- operands
    def name(self, operand):
        return operand.replace("%", "_").replace("$", "_")

    def value(self, operand, kind):
        """Operand as a C++ expression of the type."""
        c_type = C_TYPES[kind]
        if operand in self.registers:
            own = self.registers[operand]
            return self.name(operand) if own == c_type else f"as<{c_type}>({self.name(operand)})"
        if operand == "%ntid.x":
            return f"as<{c_type}>({self.entry.threads}u)"
        if operand in SPECIAL:
            return f"as<{c_type}>({SPECIAL[operand]})"
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", operand) and c_type in ("float", "uint32_t"):
            return f"as<{c_type}>(0x{operand[2:]}u)"
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand) and c_type != "float":
            number = int(operand.rstrip("U"), 0)
            if c_type == "bool":
                return "true" if number else "false"
            return f"static_cast<{c_type}>({number % (1 << 64)}ull)"
        if operand in self.symbols and kind in ("u32", "b32", "u64", "b64"):
            space, address = self.symbols[operand]
            if space in ("shared", "local"):
                return f"static_cast<{c_type}>({address})"
            if kind in ("u64", "b64"):
                return f"reinterpret_cast<uint64_t>({address})"
        self.fail(f"operand {operand} as .{kind}")

    def assign(self, operand, expression):
        """Writes a value of at most the register's size; narrower integers are extended by their sign."""
        if operand == "_":
            return f"(void)({expression});"
        if operand not in self.registers:
            self.fail(f"destination {operand}")
        return f"{self.name(operand)} = extend<{self.registers[operand]}>({expression});"

    def vector(self, operand):
        return [part.strip() for part in operand.strip("{} ").split(",")] if operand.startswith("{") else [operand]

    def address(self, operand, space):
        """C++ pointer of "[register+offset]" in a space; offsets of shared and local memory against their bases."""
        m = re.fullmatch(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+))?\s*\]", operand)
        if not m:
            self.fail(f"address {operand}")
        base, offset = m.group(1), int(m.group(2) or "0", 0)
        if space == "param" and base == self.entry.parameter:
            if not 0 <= offset < self.entry.parameter_bytes:
                self.fail("beyond the parameter")
            return f"param + {offset}"
        if base in self.symbols:
            own, address = self.symbols[base]
            if space not in (own, "generic") or (space == "generic" and own != "global"):
                self.fail(f"{base} lies in .{own}")
            return f"{ {'shared': 'shared + ', 'local': 'local + '}.get(own, '') }{address} + {offset}"
        if base not in self.registers:
            self.fail(f"address {operand}")
        register = self.name(base)
        if self.registers[base] == "uint32_t" and space not in ("shared", "local"):
            self.fail("32-bit address outside shared memory")
        if space in ("shared", "local"):
            return f"{space} + static_cast<uint32_t>({register} + {offset})"
        return f"generic({register} + {offset})"

    def place(self):
        return f"kFile, {self.at.line}"


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


# ---- arithmetic
def rounding(w):
    w.take("rn")


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
    return w.assign(d, f"static_cast<{unsigned}>(" + ("" if base == "neg" else f"{value} >= 0 ? {unsigned}({value}) : ") + f"{unsigned}{{0}} - {unsigned}({value}))")


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
    w.access = Access(space, address, count * size, True)
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
    w.access = Access(space, address, count * size, False)
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
    w.access = Access(space, where, 4, False)
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
    w.access = Access("global", source, 16, True)
    return f"emulator::copy_async_16({w.address(operands[0], 'shared')}, {source}, {w.place()});"


# ---- control and collectives
@handles("bra")
def bra(w, target):
    w.take("uni")
    return f"goto {w.name(target)};"


@handles("brx")
def brx(w, index, table):
    w.need("idx")
    if table not in w.entry.targets:
        w.fail("branch targets")
    cases = " ".join(f"case {i}: goto {w.name(t)};" for i, t in enumerate(w.entry.targets[table]))
    return f"switch ({w.value(index, 'u32')}) {{ {cases} default: __builtin_unreachable(); }}"


@handles("ret", "exit")
def ret(w):
    w.take("uni")
    return "return;"


@handles("bar", "barrier")
def bar(w, *operands):
    if w.take("warp"):
        w.need("sync")
        return f"emulator::sync_warp({w.value(operands[0], 'u32')}, {w.place()});"
    w.need("sync")
    w.take("aligned")
    if operands != ("0",):
        w.fail("barrier other than 0 of all threads")
    return f"emulator::sync_block({w.place()});"


@handles("shfl")
def shfl(w, d, a, b, c, mask):
    w.need("sync")
    mode = w.need("up", "down", "bfly", "idx")
    w.type("b32")
    first, *second = d.split("|")
    code = (f"const ShuffleSource from = shuffle_source(Shuffle::{mode}, {w.value(b, 'u32')}, {w.value(c, 'u32')}); "
            + w.assign(first, f"emulator::shuffle({w.value(mask, 'u32')}, {w.value(a, 'b32')}, from.lane, {w.place()})"))
    if second:
        code += " " + w.assign(second[0], "from.inside")
    return f"{{ {code} }}"


@handles("vote")
def vote(w, d, a, mask):
    w.need("sync")
    how = w.need("ballot", "any", "all")
    w.type("b32" if how == "ballot" else "pred")
    predicate = ("!" if a.startswith("!") else "") + w.value(a.lstrip("!"), "pred")
    lanes = w.value(mask, "u32")
    code = f"emulator::ballot({lanes}, {predicate}, {w.place()})"
    return w.assign(d, code + {"ballot": "", "any": " != 0", "all": f" == {lanes}"}[how])


@handles("match")
def match(w, d, a, mask):
    w.need("any")
    w.need("sync")
    w.type("b32")
    return w.assign(d, f"emulator::match_any({w.value(mask, 'u32')}, {w.value(a, 'b32')}, {w.place()})")


@handles("mma")
def mma(w, d, a, b, c):
    for modifier in ("sync", "aligned", "m16n8k16", "row", "col", "f32", "f16", "f16", "f32"):
        w.need(modifier)
    to, first, second, third = map(w.vector, (d, a, b, c))
    sums = ", ".join(w.value(x, "f32") for x in third)
    rows = ", ".join(w.value(x, "b32") for x in first)
    columns = ", ".join(w.value(x, "b32") for x in second)
    results = " ".join(w.assign(x, f"sum[{i}]") for i, x in enumerate(to))
    return (f"{{ float sum[4] = {{{sums}}}; const uint32_t rows[4] = {{{rows}}}; "
            f"emulator::mma_16816(sum, rows, {columns}, {w.place()}); {results} }}")


@handles("movmatrix")
def movmatrix(w, d, a):
    for modifier in ("sync", "aligned", "m8n8", "trans", "b16"):
        w.need(modifier)
    return w.assign(d, f"emulator::transpose_8x8({w.value(a, 'b32')}, {w.place()})")
