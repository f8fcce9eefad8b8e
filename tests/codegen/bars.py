"""Bars of the machine code: what the dense inner loop may cost. An element of attention is a key's and a value's."""
from codegen.sass import dense_loop, disassemble, local_memory

# Configuration, MMAs that share a decoded fragment, tensors of an element, instructions an element at most, on sm_90.
DENSE = {
    "key_scores_nuq3_channel_d128_none_half128_g8_f16__mma1": (1, 1, 5.0),
    "value_mix_nuq3_token_d128_none_g8_f16__mma1": (1, 1, 3.0),
    "attention_nuq3_channel_d128_none_half128_v_nuq3_token_d128_none_g8_f16__mma1": (1, 2, 8.5),
}
ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
BARRED = "sm_90"


def check(row, folder, archs):
    """What is wrong with a unit's cubins, in words; row: of write_cubins. And the dense loops' costs by architecture."""
    wrong, costs = [], {}
    for arch in archs:
        place = f"{row['name']} for {arch}"
        if arch in row["lowered"]:
            wrong.append(f"{place}: spills with as many blocks on a multiprocessor as its body states")
        functions = disassemble(folder / f"{row['name']}.{arch}.cubin")
        symbols = sorted(f.name for f in functions)
        if symbols != sorted(row["symbols"]):
            wrong.append(f"{place}: symbols {symbols}, listed: {sorted(row['symbols'])}")
        for f in functions:
            if local_memory(f) or f.usage["STACK"] or f.usage["LOCAL"]:
                wrong.append(f"{place}: {f.name} uses local memory, stack of {f.usage['STACK']} bytes")
            if row["registers"] and f.usage["REG"] > row["registers"]:
                wrong.append(f"{place}: {f.usage['REG']} registers, the row states {row['registers']}")
            if row["shared_bytes"] and row["dynamic"][f.name] > row["shared_bytes"]:
                wrong.append(f"{place}: {row['dynamic'][f.name]} bytes of shared memory, the row states {row['shared_bytes']}")
            if row["name"] in DENSE and not f.name.endswith("_merge"):
                shared, tensors, bar = DENSE[row["name"]]
                loop = dense_loop(f, shared, tensors)
                if loop is None:
                    wrong.append(f"{place}: no loop of MMAs")
                    continue
                costs[arch] = loop.per_element
                if arch == BARRED and loop.per_element > bar:
                    wrong.append(f"{place}: {loop.per_element:.2f} instructions an element of the dense loop, the bar is {bar}; {loop.opcodes}")
    return wrong, costs


def needs_disassembler():
    """Skips, and says so, where nvdisasm and cuobjdump are not."""
    import pytest

    from codegen.sass import tool
    for name in ("nvdisasm", "cuobjdump"):
        if tool(name) is None:
            pytest.skip(f"SKIPPED: no {name}, no machine code was read ('make oracles' gets it)")
