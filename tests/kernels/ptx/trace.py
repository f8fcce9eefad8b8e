"""Exact costs of a unit on a made-up case, from its PTX run with counters: what warps issue, wavefronts of shared memory, sectors."""
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from codegen.sass import natural_loops
from support import SOURCE
from units import from_source, ptx_run, to_ptx, translated

sys.path.insert(0, str(SOURCE / "kernels/emulator/ptx"))
from parse import Label, parse  # noqa: E402

PAGE_TOKENS = 64
LANES = 32


@dataclass
class Trace:
    entries: dict      # symbol -> instructions with their counts
    dense: set         # lines of the loop that feeds the tensor cores, nested loops left out
    outputs: dict      # of ptx_run
    elements: int      # of the cache's tiles: a key's and a value's count as one

    def instructions(self):
        return [i for entry in self.entries.values() for i in entry]

    def dense_instructions(self):
        return [i for i in self.instructions() if i["line"] in self.dense and i["issues"]]

    def per_element(self, count, dense=True):
        """A count of warps (issues, wavefronts) as what each lane spends on an element."""
        return sum(i[count] for i in (self.dense_instructions() if dense else self.instructions())) * LANES / self.elements

    def records(self):
        return sum(count for name, (count, _) in self.outputs.items() if name.endswith("_records"))


def successors(body):
    """PTX of an entry: index -> indices that may run next, and the instructions."""
    code, labels = [], {}
    for item in body:
        if isinstance(item, Label):
            labels[item.name] = len(code)
        else:
            code.append(item)
    out = []
    for i, at in enumerate(code):
        after = [i + 1] if i + 1 < len(code) else []
        if at.opcode.startswith("bra"):
            out.append([labels[at.operands[0]]] + (after if at.guard else []))
        elif at.opcode in ("ret", "exit"):
            out.append(after if at.guard else [])
        else:
            out.append(after)
    return out, code


def dense_lines(ptx_text, symbol):
    """Lines of the inner loop with most MMAs."""
    entry = next(e for e in parse(ptx_text).entries if e.name == symbol)
    steps, code = successors(entry.body)
    best, most = set(), 0
    loops = natural_loops(steps)
    for header, body in loops:
        nested = set().union(*(inner for other, inner in loops if other != header and inner < body))
        own = body - nested
        count = sum(code[i].opcode.startswith("mma") for i in own)
        if count > most:
            best, most = {code[i].line for i in own}, count
    return best


def trace(unit, folder, build, nvcc, *options, tokens=512, heads=2, arch="compute_80"):
    """One sequence of whole tiles, everything packed, one part."""
    folder = Path(folder)
    ptx = to_ptx(unit, folder, build, nvcc, arch)
    counts = folder / f"{unit.name}.json"
    outputs = ptx_run(build, from_source(unit, folder, build), [translated(ptx, trace=True)], unit, f"lengths={tokens}", f"heads={heads}",
                      f"trace={counts}", *options)
    return Trace(json.loads(counts.read_text()), dense_lines(ptx.read_text(), unit.symbol), outputs, tokens * heads * unit.dim)
