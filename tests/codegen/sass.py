"""What a cubin's machine code costs: nvdisasm's text to functions, control flow, loops, instructions an element of the loop that feeds
the tensor cores; registers, stack and shared memory from cuobjdump. Nothing is run.

The dense inner loop is the natural loop of HMMAs with the fewest instructions an element: beside it units have one for exact rows.
An m16n8k16 takes a fragment of 256 decoded elements."""
import re
import subprocess
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

MMA_ELEMENTS = 256  # of the A operand of m16n8k16
LANES = 32


def tool(name):
    """nvdisasm or cuobjdump of the venv (tests/requirements.txt), or None."""
    path = Path(sysconfig.get_paths()["purelib"]) / "nvidia/cu13/bin" / name
    return path if path.exists() else None


@dataclass
class Instruction:
    predicate: str   # "", "P0", "!P1", "!PT", "UP0"
    opcode: str      # with modifiers
    operands: str

    @property
    def base(self):
        return self.opcode.split(".")[0]


@dataclass
class Function:
    name: str
    code: list = field(default_factory=list)     # of Instruction
    labels: dict = field(default_factory=dict)   # label -> index in code
    usage: dict = field(default_factory=dict)    # REG, STACK, SHARED, LOCAL

    def successors(self):
        """Index -> indices that may run next."""
        waiting = {}
        for at in self.code:
            if at.base == "BSSY":
                barrier, target = re.match(r"(B\d+),.*`\(([\w.$]+)\)", at.operands).groups()
                waiting.setdefault(barrier, set()).add(self.labels[target])
        out = []
        for i, at in enumerate(self.code):
            after = [i + 1] if i + 1 < len(self.code) else []
            targets = [self.labels[name] for name in re.findall(r"`\(([\w.$]+)\)", at.operands) if name in self.labels]
            always = at.predicate in ("", "PT", "UPT")
            if at.base == "BRA":
                out.append(targets + ([] if always and not conditional(at) else after))
            elif at.base in ("BRX", "JMX"):
                names = re.search(r'BRANCH_TARGETS ([^"]*)"', at.operands)
                out.append([self.labels[name] for name in names.group(1).split(",")])
            elif at.base in ("EXIT", "RET", "KILL", "TRAP", "BPT"):
                out.append([] if always else after)
            elif at.base == "BSYNC":
                ends = waiting.get(at.operands.strip(), set())
                out.append(after if not ends or i + 1 in ends else sorted(ends))
            else:
                out.append(after)
        return out

    def loops(self):
        return natural_loops(self.successors())


def natural_loops(successors):
    """(header, indices) of each, smaller ones first. successors: index -> indices; 0 is the entry."""
    immediate = dominators(successors)
    predecessors = [[] for _ in successors]
    for i, targets in enumerate(successors):
        for t in targets:
            predecessors[t].append(i)
    bodies = {}
    for tail, targets in enumerate(successors):
        for header in targets:
            if not dominates(immediate, header, tail):
                continue
            body = bodies.setdefault(header, {header})
            todo = [tail]
            while todo:
                i = todo.pop()
                if i not in body:
                    body.add(i)
                    todo += predecessors[i]
    return sorted(bodies.items(), key=lambda loop: len(loop[1]))


def conditional(branch):
    """BRA with a predicate among its operands: BRA P0, `(x); BRA.DIV ~UR4, `(x)."""
    return bool(re.match(r"\s*(!?U?P\d|~?UR\d)", branch.operands))


def dominators(successors):
    """Immediate dominators by index, -1 where unreachable (Cooper, Harvey, Kennedy)."""
    order, seen, stack = [], {0}, [(0, iter(successors[0]))]
    while stack:
        node, rest = stack[-1]
        for t in rest:
            if t not in seen:
                seen.add(t)
                stack.append((t, iter(successors[t])))
                break
        else:
            order.append(node)
            stack.pop()
    rank = {node: i for i, node in enumerate(order)}
    predecessors = {node: [] for node in order}
    for node in order:
        for t in successors[node]:
            predecessors[t].append(node)
    immediate = [-1] * len(successors)
    immediate[0] = 0
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            new = -1
            for p in predecessors[node]:
                if immediate[p] < 0:
                    continue
                if new < 0:
                    new = p
                    continue
                a, b = p, new
                while a != b:
                    while rank[a] < rank[b]:
                        a = immediate[a]
                    while rank[b] < rank[a]:
                        b = immediate[b]
                new = a
            if immediate[node] != new:
                immediate[node], changed = new, True
    return immediate


def dominates(immediate, a, b):
    if immediate[b] < 0:
        return False
    while b != a and b != 0:
        b = immediate[b]
    return a == b


def parse(text):
    """nvdisasm -c to functions."""
    functions, current = [], None
    for line in text.split("\n"):
        section = re.match(r"\.text\.([\w$.]+):", line)
        label = re.match(r"(\.L_x?_?[\w.$]+):", line)
        code = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;?\s*(?:/\*.*)?$", line)
        if section:
            current = Function(section.group(1))
            functions.append(current)
        elif current is not None and label:
            current.labels[label.group(1)] = len(current.code)
        elif current is not None and code:
            current.code.append(Instruction(code.group(1) or "", code.group(2), code.group(3)))
    for f in functions:
        while f.code and f.code[-1].base in ("NOP",):
            f.code.pop()
        # Behind the code stands a branch to itself.
        f.labels = {name: min(i, len(f.code) - 1) for name, i in f.labels.items()}
    return functions


def disassemble(cubin):
    """Functions of a cubin, with their usage."""
    text = subprocess.run([str(tool("nvdisasm")), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    functions = parse(text)
    usage = subprocess.run([str(tool("cuobjdump")), "-res-usage", str(cubin)], capture_output=True, text=True, check=True).stdout
    for name, counts in re.findall(r"Function ([\w$.]+):\s*\n\s*(.*)", usage):
        for f in functions:
            if f.name == name:
                f.usage = {key: int(value) for key, value in re.findall(r"(\w+)(?:\[\d+\])?:(\d+)", counts)}
    return functions


@dataclass
class DenseLoop:
    instructions: int         # of the loop, nested loops left out
    mma: int
    elements: int             # decoded in an iteration, of a warp
    opcodes: dict             # base opcode -> count
    shared_wavefronts: int    # of its shared loads and stores, free of conflicts

    @property
    def per_element(self):
        return self.instructions * LANES / self.elements


def dense_loop(function, fragments_shared=1, tensors=1):
    """The loop that feeds the tensor cores. fragments_shared: MMAs that take one decoded fragment (group_tile / 8); tensors: 2 for
    attention, where an element is a key's and a value's. None without such a loop."""
    loops = function.loops()
    best = None
    for header, body in loops:
        nested = set()
        for other, inner in loops:
            if other != header and inner < body:
                nested |= inner
        if any(function.code[i].base == "HMMA" for i in nested):
            continue  # not an inner one
        own = [function.code[i] for i in sorted(body - nested)]
        mma = sum(at.base == "HMMA" for at in own)
        if mma == 0:
            continue
        opcodes = {}
        for at in own:
            opcodes[at.base] = opcodes.get(at.base, 0) + 1
        loop = DenseLoop(len(own), mma, mma * MMA_ELEMENTS // (fragments_shared * tensors), opcodes, sum(map(wavefronts, own)))
        if best is None or loop.per_element < best.per_element:
            best = loop
    return best


def wavefronts(at):
    """Wavefronts of a shared access of a warp without bank conflicts: 128 bytes each."""
    if at.base not in ("LDS", "STS"):
        return 0
    return {"64": 2, "128": 4}.get(at.opcode.split(".")[-1], 1)


def local_memory(function):
    """Instructions that touch local memory."""
    return [at for at in function.code if at.base in ("LDL", "STL")]


def main():
    import sys
    for f in disassemble(sys.argv[1]):
        print(f.name, f.usage, f"{len(f.code)} instructions, {len(local_memory(f))} of local memory")
        for header, body in f.loops():
            mma = sum(f.code[i].base == "HMMA" for i in body)
            print(f"  loop at {header}: {len(body)} instructions, {mma} HMMA")
        loop = dense_loop(f, *map(int, sys.argv[2:]))
        if loop:
            print(f"  dense loop: {loop.instructions} instructions, {loop.mma} HMMA, {loop.per_element:.3f} an element, {loop.opcodes}")


if __name__ == "__main__":
    main()
