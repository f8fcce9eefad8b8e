"""results.py: what RESULTS.md says is what the documents of kvcc eval hold."""
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import results

SCRIPT = Path(results.__file__)


def row(scheme, mode, bits, kl, seconds=3.0, **more):
    nll = [2.5 + kl, 2.7 + kl]
    return {"scheme": scheme, "mode": mode, "needs_calibration": False, "nominal_bits": 2.0, "sink": 0, "tail": 128, "effective_bits": bits,
            "effective_bits_at": {"2048": bits + 0.5, "32768": bits, "131072": bits - 0.01}, "perplexity": 12 + kl, "window_nll": nll, "kl": kl, "kl_se": 0.01,
            "top1_agreement": 1 - kl / 4, "key_error": {"worst_percent": [0.1, 1, 5], "magnitude_share": [0.1, 0.2, 0.3]}, "seconds": seconds, **more}


def document(*rows, seconds=2.0, windows=2):
    return {"dataset": {"name": "text", "sha256": "ab", "tokens": 9}, "windows": windows, "seqlen": 64, "exact_tokens": "as each scheme says",
            "results": [{"scheme": "fp", "perplexity": 12.0, "seconds": seconds, "window_nll": [2.5, 2.7]}, *rows]}


@pytest.fixture
def path(tmp_path):
    def write(name, source):
        (tmp_path / name).write_text(json.dumps(source))
        return str(tmp_path / name)
    return write


def both(scheme, bits, kl, **more):
    return [row(scheme, mode, bits, kl, **more) for mode in results.MODES]


def cells(page, scheme):
    line = next(line for line in page.splitlines() if line.startswith(f"| {scheme} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_tables_and_orderings(path):
    """KVarN is better than KIVI here, Kitty worse than KIVI, QuaRot as good within the noise."""
    rows = both("kivi-2-g128", 2.3, 0.5) + both("kvarn-2", 2.4, 0.2) + both("kitty", 2.5, 0.8) + both("quarot-2", 2.2, 0.201, seconds=3.2)
    page = results.page(results.Document([path("a.json", document(*rows))]), None)
    assert cells(page, "kvarn-2") == ["kvarn-2", "no", "2", "2.900", "2.400", "2.390", "0+128", "12.2000", "12.2000", "0.2000 ±0.0100", "0.2000 ±0.0100", "0.9500", "0.9500",
                                      "0.200", "1.50", "1.50"]
    said = {found[1]: found[2] for found in re.finditer(r"- (\S+ \([\d.]+ bits\) better than \S+) .*?: \*\*(.*?)\*\*", page)}
    assert said["kvarn-2 (2.40 bits) better than kivi-2-g128"] == "reproduced"
    assert said["kitty (2.50 bits) better than kivi-2-g128"] == "not reproduced"
    assert said["kvarn-2 (2.40 bits) better than quarot-2"] == "undecided"
    assert "1.60 at most (quarot-2" in page and "above 1.5: quarot-2" in page
    counts = [int(n) for n in re.search(r"(\d+) reproduced, (\d+) not reproduced, (\d+) undecided", page).groups()]
    assert counts == [list(said_all).count(True) for said_all in
                      ([f"**{word}**" in line for line in page.splitlines()] for word in ("reproduced", "not reproduced", "undecided"))]


def test_later_documents_add_and_replace(path):
    first = path("a.json", document(*both("kivi-2", 2.3, 0.5), *both("qjl", 3.0, 0.9)))
    second = path("b.json", document(*both("qjl", 3.0, 0.4, seconds=8.0), seconds=4.0))
    page = results.page(results.Document([first, second]), None)
    assert cells(page, "qjl")[9] == "0.4000 ±0.0100" and cells(page, "qjl")[-1] == "2.00" and cells(page, "kivi-2")[-1] == "1.50"
    full, pseudo = (path(f"{mode}.json", document(row("kivi-2", mode, 2.3, kl))) for mode, kl in zip(results.MODES, (0.5, 0.3)))
    assert cells(results.page(results.Document([full, pseudo]), None), "kivi-2")[9:11] == ["0.5000 ±0.0100", "0.3000 ±0.0100"]
    with pytest.raises(SystemExit, match="other windows"):
        results.Document([first, path("c.json", document(windows=3))])
    with pytest.raises(SystemExit, match="twice"):
        results.Document([path("d.json", document(*both("kivi-2", 2.3, 0.5), *both("kivi-2", 2.3, 0.5)))])


def test_nearest_the_front(path):
    rows = [row(name, "pseudo-decode", bits, kl, **more) for name, bits, kl, more in
            (("a", 2.0, 1.0, {}), ("b", 2.5, 1.5, {}), ("c", 3.0, 0.5, {"codebook": "/t/c.kvcb"}), ("d", 3.5, 0.55, {}), ("e", 4.0, 0.1, {}), ("wide", 6.0, 0.001, {}))]
    done = subprocess.run([sys.executable, SCRIPT, path("a.json", document(*rows)), "--nearest", "4"], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["--scheme", "e", "--codebook", "/t/c.kvcb", "--scheme", "a", "--scheme", "d"]


def test_every_scheme_of_an_ordering_is_one():
    from support import kvcc_json
    names = {name for _, _, schemes, _ in results.ORDERINGS for name in schemes}
    assert len(names) > 25
    for scheme in kvcc_json("schemes", *sorted(names))["schemes"]:
        assert scheme["name"].removesuffix(results.DEFAULTS) in names
