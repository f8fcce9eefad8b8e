"""The dense 3-bit units on sm_90 against their bars, and the reader of machine code against code that is written here."""
import json

import pytest

from codegen import sass
from codegen.bars import BARRED, DENSE, check, needs_disassembler


def test_dense_units_keep_their_bars(driver, nvcc, tmp_path):
    needs_disassembler()
    rows = [json.loads(line) for line in driver("write_cubins", tmp_path, tmp_path, BARRED, *DENSE).splitlines()]
    assert {row["name"] for row in rows} == set(DENSE)
    for row in rows:
        wrong, costs = check(row, tmp_path, [BARRED])
        assert not wrong, "\n".join(wrong)
        assert costs[BARRED] > 1  # an MMA of 256 elements and a load a pair: less would be a miscount


SASS = """
\t.section\t.text.made,"ax",@progbits
made:
.text.made:
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/               @P0 BRA `(.L_x_3) ;
        /*0020*/                   BSSY B0, `(.L_x_2) ;
.L_x_0:
        /*0030*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
.L_x_1:
        /*0040*/                   LDS R9, [R8] ;
        /*0050*/                   IADD3 R8, R8, 0x4, RZ ;
        /*0060*/               @P1 BRA `(.L_x_1) ;
        /*0070*/                   HMMA.16816.F32 R12, R4, R8, R12 ;
        /*0080*/              @!P2 BRA `(.L_x_0) ;
        /*0090*/                   BSYNC B0 ;
.L_x_2:
        /*00a0*/                   STL [R1], R12 ;
        /*00b0*/                   BRA P3, `(.L_x_0) ;
.L_x_3:
        /*00c0*/                   EXIT ;
.L_x_4:
        /*00d0*/                   BRA `(.L_x_4);
        /*00e0*/                   NOP;
"""


def test_loops_and_counts_of_made_code():
    [made] = sass.parse(SASS)
    assert made.name == "made" and len(made.code) == 14
    steps = made.successors()
    assert steps[1] == [12, 2] and steps[6] == [4, 7] and steps[9] == [10] and steps[12] == [] and steps[13] == [13]
    loops = dict(made.loops())
    assert loops[4] == {4, 5, 6} and loops[3] == set(range(3, 12)) and set(loops) == {3, 4}
    loop = sass.dense_loop(made)
    assert (loop.instructions, loop.mma, loop.elements) == (6, 1, 256)  # LDG, HMMA, BRA, BSYNC, STL, BRA; the nested loop left out
    assert loop.per_element == pytest.approx(6 * 32 / 256)
    assert [at.opcode for at in sass.local_memory(made)] == ["STL"]
