"""PTX text to entries of labels and instructions, each with its line. Only the syntax: what an opcode means is in instructions.py."""
import re
from dataclasses import dataclass, field


class PtxError(Exception):
    """What is wrong, with the line of the PTX."""

    def __init__(self, line, message):
        super().__init__(f"line {line}: {message}")
        self.line = line


@dataclass
class Instruction:
    line: int
    text: str
    opcode: str       # as written, e.g. "ld.global.nc.u32"
    guard: str        # C++ condition, or ""
    operands: list    # of str
    number: int = 0   # within the entry


@dataclass
class Label:
    name: str


@dataclass
class Variable:
    """A .global, .const, .shared or .local array."""
    name: str
    align: int
    size: int           # bytes; 0: dynamic shared memory
    values: bytes = b""


@dataclass
class Entry:
    name: str
    line: int
    threads: int
    parameter: str      # the one parameter's name
    parameter_bytes: int
    registers: dict = field(default_factory=dict)   # name -> PTX type
    shared: list = field(default_factory=list)      # of Variable
    local: list = field(default_factory=list)
    body: list = field(default_factory=list)        # of Instruction and Label
    targets: dict = field(default_factory=dict)     # name of a .branchtargets -> labels


@dataclass
class Module:
    entries: list = field(default_factory=list)
    variables: list = field(default_factory=list)   # .global and .const
    shared: list = field(default_factory=list)      # declared outside entries


SIZES = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4,
         "b64": 8, "u64": 8, "s64": 8, "f64": 8}
LINE_DIRECTIVES = (".loc", ".file", ".version", ".target", ".address_size")


def statements(text):
    """(line, kind, text): kind is ";" statement, ":" label, "{" (text is what stands before it) or "}"."""
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    current, start, depth = "", 1, 0
    for number, line in enumerate(text.split("\n"), 1):
        line = line.split("//")[0]
        if line.strip().startswith(LINE_DIRECTIVES):
            continue
        for c in line + " ":
            if not current.strip():
                current, start = "", number
            head = current.strip()
            if depth:
                depth += (c == "{") - (c == "}")
                current += c
            elif c == "{" and (not head or ".entry" in head or ".func" in head or head.startswith(".section")):
                yield start, "{", head
                current = ""
            elif c == "}" and not head:
                yield number, "}", ""
                current = ""
            elif c == "{":
                depth, current = 1, current + c
            elif c == ";":
                yield start, ";", head
                current = ""
            elif c == ":" and re.fullmatch(r"[$\w]+", head):
                yield start, ":", head
                current = ""
            else:
                current += c


def split_operands(text):
    """At commas outside braces and brackets."""
    parts, depth, part = [], 0, ""
    for c in text:
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += c
    if part.strip():
        parts.append(part.strip())
    return parts


def parse_variable(line, text):
    """".shared .align 4 .b8 name[64]", with an initialiser of integers where there is one."""
    m = re.fullmatch(r"(?:\.visible |\.extern |\.weak )*\s*\.(?:global|const|shared|local)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$%.]+)"
                     r"(?:\[(\d*)\])?(?:\s*=\s*(.*))?", " ".join(text.split()))
    if not m or m.group(2) not in SIZES:
        raise PtxError(line, f"variable that the translator does not read: {text[:100]}")
    align, kind, name, count, values = m.groups()
    size = SIZES[kind]
    count = 1 if count is None else int(count or 0)
    data = b""
    if values:
        try:
            data = b"".join((int(v, 0) % (1 << 8 * size)).to_bytes(size, "little") for v in values.strip("{} ").split(","))
        except ValueError as error:
            raise PtxError(line, f"initialiser of {name} that is not a list of integers") from error
    return Variable(name, int(align or size), size * count, data.ljust(size * count, b"\0") if values else b"")


class Scope:
    """Registers may be declared again in the braces of inline assembly: inner names get the scope's number."""

    def __init__(self, number, names=()):
        self.number, self.names = number, dict(names)


def parse(text):
    module, entry, scopes, skip = Module(), None, [], 0
    opened = 0
    for line, kind, body in statements(text):
        if skip:
            skip += (kind == "{") - (kind == "}")
        elif kind == "{" and body.startswith(".section"):
            skip = 1
        elif kind == "{" and entry is None:
            entry = parse_header(line, body)
            module.entries.append(entry)
            scopes = [Scope(0)]
        elif kind == "{":
            if body:
                raise PtxError(line, f"unexpected '{{' after: {body[:100]}")
            opened += 1
            scopes.append(Scope(opened, scopes[-1].names))
        elif kind == "}":
            scopes.pop()
            if not scopes:
                entry = None
        elif entry is None:
            parse_global(module, line, body)
        elif kind == ":":
            entry.body.append(Label(body))
        else:
            parse_statement(entry, scopes[-1], line, body)
    return module


def parse_header(line, text):
    m = re.search(r"\.entry\s+([\w$]+)\s*\(\s*\.param\s+(?:\.align\s+\d+\s+)?\.b8\s+([\w$]+)\[(\d+)\]\s*\)", text)
    if not m:
        raise PtxError(line, f"an entry with one parameter by value is wanted, found: {' '.join(text.split())[:120]}")
    threads = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)", text)
    return Entry(m.group(1), line, int(threads.group(1)) if threads else 0, m.group(2), int(m.group(3)))


def parse_global(module, line, text):
    if re.match(r"(\.visible |\.extern |\.weak )*\s*\.shared", text):
        module.shared.append(parse_variable(line, text))
    elif re.match(r"(\.visible |\.extern |\.weak )*\s*\.(global|const)", text):
        module.variables.append(parse_variable(line, text))
    elif not text.startswith(".pragma"):
        raise PtxError(line, f"statement that the translator does not read: {text[:100]}")


def parse_statement(entry, scope, line, text):
    if text.startswith(".pragma"):
        return
    if text.startswith(".reg"):
        m = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text, re.S)
        for name in split_operands(m.group(2)):
            bundle = re.fullmatch(r"(%?[\w$]+)<(\d+)>", name)
            names = [f"{bundle.group(1)}{i}" for i in range(int(bundle.group(2)))] if bundle else [name]
            for one in names:
                unique = one if scope.number == 0 else f"{one}_{scope.number}"
                scope.names[one] = unique
                entry.registers[unique] = m.group(1)
        return
    if text.startswith(".shared"):
        entry.shared.append(parse_variable(line, text))
        return
    if text.startswith(".local"):
        entry.local.append(parse_variable(line, text))
        return
    if text.startswith(".branchtargets"):
        entry.targets[entry.body.pop().name] = split_operands(text[len(".branchtargets"):])
        return
    m = re.fullmatch(r"(?:@(!?)(%?[\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)", text, re.S)
    if not m:
        raise PtxError(line, f"statement that the translator does not read: {text[:100]}")
    negated, guard, opcode, operands = m.groups()
    operands = re.sub(r"(?<![\w$.])%?[a-zA-Z_$][\w$]*", lambda name: scope.names.get(name.group(), name.group()), operands)
    if guard:
        guard = ("!" if negated else "") + scope.names.get(guard, guard).replace("%", "_")
    entry.body.append(Instruction(line, " ".join(text.split()), opcode, guard or "", split_operands(operands), len(entry.body)))
