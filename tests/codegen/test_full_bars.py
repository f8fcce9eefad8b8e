"""Every shipped row for every architecture (`make full`, `make check`): no local memory in the machine code, registers, shared memory,
symbols of the list, and the dense loops' instructions an element."""
import json
import os

from support import BUILD

from codegen.bars import ARCHS, DENSE, check, needs_disassembler


def test_every_shipped_row_on_every_architecture(driver, nvcc, tmp_path):
    needs_disassembler()
    cache = os.environ.get("KVCC_CACHE", tmp_path)
    rows = [json.loads(line) for line in driver("write_cubins", cache, tmp_path, ",".join(ARCHS), "@shipped").splitlines()]
    assert len(rows) >= 43 and set(DENSE) <= {row["name"] for row in rows}
    wrong, dense = [], {}
    for row in rows:
        errors, costs = check(row, tmp_path, ARCHS)
        wrong += errors
        if costs:
            dense[row["name"]] = costs
    (BUILD / "bars.json").write_text(json.dumps(dense, indent=1))
    print("\ninstructions an element of the dense loop:")
    for name, costs in dense.items():
        print(f"  {name}: " + ", ".join(f"{arch} {cost:.2f}" for arch, cost in costs.items()))
    assert not wrong, "\n".join(wrong)
