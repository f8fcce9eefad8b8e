"""Every field of a file format has an id of its own: in the tables of formats/spec that say since when."""
import re

import pytest

from support import SOURCE

SPEC = SOURCE / "formats/spec"
PAGES = ("codebook", "activations", "weights", "kernels", "cache-file", "cache", "cache-mma", "cache-vector", *("export-" + kind for kind in
         ("safetensors", "npz", "json", "gguf", "header", "vllm")))


def field_tables(page):
    """[(heads, rows)] of the page's tables of fields."""
    found, head = [], None
    for line in (SPEC / f"{page}.md").read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] if line.startswith("|") else None
        if cells is None:
            head = None
        elif head is None:
            head = cells
            found.append((cells, []))
        elif not set(line) <= set("|- "):
            found[-1][1].append(cells)
    return [(heads, rows) for heads, rows in found if "since" in heads]


def letters(page):
    return {row[-1][0] for _, rows in field_tables(page) for row in rows}


@pytest.mark.parametrize("page", PAGES)
def test_every_field_has_an_id_and_a_version(page):
    tables = field_tables(page)
    assert tables, "no table of fields"
    ids = []
    for heads, rows in tables:
        assert heads[-1] == "id" and ("required" in heads or "need" in heads or "present" in heads), heads
        for row in rows:
            assert len(row) == len(heads), row
            assert re.fullmatch(r"\d+(\.\d+)?", row[heads.index("since")]), row
            assert re.fullmatch(r"[A-Z]\d+", row[-1]), f"{page}.md: the row of {row[0]} needs an id that no other had"
        ids += [row[-1] for row in rows]
    assert len(set(ids)) == len(ids), f"{page}.md: ids given twice"
    assert len({id[0] for id in ids}) == 1


def test_no_two_pages_share_a_letter():
    all_letters = [letter for page in PAGES for letter in letters(page)]
    assert len(set(all_letters)) == len(all_letters) == len(PAGES)
