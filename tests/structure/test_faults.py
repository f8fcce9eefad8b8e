"""Every fault of FAULTS.md has a test whose name starts with its number, such as test_F01_… or TEST(Fit, F32…)."""
import re
from collections import defaultdict

import pytest

from support import SOURCE

LIST = SOURCE / "tests/structure/faults.txt"
DESIGN = SOURCE / "../shared/design/FAULTS.md"
PYTHON = re.compile(r"^ *def test_((?:F\d\d_?)+)", re.M)
GTEST = re.compile(r"^TEST(?:_F|_P)?\((?:((?:F\d\d_?)+)\w*, \w+|\w+, ((?:F\d\d_?)+)\w*)\)|^ *\{\"((?:F\d\d_?)+)\w*\",$", re.M)


def listed():
    """{number: why it has no test, or ""}"""
    lines = [line.split(" ", 1) for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return {number: why[0].strip() if why else "" for number, *why in lines}


def numbers_in(folder):
    found = defaultdict(list)
    for path in sorted(folder.rglob("*")):
        pattern = {".py": PYTHON, ".cc": GTEST}.get(path.suffix)
        for match in pattern.finditer(path.read_text()) if pattern else ():
            for number in re.findall(r"F\d\d", "".join(filter(None, match.groups()))):
                found[number].append(path)
    return found


def test_every_fault_has_a_test():
    wanted, found = listed(), numbers_in(SOURCE / "tests")
    without = [number for number, why in wanted.items() if not why and number not in found]
    assert without == [], "no test has a name that starts with " + ", ".join(without)
    stale = [number for number, why in wanted.items() if why and number in found]
    assert stale == [], f"{LIST.name} says that they have no subject yet, and they have tests: {stale}"
    unknown = {number: paths for number, paths in found.items() if number not in wanted}
    assert unknown == {}, f"not in {LIST.name}"


def test_the_list_is_the_designs():
    if not DESIGN.exists():
        pytest.skip(f"SKIPPED: no design at {DESIGN}")
    assert list(listed()) == re.findall(r"^- \*\*(F\d\d)\*\*", DESIGN.read_text(), re.M)


def test_what_counts_as_a_test(tmp_path):
    (tmp_path / "a_test.cc").write_text('TEST(Fit, F32ConstantChannels) {\nTEST_F(A, F06_Cut) {\nTEST(F63_Archs, Are) {\n'
                                        '  {"F55FutureVersion",\n// F01: no test\nTEST(Fit, SeeF03) {\n')
    (tmp_path / "test_b.py").write_text('def test_F36_F25_two():\n    pass  # F07\ndef test_of_F09():\nclass T:\n    def test_F41_in_a_class(self):\n')
    assert sorted(numbers_in(tmp_path)) == ["F06", "F25", "F32", "F36", "F41", "F55", "F63"]
