"""Errors sown into the device text, one at a time, which the emulated tests must find.

Each mutation replaces one text of a file of kernels/device. The file's folder is copied aside and changed there, the
family's test is built against the copy, for the rows of one head dimension, and must fail: under ThreadSanitizer where
only it can see the error. A text that is not found exactly once is an error: the mutation must follow the code.
"""

import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

SOURCE = pathlib.Path(os.environ["KVCC_SOURCE"])
BUILD = pathlib.Path(os.environ["KVCC_BUILD"])
HERE = SOURCE / "tests/kernels/emulated"


@dataclasses.dataclass(frozen=True)
class Mutation:
    name: str
    file: str  # in kernels/device
    old: str
    new: str
    test: str  # source of the test, without _test.cc
    head_dim: int  # of the rows that are built
    tsan: bool = False  # only ThreadSanitizer sees it
    seconds: int = 900  # longer is found too: of errors that make a loop near endless


BARRIER = "if (k > 0) sync_block();"

DIFFERS = "const BandRecords<Differs::kBands, kHoldsRecords<Config, kTiles>> these(records, 2 * m, at.lane);\n"

MUTATIONS = [
    # -- barriers
    Mutation("no block barriers between phases", "launch.cuh", BARRIER, "", "pack", 64),
    Mutation("no barrier between the last two phases", "launch.cuh", BARRIER,
             "if (k > 0 && k + 1 < count) sync_block();", "dequantise", 64, tsan=True),
    Mutation("no barrier after value_mix's tables", "mma_value_mix.cuh",
             "    sync_block();\n\n    Warp warp;", "\n    Warp warp;", "value_mix", 64),
    Mutation("no barrier before warps are merged", "mma_merge.cuh", "  sync_block();\n  float factor", "  float factor",
             "value_mix", 64),
    Mutation("no barrier between merged warps", "mma_merge.cuh", "    }\n    sync_block();\n  }\n}", "    }\n  }\n}",
             "value_mix", 64),
    Mutation("histogram not atomic", "common.cuh", "  atomic_add(counter, 1u);", "  ++*counter;", "pack", 64, tsan=True),
    Mutation("barrier of some warps only", "mma_merge.cuh", "    }\n    sync_block();\n  }\n}",
             "    }\n    if (at.warp != 3) sync_block();\n  }\n}", "value_mix", 64),
    Mutation("no barrier before weights of other warps are read", "attention_block.cuh",
             "    sync_block();\n    if (i + 1 < shared.work.part.page_end) {", "    if (i + 1 < shared.work.part.page_end) {",
             "attention_wide", 192),
    Mutation("no barrier before other warps' greatest scores are read", "attention_block.cuh",
             "    sync_block();\n    join_warps(most,", "    join_warps(most,", "attention_wide", 256, tsan=True),
    Mutation("values' outliers overwritten by the next keys'", "attention_block.cuh",
             "    if constexpr (Keys::kSparse && Values::kSparse) sync_block();", "", "attention_wide", 256),
    Mutation("queries turned in the buffer that is read", "mma_key_scores_block.cuh", "      warp.buffer ^= 1u;\n", "",
             "key_scores", 192),
    # -- lanes
    Mutation("collective reached by some lanes", "mma_merge.cuh", "      const float total = sum_over_rows(mix.total[j][q]);",
             "      const float total = at.row == 0 ? sum_over_rows(mix.total[j][q]) : 0.0f;", "value_mix", 64),
    Mutation("sum over half of the rows", "mma_values.cuh",
             "for (uint32_t lanes = 4; lanes < 32; lanes *= 2) x = add(", "for (uint32_t lanes = 4; lanes < 16; lanes *= 2) x = add(",
             "value_mix", 64),
    Mutation("records of a class counted from its second token", "mma_records.cuh", "for (int i = 8 * thread; i < 8 * thread + 8; ++i) {",
             "for (int i = 8 * thread + 1; i < 8 * thread + 8; ++i) {", "pack", 64),
    # -- codes
    Mutation("halves of a pair of levels swapped", "mma_common.cuh",
             "row[i] = pack_half2(levels[at % kCodes], levels[kTable == Table::pairs ? at / kCodes : at]);",
             "row[i] = pack_half2(levels[kTable == Table::pairs ? at / kCodes : at], levels[at % kCodes]);",
             "key_scores", 64),
    Mutation("halves of the weights swapped", "mma_values.cuh",
             "transpose_8x8(pack_half2(weight[j][2 * i], weight[j][2 * i + 1]))",
             "transpose_8x8(pack_half2(weight[j][2 * i + 1], weight[j][2 * i]))", "value_mix", 64),
    Mutation("codes of a pair swapped when packed", "mma_page.cuh", "return (both & 255u) | both >> 8 << kBits;",
             "return both >> 8 | (both & 255u) << kBits;", "pack", 64),
    Mutation("codes of a pair swapped when decoded", "mma_dequantise.cuh",
             "const float low = shared.levels[both & ((1u << kBits) - 1u)], high = shared.levels[both >> kBits];",
             "const float high = shared.levels[both & ((1u << kBits) - 1u)], low = shared.levels[both >> kBits];",
             "dequantise", 64),
    Mutation("an earlier token's codes forgotten", "mma_pack.cuh", "static_cast<uint32_t>(at.low), thread);",
             "static_cast<uint32_t>(at.low - 1), thread);", "pack", 64),
    Mutation("a stale scale: of the band's first token", "mma_common.cuh", "range[band] = from[8 * band + row];",
             "range[band] = from[8 * band];", "value_mix", 64),
    Mutation("a stale scale: of the token before", "mma_dequantise.cuh",
             "shared.affine[i * KVCC_PAGE_TOKENS + thread] =", "shared.affine[i * KVCC_PAGE_TOKENS + (thread + 1) % 64] =",
             "dequantise", 128),
    # -- pages, slots, positions
    Mutation("page table off by one", "mma_common.cuh", "c.page_table[slot] : static_cast<int32_t>(slot)",
             "c.page_table[slot ^ 1] : static_cast<int32_t>(slot)", "key_scores", 64),
    Mutation("page table off by one when packing", "common.cuh", "c.page_table != nullptr ? c.page_table[slot] : slot",
             "c.page_table != nullptr ? c.page_table[slot ^ 1] : slot", "pack", 64),
    Mutation("one slot too many is visible", "mma_common.cuh",
             "at.packed_end - page * KVCC_PAGE_TOKENS};", "at.packed_end - page * KVCC_PAGE_TOKENS + 1};", "key_scores", 64),
    Mutation("residual row off by one", "common.cuh", "return c.sink + (p - c.sink) % c.residual;",
             "return c.sink + (p - c.sink + 1) % c.residual;", "attention_narrow", 80),
    Mutation("window off by one", "mma_common.cuh", "window > 0 ? larger(length - window, 0) : 0;",
             "window > 0 ? larger(length - window + 1, 0) : 0;", "attention_narrow", 80),
    Mutation("wrong base row", "mma_key_scores.cuh", "const int32_t block = i + p.cache.sink / KVCC_ROPE_BLOCK;",
             "const int32_t block = i + 1 + p.cache.sink / KVCC_ROPE_BLOCK;", "key_scores", 64),
    Mutation("relative angles without the sinks", "mma_keys.cuh", "const int32_t first = c.sink % KVCC_ROPE_BLOCK;",
             "const int32_t first = 0;", "key_scores", 64),
    Mutation("queries turned the wrong way", "mma_keys.cuh", "-multiply(x, n[i]));", "multiply(x, n[i]));", "key_scores", 64),
    Mutation("sequences' pages the same without a table", "mma_common.cuh",
             "c.page_table[slot] : static_cast<int32_t>(slot)", "c.page_table[slot] : i", "key_scores", 64),
    Mutation("residual ring of two tiles at most", "mma_common.cuh", "at.ring_tiles = length > ring ? larger((length + KVCC_ROPE_BLOCK - 1) / KVCC_ROPE_BLOCK - at.ring_first, 0) : 0;",
             "at.ring_tiles = length > ring ? smaller((length + KVCC_ROPE_BLOCK - 1) / KVCC_ROPE_BLOCK - at.ring_first, 2) : 0;",
             "key_scores", 64),
    Mutation("offset of a base row in 16 bits", "mma_keys.cuh",
             "rope.base_cosine + static_cast<int64_t>(block) * kHalfR", "rope.base_cosine + static_cast<int16_t>(block * kHalfR)",
             "key_scores", 64),
    Mutation("offset of a base row in 16 bits, of sines", "mma_keys.cuh",
             "rope.base_sine + static_cast<int64_t>(block) * kHalfR", "rope.base_sine + static_cast<int16_t>(block * kHalfR)",
             "attention_narrow", 80),
    # -- records
    Mutation("a list that is too short is written", "mma_records.cuh", "return shared.end[kLast] + shared.before",
             "return true || shared.end[kLast] + shared.before", "pack", 64),
    Mutation("class ends of records that had no room", "mma_records.cuh", "if (all <= capacity) end +=", "end +=", "pack", 64),
    Mutation("tiles that had room packed twice", "mma_pack.cuh", "if (p.repeat_above > 0 && ", "if (false && ", "pack", 64),
    Mutation("tile that its list just held packed twice", "mma_pack.cuh", "<= static_cast<uint32_t>(p.repeat_above)",
             "< static_cast<uint32_t>(p.repeat_above)", "pack", 64),
    Mutation("new records over earlier ones", "mma_records.cuh", "shared.end[kClasses - 1u] + shared.before[thread / 8]",
             "shared.before[thread / 8]", "pack", 64),
    Mutation("wrong class end", "mma_patch.cuh", "return band % 2 == 0 ? both >> 16 : both & 0xffffu;",
             "return band % 2 == 1 ? both >> 16 : both & 0xffffu;", "key_scores", 64),
    Mutation("no clamp to the capacity when read", "mma_patch.cuh", "end = end < from.capacity ? end : from.capacity;", "", "key_scores", 64),
    Mutation("records past a warp's lanes left out", "mma_patch.cuh", "if (!many()) return;", "return;", "key_scores", 64),
    Mutation("records past the first band's end in the first band", "mma_patch.cuh", "sum += i >= from.end(band + b) ? 1u : 0u;", "",
             "key_scores", 64),
    Mutation("records of no channel taken for some", "mma_patch.cuh", "return D == 256 || (record", "return true || (record", "key_scores", 64),
    Mutation("infinite zero-point", "mma_patch.cuh", "magnitude < 0x7bffu ? magnitude : 0x7bffu", "magnitude", "key_scores", 64),
    # -- patches
    Mutation("no warp barrier before the keys' patch is filled again", "mma_key_outliers.cuh",
             "      sync_warp();\n      if (!Tables::kChannel || many)", "      if (!Tables::kChannel || many)",
             "key_scores", 64, tsan=True),
    Mutation("no warp barrier between zero-points and outliers", "mma_key_outliers.cuh", "      sync_warp();\n      used = kNone;",
             "      used = kNone;", "key_scores", 64, tsan=True),
    Mutation("no warp barrier before the keys' patch is read", "mma_key_outliers.cuh", "many = these.many();\n      sync_warp();",
             "many = these.many();", "key_scores", 64, tsan=True),
    Mutation("keys' patch not restored", "mma_key_outliers.cuh",
             "zeros.number(used & 0xffffu) = static_cast<uint16_t>(used >> 16);", ";", "key_scores", 64),
    Mutation("keys' patch restored for a warp's records only", "mma_key_outliers.cuh", "many = these.many();", "many = false;",
             "key_scores", 64),
    Mutation("outlier in the wrong row of its band", "mma_key_outliers.cuh", "(record >> 8 & 7u) * Zeros::place(0, 4, 0, 0)",
             "(record >> 8 & 3u) * Zeros::place(0, 4, 0, 0)", "key_scores", 64),
    Mutation("outlier in the other band", "mma_key_outliers.cuh", "band * Zeros::place(0, 0, 1, 0)",
             "(band ^ 1u) * Zeros::place(0, 0, 1, 0)", "key_scores", 64),
    Mutation("outlier in the other half of its pair", "mma_keys.cuh", "static_cast<uint32_t>(channel % 2)", "static_cast<uint32_t>(channel % 2 ^ 1)",
             "key_scores", 64),
    Mutation("outlier at its rotary partner", "mma_keys.cuh", "const int second = apart ? octet / larger(kTurned, 1) : octet % 2;",
             "const int second = apart ? 1 - octet / larger(kTurned, 1) : octet % 2;", "key_scores", 64),
    Mutation("zero-point of the wrong sign of a level", "mma_key_outliers.cuh", "fma_half2(negate_half2(level), scale,",
             "fma_half2(level, scale,", "key_scores", 64),
    Mutation("no warp barrier before the values' patch is emptied", "mma_value_outliers.cuh", DIFFERS + "    sync_warp();", DIFFERS,
             "value_mix", 64, tsan=True),
    Mutation("no warp barrier before the values' patch is read", "mma_value_outliers.cuh", "many = these.many();\n    sync_warp();",
             "many = these.many();", "value_mix", 64, tsan=True),
    Mutation("values' patch not emptied", "mma_value_outliers.cuh", "differs.number(used) = 0;", ";", "value_mix", 64),
    Mutation("outlier of values at the other token of its pair", "mma_value_outliers.cuh", "word, token % 2u)", "word, token % 2u ^ 1u)",
             "value_mix", 64),
    Mutation("outlier of values in the wrong octet", "mma_value_outliers.cuh", "word = channel / 8u % 2u + token / 8u % 2u * 2u;",
             "word = token / 8u % 2u + channel / 8u % 2u * 2u;", "value_mix", 64),
    Mutation("differences added by half", "mma_value_outliers.cuh", "multiply_half2(b[i / 2][i % 2], kTwo)", "b[i / 2][i % 2]", "value_mix", 64),
    Mutation("outliers' sums left in their old unit", "mma_value_mix.cuh",
             "    if constexpr (kPages && Outliers::kOwn) shared.outliers[at.warp].scale(factor, at.lane);\n", "", "value_mix", 80),
    Mutation("outliers' sums of the warp before", "mma_value_outliers.cuh", "return of_warp[kOwn ? warp : 0u];",
             "return of_warp[kOwn ? warp & 2u : 0u];", "value_mix", 80),
    Mutation("ties taken once too often", "select_token.cuh", "lower_seen++ < lower.rank[0];",
             "lower_seen++ <= lower.rank[0];", "pack", 64),
    Mutation("lists copied to the source's places", "copy_pages.cuh", "list, source_list, target_list}",
             "list, source_list, source_list}", "dequantise", 64),
    # -- what the warps of a block share out
    Mutation("words of the run before", "mma_block_codes.cuh", "const uint32_t first = run * kHeld;", "const uint32_t first = run / 2u * kHeld;",
             "key_scores", 192),
    Mutation("every warp's first channels", "mma_block_codes.cuh", "band * kBandPairs + kQuarter * kOctets + octet",
             "band * kBandPairs + kQuarter / 2 * kOctets + octet", "value_mix", 256),
    Mutation("one warp's greatest score left out", "mma_block.cuh", "out[j][q] = w == 0 ? both.x[q] :",
             "out[j][q] = w < 2 ? both.x[q] :", "attention_wide", 192),
    Mutation("only the first warp may ask for a new reference", "mma_block.cuh",
             "return all.word[0] | all.word[1] | all.word[2] | all.word[3];", "return all.word[0];", "attention_wide", 192),
    Mutation("outliers' weights without their doubling", "attention_block.cuh", "add(score[e / 4][e % 4], score[e / 4][e % 4])",
             "score[e / 4][e % 4]", "attention_wide", 192),
    Mutation("zero-points in another warp's run", "mma_block_outliers.cuh", "(channel, record, band) + at.warp * to.kRun",
             "(channel, record, band) + (at.warp ^ 1u) * to.kRun", "attention_wide", 256),
    # -- softmax and merges
    Mutation("no new unit when the greatest score rises", "attention.cuh", "    if (ballot(rises) != 0) [[unlikely]] {",
             "    if (false) {", "attention_narrow", 80),
    Mutation("a split's weight missing from its sum", "attention.cuh",
             "sum = fused_multiply_add(from[channel], exp2_approximate(add(from[D], -reference)), sum);",
             "sum = add(from[channel], sum);", "attention_narrow", 80),
    Mutation("last split left out", "mma_value_mix.cuh", "for (int32_t split = 1; split < p.splits; ++split) sum",
             "for (int32_t split = 1; split < p.splits - 1; ++split) sum", "value_mix", 64),
    Mutation("a warp's weight missing from the total", "mma_merge.cuh",
             "out.total = fused_multiply_add(totals.total[w][query], factor, out.total);",
             "out.total = add(totals.total[w][query], out.total);", "attention_narrow", 80),
]

# A few for every run of the tests; test_full_mutations.py has all.
SAMPLE = [
    "no warp barrier before the keys' patch is filled again",
    "page table off by one",
    "a list that is too short is written",
    "a stale scale: of the token before",
]


def compile_command(source, tsan):
    """The compiler and its options for a test of this folder, as CMake runs it."""
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    for entry in entries:
        if entry["file"] == str(HERE / f"{source}_test.cc") and ("-fsanitize=thread" in entry["command"]) == tsan:
            words = shlex.split(entry["command"])
            del words[words.index("-o"):words.index("-o") + 2]
            del words[words.index("-c"):words.index("-c") + 2]
            return words
    raise RuntimeError(f"{BUILD}/compile_commands.json: no command for {source}_test.cc, tsan={tsan}")


def build_and_run(mutated, source, head_dim, tsan, folder, seconds=900):
    """Exit code and output of the test of `source`, with the headers of `mutated` before the tree's own."""
    program = folder / "test"
    compiling = compile_command(source, tsan)
    at = next(i for i, word in enumerate(compiling) if word.startswith(("-I", "-D", "-O", "-W", "-f", "-g", "-std")))
    compiling[at:at] = [f"-I{mutated}", f"-DKVCC_ONLY_HEAD_DIM={head_dim}"]
    compiling += ["-c", str(HERE / f"{source}_test.cc"), "-o", str(folder / "test.o")]
    done = subprocess.run(compiling, capture_output=True, text=True, cwd=BUILD)
    if done.returncode != 0:
        raise RuntimeError(f"{source}: does not compile\n{done.stderr[-4000:]}")
    names = ("emulator_tsan" if tsan else "kernels_emulator", "kernels_reference", "formats_codec", "formats_core")
    libraries = [str(BUILD / f"lib/libkvcc_{name}.a") for name in names]
    linking = ["c++", *(["-fsanitize=thread"] if tsan else []), str(folder / "test.o"), *libraries, "-lgtest", "-lgtest_main", "-lfmt", "-lcrypto", "-pthread", "-o", str(program)]
    subprocess.run(linking, check=True, capture_output=True, text=True)
    command = [str(program), "--gtest_brief=1"]
    if tsan and subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0:
        command = ["setarch", "-R", *command]
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, env=environment)
    except subprocess.TimeoutExpired:
        return 124, "timed out"
    return done.returncode, done.stdout + done.stderr


def run_mutation(mutation):
    """As build_and_run, of the mutated text."""
    device = SOURCE / "kernels/device"
    text = (device / mutation.file).read_text()
    found = text.count(mutation.old)
    if found != 1:
        raise RuntimeError(f"'{mutation.name}' no longer applies: {mutation.file} has its text {found} times, not once")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        copy = folder / "tree/kernels/device"
        shutil.copytree(device, copy)
        (copy / mutation.file).write_text(text.replace(mutation.old, mutation.new))
        return build_and_run(folder / "tree", mutation.test, mutation.head_dim, mutation.tsan, folder,
                             mutation.seconds)


def run_unmutated(test, head_dim, tsan):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(SOURCE / "kernels/device", folder / "tree/kernels/device")
        return build_and_run(folder / "tree", test, head_dim, tsan, folder)
