"""What all PTX instructions share on their way to C++: modifiers, operands, addresses. Instructions register with @handles."""
import re

from parse import SIZES, PtxError

C_TYPES = {"b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t", "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t", "f16": "uint16_t",
           "bf16": "uint16_t", "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t", "f32": "float", "f16x2": "uint32_t",
           "bf16x2": "uint32_t", "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t", "pred": "bool"}
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
    """A memory access, for the trace: space, C++ address, bytes."""

    def __init__(self, space, address, size):
        self.space, self.address, self.size = space, address, size


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
