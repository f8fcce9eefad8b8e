"""Each PTX instruction against results computed here from the ISA's words: hand-written PTX, translated, run by one thread or warp.
And what the translator refuses, and the trace's counts on patterns whose cost is known."""
import json
import struct
import subprocess
import sys

import numpy as np
import pytest

from support import BUILD, SOURCE
from units import CXX_FLAGS, run, translated

TRANSLATOR = SOURCE / "kernels/emulator/ptx/ptx_to_cpp.py"
NAN = 0x7fffffff


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def unit(body, threads=32, shared=0):
    memory = f".shared .align 16 .b8 sm[{shared}];" if shared else ""
    return f""".version 9.0
.target sm_90
.address_size 64
.visible .entry probe(
    .param .align 8 .b8 probe_param_0[16]
)
.maxntid {threads}, 1, 1
{{
    .reg .pred %p<10>;
    .reg .b16 %rs<20>;
    .reg .b32 %r<100>;
    .reg .f32 %f<20>;
    .reg .b64 %rd<20>;
    {memory}
    ld.param.u64 %rd1, [probe_param_0];
    ld.param.u64 %rd2, [probe_param_0+8];
{body}
    ret;
}}
"""


def probe(folder, text, words, threads=32, inputs=(), trace=None, code=0):
    """Words of the output of a unit."""
    path = folder / "probe.ptx"
    path.write_text(text)
    library = translated(path, trace=trace is not None)
    done = subprocess.run([str(BUILD / "tests/bin/ptx_probe"), str(library), "probe", str(threads), str(words), *([str(trace)] if trace else [])],
                          input=" ".join(f"{x:x}" for x in inputs), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stderr if code else [int(word, 16) for word in done.stdout.split()]


# Opcode, operands' words, result's words: a and b are read as 32-bit registers of the kind that the opcode ends in.
ONE, TWO, TINY = bits(1.0), bits(2.0), 1
ARITHMETIC = [
    ("add.s32", [0x7fffffff, 1], 0x80000000), ("sub.s32", [0, 1], 0xffffffff), ("mul.lo.s32", [0x10001, 0x10001], 0x20001),
    ("mul.hi.s32", [0xffffffff, 0xffffffff], 0), ("mul.hi.u32", [0xffffffff, 0xffffffff], 0xfffffffe),
    ("mad.lo.s32", [3, 0xffffffff, 10], 7), ("div.s32", [0xfffffff9, 2], 0xfffffffd), ("rem.s32", [0xfffffff9, 2], 0xffffffff),
    ("div.u32", [0xfffffff9, 2], 0x7ffffffc), ("rem.u32", [7, 4], 3), ("min.s32", [0xffffffff, 1], 0xffffffff),
    ("min.u32", [0xffffffff, 1], 1), ("max.s32", [0xffffffff, 1], 1), ("max.u32", [0xffffffff, 1], 0xffffffff),
    ("neg.s32", [5], 0xfffffffb), ("abs.s32", [0xfffffffb], 5),
    ("and.b32", [0xff00ff00, 0x0ff00ff0], 0x0f000f00), ("or.b32", [0xff00ff00, 0x0ff00ff0], 0xfff0fff0),
    ("xor.b32", [0xff00ff00, 0x0ff00ff0], 0xf0f0f0f0), ("not.b32", [0xff00ff00], 0x00ff00ff),
    ("shl.b32", [0x80000001, 1], 2), ("shl.b32", [1, 32], 0), ("shl.b32", [1, 0xffffffff], 0),
    ("shr.u32", [0x80000000, 31], 1), ("shr.u32", [0x80000000, 32], 0), ("shr.s32", [0x80000000, 31], 0xffffffff),
    ("shr.s32", [0x80000000, 99], 0xffffffff), ("shr.s32", [0x40000000, 99], 0),
    ("shf.l.wrap.b32", [0x89abcdef, 0x01234567, 8], 0x23456789), ("shf.r.wrap.b32", [0x89abcdef, 0x01234567, 8], 0x6789abcd),
    ("shf.l.wrap.b32", [0x89abcdef, 0x01234567, 40], 0x23456789), ("shf.l.clamp.b32", [0x89abcdef, 0x01234567, 40], 0x89abcdef),
    ("shf.r.clamp.b32", [0x89abcdef, 0x01234567, 40], 0x01234567), ("shf.r.wrap.b32", [0x89abcdef, 0x01234567, 0], 0x89abcdef),
    ("prmt.b32", [0x33221100, 0x77665544, 0x7531], 0x77553311), ("prmt.b32", [0x80ff7f00, 0, 0xba98], 0xffff0000),
    ("prmt.b32", [0x33221100, 0x77665544, 0x0246], 0x00224466),
    ("bfe.u32", [0x12345678, 4, 8], 0x67), ("bfe.s32", [0x12345f78, 8, 4], 0xffffffff), ("bfe.u32", [0x12345678, 28, 8], 1),
    ("bfe.s32", [0x80000000, 28, 8], 0xfffffff8), ("bfe.s32", [0x80000000, 4, 0], 0),
    ("bfi.b32", [0xab, 0x11111111, 8, 8], 0x1111ab11), ("bfi.b32", [0xff, 0, 28, 8], 0xf0000000),
    ("popc.b32", [0xf00f0001], 9), ("clz.b32", [0x00010000], 15), ("clz.b32", [0], 32), ("brev.b32", [0x00000003], 0xc0000000),
    ("bfind.u32", [0x00010000], 16), ("bfind.u32", [0], 0xffffffff), ("bfind.shiftamt.u32", [0x00010000], 15),
    ("add.rn.f32", [ONE, bits(2.0**-25)], ONE), ("sub.rn.f32", [ONE, ONE], 0), ("mul.rn.f32", [TINY, bits(0.5)], 0),
    ("mul.rn.f32", [3, bits(0.5)], 2), ("fma.rn.f32", [bits(1 + 2.0**-23), bits(1 + 2.0**-23), bits(-(1 + 2.0**-22))], bits(2.0**-46)),
    ("div.rn.f32", [ONE, bits(3.0)], bits(np.float32(1) / np.float32(3))), ("sqrt.rn.f32", [TWO], bits(np.sqrt(np.float32(2)))),
    ("rcp.rn.f32", [bits(3.0)], bits(np.float32(1) / np.float32(3))), ("neg.f32", [ONE], bits(-1.0)), ("abs.f32", [bits(-1.0)], ONE),
    ("add.rn.f32", [bits(float("inf")), bits(float("-inf"))], NAN), ("mul.rn.f32", [0xffc12345, ONE], NAN),
    ("min.f32", [NAN, TWO], TWO), ("max.f32", [TWO, 0xffc00001], TWO), ("max.f32", [NAN, 0xffc00001], NAN),
    ("min.f32", [0, 0x80000000], 0x80000000), ("max.f32", [0x80000000, 0], 0),
    ("ex2.approx.ftz.f32", [bits(3.0)], bits(8.0)), ("ex2.approx.ftz.f32", [bits(-140.0)], 0),
]
LOP3 = [(0xc0, lambda a, b, c: a & b), (0xf8, lambda a, b, c: a | b & c), (0x96, lambda a, b, c: a ^ b ^ c), (0xea, lambda a, b, c: a & b | c),
        (0x53, lambda a, b, c: (a & ~c | ~a & ~b))]
CONVERSIONS = [
    ("cvt.s32.s8", "b32", 0x000000ff, "b32", 0xffffffff), ("cvt.u32.u8", "b32", 0x123456ff, "b32", 0xff),
    ("cvt.s32.s16", "b16", 0x8000, "b32", 0xffff8000), ("cvt.u32.u16", "b16", 0x8000, "b32", 0x8000), ("cvt.u16.u32", "b32", 0x12345678, "b16", 0x5678),
    ("cvt.rn.f32.s32", "b32", 0xffffffff, "f32", bits(-1.0)), ("cvt.rn.f32.u32", "b32", 0xffffffff, "f32", bits(2.0**32)),
    ("cvt.rn.f32.u32", "b32", 0x01000001, "f32", bits(2.0**24)), ("cvt.rzi.s32.f32", "f32", bits(-1.75), "b32", 0xffffffff),
    ("cvt.rni.s32.f32", "f32", bits(2.5), "b32", 2), ("cvt.rmi.s32.f32", "f32", bits(-1.25), "b32", 0xfffffffe),
    ("cvt.rpi.s32.f32", "f32", bits(1.25), "b32", 2), ("cvt.rzi.s32.f32", "f32", bits(3e9), "b32", 0x7fffffff),
    ("cvt.rzi.u32.f32", "f32", bits(-5.0), "b32", 0), ("cvt.rzi.u32.f32", "f32", bits(3e9), "b32", 3000000000),
    ("cvt.rzi.s32.f32", "f32", NAN, "b32", 0), ("cvt.rni.f32.f32", "f32", bits(3.5), "f32", bits(4.0)),
    ("cvt.f32.f16", "b16", 0x0001, "f32", bits(2.0**-24)), ("cvt.f32.f16", "b16", 0xfc00, "f32", bits(float("-inf"))),
    ("cvt.rn.bf16.f32", "f32", bits(1 + 2.0**-8), "b16", 0x3f80), ("cvt.rn.bf16.f32", "f32", bits(1 + 3 * 2.0**-8), "b16", 0x3f82),
    ("cvt.f32.bf16", "b16", 0x3fc0, "f32", bits(1.5)), ("cvt.rn.f16.f32", "f32", bits(65520.0), "b16", 0x7c00),
] + [("cvt.rn.f16.f32", "f32", bits(float(x)), "b16", int(np.float16(np.float32(x)).view(np.uint16)))
     for x in (1 + 2**-11, 1 + 3 * 2**-11, 65519.0, 2**-25, 2**-25 * 1.001, 2**-14 - 2**-26, 0.1, -3e-6)]
COMPARISONS = [("eq", False, 0), ("ne", True, 0), ("lt", True, 0), ("le", True, 0), ("gt", False, 0), ("ge", False, 0), ("equ", False, 1), ("neu", True, 1),
               ("ltu", True, 1), ("leu", True, 1), ("gtu", False, 1), ("geu", False, 1), ("num", True, 0), ("nan", False, 1)]


def register(kind, i):
    return {"b32": "%r", "b16": "%rs", "f32": "%f"}[kind] + str(i)


def load(kind, i, offset):
    move = {"b32": "ld.global.u32", "f32": "ld.global.f32", "b16": "ld.global.u16"}[kind]
    return f"    {move} {register(kind, i)}, [%rd1+{offset}];\n"


def store(kind, i, offset):
    move = {"b32": "st.global.u32", "f32": "st.global.f32", "b16": "st.global.u16"}[kind]
    return f"    {move} [%rd2+{offset}], {register(kind, i)};\n"


def check(folder, cases):
    """cases: (text with the result in register R of its kind, kind of R, its number, inputs, wanted)."""
    body, inputs, wanted = "", [], []
    for loads, text, kind, number, words, result in cases:
        for k, (operand_kind, i) in enumerate(loads):
            body += load(operand_kind, i, 4 * (len(inputs) + k))
        inputs += words
        body += f"    {text}\n" + store(kind, number, 4 * len(wanted))
        wanted.append(result)
    found = probe(folder, unit(body), len(wanted), inputs=inputs)
    wrong = [(case[1], hex(f), hex(w)) for case, f, w in zip(cases, found, wanted) if f != w]
    assert not wrong


def test_arithmetic_and_bits(tmp_path):
    cases = []
    for opcode, words, result in ARITHMETIC:
        kind = "f32" if opcode.endswith("f32") else "b32"
        operands = ", ".join(register(kind, 2 + i) for i in range(len(words)))
        cases.append(([(kind, 2 + i) for i in range(len(words))], f"{opcode} {register(kind, 1)}, {operands};", kind, 1, words, result))
    a, b, c = 0xf0f0cc12, 0xaa55ff00, 0x0f3399e7
    for table, function in LOP3:
        cases.append(([("b32", 2), ("b32", 3), ("b32", 4)], f"lop3.b32 %r1, %r2, %r3, %r4, {table:#x};", "b32", 1, [a, b, c],
                      function(a, b, c) & 0xffffffff))
    check(tmp_path, cases)


def test_wide_products(tmp_path):
    wide = [("mul.wide.s32", 0xffffffff, 0x80000000, 0, 0x80000000), ("mul.wide.u32", 0xffffffff, 0xffffffff, 0, 0xfffffffe00000001),
            ("mad.wide.s32", 0xffffffff, 4, 1 << 33, (1 << 33) - 4), ("mad.wide.u32", 0xffffffff, 4, 5, 0xffffffff * 4 + 5)]
    body, inputs = "", []
    for i, (opcode, a, b, c, _) in enumerate(wide):
        third = f", {c}" if opcode.startswith("mad") else ""
        body += load("b32", 1, 8 * i) + load("b32", 2, 8 * i + 4) + f"    {opcode} %rd3, %r1, %r2{third};\n    st.global.u64 [%rd2+{8 * i}], %rd3;\n"
        inputs += [a, b]
    found = probe(tmp_path, unit(body), 2 * len(wide), inputs=inputs)
    assert [found[2 * i] | found[2 * i + 1] << 32 for i in range(len(wide))] == [w[4] for w in wide]


def test_conversions(tmp_path):
    check(tmp_path, [([(kind, 2)], f"{opcode} {register(to, 3)}, {register(kind, 2)};", to, 3, [word], result)
                     for opcode, kind, word, to, result in CONVERSIONS])


def test_half_pairs(tmp_path):
    """Each rounded once: against double, in which products and sums of fp16 numbers of like size are exact."""
    random = np.random.default_rng(4)
    a, b, c = (random.normal(size=(40, 2)).astype(np.float16) for _ in range(3))
    a[0], b[0], c[0] = [2.0**-13, 1.0], [2.0**-12, 3.0], [2.0**-24, 2.0**-11]
    words = [x.view(np.uint32)[:, 0].tolist() for x in (a, b, c)]
    a, b, c = (x.astype(np.float64) for x in (a, b, c))
    cases = []
    for opcode, result in (("fma.rn.f16x2", a * b + c), ("mul.rn.f16x2", a * b), ("add.rn.f16x2", a + b), ("sub.rn.f16x2", a - b)):
        wanted = result.astype(np.float16).view(np.uint32)[:, 0].tolist()
        count = 3 if opcode.startswith("fma") else 2
        for i in range(40):
            operands = ", ".join(f"%r{2 + k}" for k in range(count))
            cases.append(([("b32", 2 + k) for k in range(count)], f"{opcode} %r1, {operands};", "b32", 1, [w[i] for w in words[:count]], wanted[i]))
    high, low = np.float32(1.0001), np.float32(-2.3)
    packed = int(np.float16(high).view(np.uint16)) << 16 | int(np.float16(low).view(np.uint16))
    cases.append(([("f32", 2), ("f32", 3)], "cvt.rn.f16x2.f32 %r1, %f2, %f3;", "b32", 1, [bits(high), bits(low)], packed))
    cases.append(([("b32", 2)], "neg.f16x2 %r1, %r2;", "b32", 1, [0x3c00bc00], 0xbc003c00))
    check(tmp_path, cases)


def test_comparisons_and_predicates(tmp_path):
    cases = []
    for how, less, unordered in COMPARISONS:  # 1 < 2, and 1 with NaN
        for second, result in ((TWO, int(less)), (NAN, unordered)):
            cases.append(([("f32", 1), ("f32", 2)], f"setp.{how}.f32 %p1, %f1, %f2; selp.u32 %r1, 1, 0, %p1;", "b32", 1, [ONE, second], result))
    for how, result in (("lt.s32", 1), ("lt.u32", 0), ("hi.u32", 1), ("ls.u32", 0), ("ge.s32", 0), ("eq.b32", 0)):
        cases.append(([("b32", 1), ("b32", 2)], f"setp.{how} %p1, %r1, %r2; selp.b32 %r3, 1, 0, %p1;", "b32", 3, [0xffffffff, 1], result))
    for join, second, results in (("and", 1, 2), ("and", 0, 0), ("or", 0, 2), ("or", 1, 3), ("xor", 1, 1)):
        text = f"setp.ne.s32 %p3, %r2, 0; setp.eq.{join}.s32 %p1|%p2, %r1, 5, %p3; selp.b32 %r3, 2, 0, %p1; @%p2 add.s32 %r3, %r3, 1;"
        cases.append(([("b32", 1), ("b32", 2)], text, "b32", 3, [5, second], results))
    text = "setp.eq.s32 %p1, %r1, 5; not.pred %p2, %p1; xor.pred %p3, %p1, %p2; mov.u32 %r2, 0; @!%p2 mov.u32 %r2, 7; @%p3 add.s32 %r2, %r2, 1;"
    cases.append(([("b32", 1)], text, "b32", 2, [5], 8))
    check(tmp_path, cases)


def test_moves_scopes_and_branches(tmp_path):
    body = """
    ld.global.v2.u32 {%r1, %r2}, [%rd1];
    mov.b32 {%rs1, %rs2}, %r1;
    mov.b32 %r3, {%rs2, %rs1};
    mov.b64 %rd3, {%r1, %r2};
    mov.b64 {%r4, %r5}, %rd3;
    { .reg .b32 t; add.s32 t, %r4, 1; mov.b32 %r6, t; }
    { .reg .b32 t; add.s32 t, %r5, 1; mov.b32 %r7, t; }
    st.global.v4.u32 [%rd2], {%r3, %r5, %r6, %r7};
    mov.u32 %r8, 0;
    mov.u32 %r9, 10;
$L_loop:
    add.s32 %r8, %r8, %r9;
    add.s32 %r9, %r9, -1;
    setp.ne.s32 %p1, %r9, 0;
    @%p1 bra $L_loop;
    mov.u32 %r10, 2;
$L_table: .branchtargets $L_a, $L_b, $L_c;
    brx.idx %r10, $L_table;
$L_a:
    mov.u32 %r11, 100;
    bra.uni $L_end;
$L_b:
    mov.u32 %r11, 101;
    bra.uni $L_end;
$L_c:
    mov.u32 %r11, 102;
$L_end:
    st.global.v2.u32 [%rd2+16], {%r8, %r11};
    ld.global.s8 %r12, [%rd1+3];
    ld.global.u8 %rs3, [%rd1+3];
    cvt.u32.u16 %r13, %rs3;
    st.global.v2.u32 [%rd2+24], {%r12, %r13};
"""
    found = probe(tmp_path, unit(body), 8, inputs=[0x89abcdef, 7])
    assert found == [0xcdef89ab, 7, 0x89abcdf0, 8, 55, 102, 0xffffff89, 0x89]


def test_warp_operations_and_atomics(tmp_path):
    """A warp's lanes store words 0 to 8 of their own row."""
    body = """
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 36;
    add.s64 %rd4, %rd2, %rd3;
    mul.lo.s32 %r2, %r1, 3;
    shfl.sync.idx.b32 %r3|%p1, %r2, 5, 31, -1;
    st.global.u32 [%rd4], %r3;
    shfl.sync.bfly.b32 %r3, %r2, 9, 31, -1;
    st.global.u32 [%rd4+4], %r3;
    shfl.sync.up.b32 %r3|%p2, %r2, 4, 0, -1;
    st.global.u32 [%rd4+8], %r3;
    selp.u32 %r4, 1, 0, %p2;
    st.global.u32 [%rd4+12], %r4;
    shfl.sync.down.b32 %r3, %r2, 2, 0x181f, -1;
    st.global.u32 [%rd4+16], %r3;
    and.b32 %r5, %r1, 3;
    setp.eq.s32 %p3, %r5, 0;
    vote.sync.ballot.b32 %r6, %p3, -1;
    st.global.u32 [%rd4+20], %r6;
    match.any.sync.b32 %r7, %r5, -1;
    st.global.u32 [%rd4+24], %r7;
    mov.u32 %r8, sm;
    setp.eq.s32 %p4, %r1, 0;
    @%p4 st.shared.u32 [sm], 0;
    bar.sync 0;
    atom.shared.add.u32 %r9, [%r8], 2;
    red.shared.max.u32 [sm+4], 0;
    bar.warp.sync -1;
    ld.shared.u32 %r10, [sm];
    st.global.u32 [%rd4+28], %r10;
    cvta.shared.u64 %rd5, %rd6;
    mov.u64 %rd6, sm;
    cvta.shared.u64 %rd5, %rd6;
    ld.u32 %r11, [%rd5];
    st.global.u32 [%rd4+32], %r11;
"""
    found = probe(tmp_path, unit(body, shared=8), 288)
    for lane in range(32):
        down = lane + 2 if lane % 8 + 2 < 8 else lane
        ballot, match = 0x11111111, 0x11111111 << lane % 4
        assert found[9 * lane:9 * lane + 9] == [15, 3 * (lane ^ 9), 3 * max(lane - 4, lane if lane < 4 else 0), int(lane >= 4), 3 * down, ballot, match,
                                                64, 64], lane


@pytest.mark.parametrize("statement, named", [("add.sat.s32 %r1, %r2, %r3;", "add.sat.s32"), ("frobnicate.u32 %r1, %r2;", "frobnicate"),
                                              ("ld.global.L2::256B.u32 %r1, [%rd1];", "L2::256B"), ("fma.rz.f32 %f1, %f2, %f3, %f4;", "fma.rz"),
                                              ("add.ftz.f32 %f1, %f2, %f3;", "ftz"), ("setp.lo.s32 %p1, %r1, %r2;", "setp.lo"),
                                              ("mov.u32 %r1, %clock;", "%clock"), ("ld.param.u32 %r1, [probe_param_0+16];", "parameter"),
                                              ("bar.sync 1;", "bar.sync 1")])
def test_what_is_not_known_is_an_error_with_its_line(tmp_path, statement, named):
    text = unit(f"    mov.u32 %r2, 0;\n    {statement}\n")
    (tmp_path / "odd.ptx").write_text(text)
    line = text.split("\n").index(f"    {statement}") + 1
    done = subprocess.run([sys.executable, str(TRANSLATOR), str(tmp_path / "odd.ptx"), str(tmp_path / "odd.cc")], capture_output=True, text=True)
    assert done.returncode == 1 and f"line {line}:" in done.stderr and named in done.stderr
    assert not (tmp_path / "odd.cc").exists()


def test_a_misaligned_access_names_its_line(tmp_path):
    text = unit("    ld.global.u32 %r1, [%rd1+2];\n")
    line = text.split("\n").index("    ld.global.u32 %r1, [%rd1+2];") + 1
    assert f"probe.ptx:{line}" in probe(tmp_path, text, 0, code=1)


BANKS = [("u32", 4, 1, 1), ("u32", 8, 2, 1), ("u32", 128, 32, 1), ("u32", 0, 1, 1), ("u16", 2, 1, 1), ("v2.u32", 8, 2, 2), ("v2.u32", 16, 4, 2),
         ("v4.u32", 16, 4, 4), ("v4.u32", 32, 8, 4), ("v4.u32", 128, 32, 4)]  # load, stride of lanes, wavefronts a warp, and the least
SECTORS = [(4, 4, 128), (8, 8, 128), (32, 32, 128), (0, 1, 4)]  # stride, sectors a warp, distinct bytes


def test_trace_counts_bank_conflicts_and_sectors(tmp_path):
    target = {"u32": "%r1", "u16": "%rs1", "v2.u32": "{%r1, %r2}", "v4.u32": "{%r1, %r2, %r3, %r4}"}
    body = "    mov.u32 %r5, %tid.x;\n"
    for load, stride, _, _ in BANKS:
        body += f"    mad.lo.s32 %r6, %r5, {stride}, sm;\n    ld.shared.{load} {target[load]}, [%r6];\n"
    for stride, _, _ in SECTORS:
        body += f"    mad.wide.u32 %rd3, %r5, {stride}, %rd1;\n    ld.global.nc.u32 %r1, [%rd3];\n"
    probe(tmp_path, unit(body, threads=64, shared=16384), 0, threads=64, trace=tmp_path / "trace.json")
    counts = json.loads((tmp_path / "trace.json").read_text())["probe"]
    shared = [i for i in counts if i["opcode"].startswith("ld.shared")]
    assert [(i["threads"], i["requests"], i["wavefronts"], i["least"]) for i in shared] == [(64, 2, 2 * w, 2 * least) for _, _, w, least in BANKS]
    found = [(i["requests"], i["sectors"], i["distinct"]) for i in counts if i["opcode"].startswith("ld.global.nc")]
    assert found == [(2, 2 * sectors, 2 * distinct) for _, sectors, distinct in SECTORS]
