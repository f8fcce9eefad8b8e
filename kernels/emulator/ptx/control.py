"""PTX instructions that branch, and those that threads execute together."""
from writer import handles


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
