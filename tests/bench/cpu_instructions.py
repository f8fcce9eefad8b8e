#!/usr/bin/env python3
"""Instructions that decode attention executes for 16 elements of the cache (one vector of f32), by kind, and what bounds them.

`cpu_attention --steps` executes one head of each contestant step by step for one tile of tokens and for two; the difference is a tile,
without what a call costs once. objdump says what the instructions are. The bounds are those of a core with four vector pipes and eight
instructions a cycle (Zen 5 with a 512-bit datapath: two multiplications, two shuffles, two loads of vectors or four others, one store a
cycle; a conversion takes two pipes). Linux on x86-64; takes a minute where nothing else runs."""
import argparse
import collections
import json
import re
import subprocess
import sys
from pathlib import Path

# Kind of a vector instruction by its name; what else there is, is other vector work (additions, logic, shifts, blends).
KINDS = [
    ("multiply", re.compile(r"v?(fn?m(add|sub)|mul|pmul(?!tishift)|pmadd|pdp)")),
    ("convert", re.compile(r"vcvt")),
    ("shuffle", re.compile(r"v?(perm|pperm|p?unpck|pshuf|shuf|palignr|align|punpck|pmultishift|broadcast|pbroadcast|extract|insert|pinsr"
                           r"|pextr|compress|expand|pexpand|pcompress|pack|pmov|prol|vpro)")),
    ("gather", re.compile(r"v?p?(gather|scatter)")),
]
COLUMNS = ["multiply", "convert", "shuffle", "gather", "vector", "load", "store", "scalar", "branch", "prefetch"]
MOVES = re.compile(r"v?mov(a|u|dq|d$|q$|ss|sd|nt|hl|lh|lps|hps|apd)|v?lddqu")


def disassemble(program):
    """Address -> (name, operands)."""
    out = subprocess.run(["objdump", "-d", "--no-show-raw-insn", "-w", program], capture_output=True, text=True, check=True).stdout
    code = {}
    for line in out.splitlines():
        found = re.match(r"\s*([0-9a-f]+):\t(\S+)\s*(.*)", line)
        if found:
            name, operands = found[2], found[3].split(" # ")[0].strip()
            while name in ("rep", "repz", "repnz", "notrack", "bnd", "data16", "cs", "lock") and operands:
                name, _, operands = operands.partition(" ")
            code[int(found[1], 16)] = (name, operands)
    return code


def kinds(name, operands):
    """What an instruction counts as: a vector instruction with a memory operand is work and a load."""
    memory = "(" in operands and not name.startswith(("lea", "nop"))
    if name.startswith("prefetch"):
        return ["prefetch"]
    if name.startswith("j") or name.startswith(("call", "ret")):
        return ["branch"]
    vector = re.search(r"%[xyz]mm", operands) is not None
    stores = memory and operands.rstrip("{}%k01234567z ").endswith(")") and not name.startswith(("cmp", "test", "vcmp", "vucom", "vcom"))
    moved = ["store"] if stores else ["load"] if memory else []
    if not vector:
        return ["scalar"] + moved
    if MOVES.match(name):
        return moved or ["vector"]
    if "broadcast" in name and memory:
        return ["load"]
    for kind, pattern in KINDS:
        if pattern.match(name):
            return [kind] + moved
    return ["vector"] + moved


def of_a_tile(code, one, two):
    """Executions that the second run has beyond the first, by address."""
    executed = collections.Counter(dict(map(tuple, two)))
    executed.subtract(dict(map(tuple, one)))
    for address in executed:
        if address not in code:
            sys.exit(f"cpu_instructions: no instruction at {address:#x}: is this the program that was traced?")
    return executed


def by_kind(code, executed):
    counts = collections.Counter()
    for address, count in executed.items():
        of_it = kinds(*code[address])
        for kind in of_it:
            counts[kind] += count
        if of_it[0] == "scalar" and "load" in of_it:
            counts["narrow load"] += count
    return counts


def bounds(total, n):
    """Cycles that a core needs at least, by what binds."""
    pipes = n["multiply"] + n["vector"] + n["shuffle"] + 2 * n["convert"]
    return {"issue": total / 8, "vector pipes": pipes / 4, "multiply": n["multiply"] / 2, "shuffle": n["shuffle"] / 2,
            "load": (n["load"] - n["narrow load"] / 2 + n["prefetch"] / 2) / 2, "store": n["store"]}


def figures(program, steps):
    code = disassemble(program)
    for shape in steps["shapes"]:
        unit = shape["elements"] / 16
        for name, (one, two) in shape["contestants"].items():
            executed = of_a_tile(code, one, two)
            counts = {kind: count / unit for kind, count in by_kind(code, executed).items()}
            total = sum(executed.values())
            row = {kind: counts.get(kind, 0.0) for kind in COLUMNS}
            limits = bounds(total / unit, collections.Counter(counts))
            binds = max(limits, key=limits.get)
            yield {"shape": shape["shape"], "contestant": name, "instructions": total / unit, **row, "cycles": limits[binds], "binds": binds}


def print_table(made):
    print(f"Instructions for 16 elements, {made['target']}")
    for shape in dict.fromkeys(row["shape"] for row in made["rows"]):
        print(f"\n{shape:<14}{'all':>7}" + "".join(f"{c:>10}" for c in COLUMNS) + "  cycles at least")
        for row in (r for r in made["rows"] if r["shape"] == shape):
            print(f"  {row['contestant']:<12}{row['instructions']:>7.2f}" + "".join(f"{row[c]:>10.2f}" for c in COLUMNS)
                  + f"  {row['cycles']:.2f} ({row['binds']})")


def listing(program, steps, wanted):
    """Every instruction of one contestant's tile, with its executions."""
    code = disassemble(program)
    for shape in steps["shapes"]:
        for name, (one, two) in shape["contestants"].items():
            if f"{shape['shape']} {name}" != wanted:
                continue
            for address, count in sorted(of_a_tile(code, one, two).items()):
                if count:
                    print(f"{count:>7} {address:>8x}  {' '.join(code[address])}")
            return
    sys.exit(f"cpu_instructions: no {wanted!r}; wanted a shape and a contestant as in the table, 'SmolLM2-135M nuq4 i16'")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="build/tests/bin/cpu_attention")
    parser.add_argument("--steps", type=Path, help="what `cpu_attention --steps` printed before, from the same program")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--listing", metavar="NAME", help="every instruction of one, 'SmolLM2-135M nuq4 i16', with its executions a tile")
    options = parser.parse_args()
    text = options.steps.read_text() if options.steps else subprocess.run(
        [options.program, "--steps"], stdout=subprocess.PIPE, text=True, check=True).stdout
    steps = json.loads(text)
    if options.listing:
        listing(options.program, steps, options.listing)
        return
    rows = list(figures(options.program, steps))
    made = {"target": steps["target"], "rows": rows}
    if options.json:
        print(json.dumps(made, indent=1))
    else:
        print_table(made)


if __name__ == "__main__":
    main()
