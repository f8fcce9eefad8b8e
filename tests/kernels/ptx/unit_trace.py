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
    touched: dict      # part of a page -> bytes of the 32-byte sectors that were read, each once
    outputs: dict      # of ptx_run
    elements: int      # of the cache's tiles: a key's and a value's count as one

    def instructions(self):
        return [i for entry in self.entries.values() for i in entry]

    def dense_instructions(self):
        return [i for i in self.instructions() if i["line"] in self.dense and i["issues"]]

    def issues(self):
        return sum(i["issues"] for i in self.instructions())

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


class Traced:
    """A unit compiled for counting, to be run on cases."""

    def __init__(self, unit, folder, build, nvcc, arch="compute_80"):
        self.unit, self.folder, self.build = unit, Path(folder), build
        ptx = to_ptx(unit, self.folder, build, nvcc, arch)
        self.source, self.library = from_source(unit, self.folder, build), translated(ptx, trace=True)
        self.dense = dense_lines(ptx.read_text(), unit.symbol)

    def run(self, *options, tokens=512, heads=2):
        """One sequence of whole tiles, everything packed, one part."""
        counts = self.folder / f"{self.unit.name}.json"
        outputs = ptx_run(self.build, self.source, [self.library], self.unit, f"lengths={tokens}", f"heads={heads}", f"trace={counts}", *options)
        entries = json.loads(counts.read_text())
        touched = {region: 32 * sectors for region, sectors in entries.pop("touched").items()}
        return Trace(entries, self.dense, touched, outputs, tokens * heads * self.unit.dim)


def outlier_cost(dense, sparse, *options, short=256, long=768):
    """(Lane instructions that an outlier adds, share of outliers): what a longer context adds with the sparse part, against without, so
    that what a block does once does not count."""
    issued, records, elements = {}, 0, 0
    for made in (dense, sparse):
        runs = [made.run(*options, tokens=tokens) for tokens in (short, long)]
        issued[made] = runs[1].issues() - runs[0].issues()
        records, elements = runs[1].records() - runs[0].records(), runs[1].elements - runs[0].elements
    return (issued[sparse] - issued[dense]) * LANES / records, records / elements
