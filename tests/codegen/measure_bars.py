"""Rewrites the bars of the shipped rows (kernels/list, layouts mma-1 and vector-1) with what they need now on any architecture: registers in steps of
8, as multiprocessors hand them out, and shared memory. For whoever changes the kernels; what it changes shows in git. A row that does
not compile, or spills with as many blocks on a multiprocessor as its body states, keeps its bars and is named.

    python3 tests/codegen/measure_bars.py BUILD [CACHE]"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
LISTS = {"mma_pack_key": "pack_key", "mma_pack_value": "pack_value", "attention": "attention", "mma_key_scores": "key_scores",
         "mma_value_mix": "value_mix", "mma_dequantise_key": "dequantise_key", "mma_dequantise_value": "dequantise_value",
         "vector_mma_key_scores": "key_scores", "vector_attention": "attention",
         **{f"vector_{family}": family for family in ("pack_key", "pack_value", "key_scores", "value_mix", "dequantise_key", "dequantise_value")}}


def measure(build, cache):
    """Name of each row to (registers, bytes of shared memory) of its entries on all architectures, the most of each."""
    most, spilling = {}, set()
    for arch in ARCHS:
        command = [str(build / "tests/bin/compile_proof"), str(cache), arch, "1", "@shipped"]
        for line in subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.splitlines():  # errors go to stderr
            name, _, registers, _, shared, min_blocks, stated = line.split()
            if min_blocks != stated:
                spilling.add(name)
                print(f"measure_bars: {name} for {arch} spills with {stated} blocks, not with {min_blocks}", file=sys.stderr)
            before = most.get(name, (0, 0))
            most[name] = (max(before[0], int(registers)), max(before[1], int(shared)))
    return {name: bars for name, bars in most.items() if name not in spilling}


def tensor(bits, axis, head_dim, sparse):
    return f"nuq{bits}_{axis}_d{head_dim}_{sparse}"


def vector(form, head_dim, room=()):
    return f"vq_{form}_d{head_dim}" + (f"_s{room[0]}_b{room[1]}_t{room[2]}" if room else "")


def vector_name_of(family, row, turned):
    """Of vector codebooks."""
    if family == "attention":
        keys, values = (vector(row[f"{t}_form"], row["head_dim"], [row[f"{t}_{part}"] for part in ("steps", "bits", "kib")]) for t in ("key", "value"))
        return f"attention_{keys}_{turned}_v_{values}_g{row['group_tile']}_{row['dtype']}__vector1"
    room = [row[part] for part in ("steps", "token_bits", "table_kib")] if "steps" in row else []
    text = f"{family}_{vector(row['form'], row['head_dim'], room)}"
    if family == "key_scores":
        text += "_" + turned
    if family in ("key_scores", "value_mix"):
        text += f"_g{row['group_tile']}"
    return text + f"_{row['dtype']}__vector1"


def name_of(family, row):
    """The grammar of codegen/plan/configuration.h."""
    turned = "norope" if row["rope"] == "none" else row["rope"] + row["rotary_dim"]
    if "form" in row or "key_form" in row:
        return vector_name_of(family, row, turned)
    if family == "attention":
        keys = tensor(row["key_bits"], row["key_axis"], row["head_dim"], row["key_sparse"])
        values = tensor(row["value_bits"], row["value_axis"], row["head_dim"], row["value_sparse"])
        return f"attention_{keys}_{turned}_v_{values}_g{row['group_tile']}_{row['dtype']}__mma1"
    text = f"{family}_" + tensor(row["bits"], row["axis"], row["head_dim"], row["sparse"])
    if family == "key_scores":
        text += "_" + turned
    if family in ("key_scores", "value_mix"):
        text += f"_g{row['group_tile']}"
    return text + f"_{row['dtype']}__mma1"


MEMBERS = {"KVCC_SHIP": "bits head_dim axis sparse rope rotary_dim group_tile dtype registers shared_bytes".split(),
           "KVCC_SHIP_VECTOR_MMA": "form head_dim steps token_bits table_kib rope rotary_dim group_tile dtype registers shared_bytes".split(),
           "KVCC_SHIP_VECTOR_ATTENTION": ("key_form key_steps key_bits key_kib value_form value_steps value_bits value_kib head_dim rope "
                                          "rotary_dim group_tile dtype registers shared_bytes").split(),
           "KVCC_SHIP_VECTOR": "form head_dim rope rotary_dim group_tile dtype registers shared_bytes".split(),
           "KVCC_SHIP_ATTENTION": ("key_bits key_axis key_sparse value_bits value_axis value_sparse head_dim rope rotary_dim group_tile "
                                   "dtype registers shared_bytes").split()}


def main():
    build = Path(sys.argv[1])
    folder = Path(__file__).resolve().parents[2] / "kernels/list"
    most = measure(build, sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
    most = {name: ((registers + 7) // 8 * 8 if registers <= 248 else 255, shared) for name, (registers, shared) in most.items()}
    for stem, family in LISTS.items():
        def rewrite(match):
            row = dict(zip(MEMBERS[match[1]], (part.strip() for part in match[2].split(","))))
            if (name := name_of(family, row)) in most:
                row["registers"], row["shared_bytes"] = map(str, most.pop(name))
            return f"{match[1]}({', '.join(row.values())})"
        path = folder / f"{stem}.inc"
        path.write_text(re.sub(r"(KVCC_SHIP(?:_ATTENTION|_VECTOR\w*)?)\((\w+,[^)]*)\)", rewrite, path.read_text()))
    path = folder / "copy_pages.inc"
    path.write_text(re.sub(r"(KVCC_SHIP_COPY)\(\d+\)", rf"\1({most.pop('copy_pages__any')[0]})", path.read_text()))
    if most:
        sys.exit(f"measure_bars: rows that no list has: {sorted(most)}")


main()
