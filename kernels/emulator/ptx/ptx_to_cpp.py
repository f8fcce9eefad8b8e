#!/usr/bin/env python3
"""ptx_to_cpp.py UNIT.ptx OUT.cc [--trace]: the PTX of a unit as C++ that runs on the fibers of kernels/emulator, one statement an
instruction. Compile with -std=c++20 -ffp-contract=off -DKVCC_EMULATE, link into a shared object, launch its entries as those of the
source. --trace adds exact counts (ptx_trace.h)."""
import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from instructions import C_TYPES, Writer  # noqa: E402
from parse import Label, PtxError, parse  # noqa: E402

REGISTERS_START = {"bool": "false", "float": "kNan", "uint16_t": "0xdead", "int16_t": "0xdead"}  # others 0xdeadbeef


def name(text):
    return text.replace("%", "_").replace("$", "_").replace(".", "_")


def layout(variables):
    """Offsets of .shared or .local variables; dynamic shared memory follows the static."""
    offsets, end = {}, 0
    for v in sorted(variables, key=lambda v: v.size == 0):
        end = -(-end // v.align) * v.align
        offsets[v.name] = end
        end += v.size
    return offsets, end


def globals_text(module):
    out = []
    for v in module.variables:
        values = "{" + ",".join(map(str, v.values)) + "}" if v.values else "{}"
        out.append(f"alignas({v.align}) [[maybe_unused]] static uint8_t g_{name(v.name)}[{v.size}] = {values};")
    return out


def entry_text(module, entry, trace):
    used = " ".join(i.text for i in entry.body if not isinstance(i, Label))
    shared, shared_bytes = layout([v for v in module.shared if v.name in used] + entry.shared)
    local, local_bytes = layout(entry.local)
    symbols = {v.name: ("global", "g_" + name(v.name)) for v in module.variables}
    symbols |= {n: ("shared", f"{offset}u") for n, offset in shared.items()}
    symbols |= {n: ("local", f"{offset}u") for n, offset in local.items()}
    symbols[entry.parameter] = ("param", "param")
    writer = Writer(entry, symbols)
    body = []
    traced = []
    for item in entry.body:
        if isinstance(item, Label):
            body.append(f"{name(item.name)}:;")
            continue
        code = writer.statement(item)
        if trace:
            access = writer.access
            if access and access.space in ("shared", "global", "generic"):
                space = "shared" if access.space == "shared" else "global"
                request = f"thread.request({len(traced)}, trace::Space::{space}, {access.address}, {access.size});"
                code = (f"if ({item.guard}) {request} " if item.guard else request + " ") + code
            code = f"thread.count({len(traced)}); {code}"
            traced.append(item)
        body.append(f"  {code}  // {item.line}")
    out = [f'extern "C" void {entry.name}(const void* params) {{',
           "  [[maybe_unused]] const uint8_t* const param = static_cast<const uint8_t*>(params);",
           "  [[maybe_unused]] uint8_t* const shared = static_cast<uint8_t*>(emulator::shared_memory());"]
    if local_bytes:
        align = max(v.align for v in entry.local)
        out.append(f"  alignas({align}) uint8_t local[{local_bytes}];")
    by_type = {}
    for register, kind in entry.registers.items():
        if f"{register}" in writer.registers:
            by_type.setdefault(C_TYPES[kind], []).append(name(register))
    for c_type, registers in by_type.items():
        start = REGISTERS_START.get(c_type, "static_cast<%s>(0xdeadbeefdeadbeefull)" % c_type)
        out += [f"  [[maybe_unused]] {c_type} {register} = {start};" for register in registers]
    out += body
    out += ["}", f'extern "C" const uint32_t {entry.name}_threads = {entry.threads};',
            f'extern "C" const uint32_t {entry.name}_shared_bytes = {shared_bytes};  // static ones']
    if trace:
        out.insert(3, f"  trace::Thread thread({entry.name}_instructions, {len(traced)});")
        out.insert(0, f"static trace::Instruction {entry.name}_instructions[] = {{" + ",\n".join(
            f'{{{i.line}, "{i.opcode}", "{i.text}"}}' for i in traced) + "};\n"
            f'static const trace::Registration {entry.name}_registration("{entry.name}", {entry.name}_instructions, {len(traced)});')
    return out


def translate(text, file_name, trace=False):
    module = parse(text)
    if not module.entries:
        raise PtxError(1, "no entry")
    out = [f"// {file_name}, translated by ptx_to_cpp.py.",
           f'#include "kernels/emulator/ptx/{"ptx_trace.h" if trace else "ptx_runtime.h"}"',
           "namespace kvcc::ptx {",
           f'[[maybe_unused]] static const char kFile[] = "{file_name}";']
    out += globals_text(module)
    for entry in module.entries:
        out += entry_text(module, entry, trace)
    if trace:
        out += ['extern "C" void kvcc_trace_region(const char* name, const void* begin, uint64_t bytes) { trace::add_region(name, begin, bytes); }',
                'extern "C" void kvcc_trace_write(const char* path) { trace::write(path); }']
    return "\n".join([*out, "}  // namespace kvcc::ptx"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ptx", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    try:
        options.out.write_text(translate(options.ptx.read_text(), options.ptx.name, options.trace))
    except PtxError as error:
        sys.exit(f"{options.ptx}: {error}")


if __name__ == "__main__":
    main()
