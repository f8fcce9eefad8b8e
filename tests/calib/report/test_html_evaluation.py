"""The page of kvcc eval --html in a real browser: the Pareto front is the front, lines are the document's numbers."""
import csv
import io
import json
import math
import re
import subprocess

import pytest
from browser import Browser
from pictures import compare
from support import BUILD

MAKE = BUILD / "tests/bin/make_report"
SCHEMES = ["int2", "int3", "int4", "nf3", "nf4", "kivi-2", "kivi-4", "quarot-3", "quarot-4", "kvquant-nuq3-1%", "kvcc-nuq2-1%-sink1", "kvcc-nuq3-1%-sink1",
           "kvcc-nuq4-1%-sink1", "kvarn-2", "turboquant-2.5", "turboquant-3"]
MODES = ["full", "pseudo-decode"]


def document():
    """As kvcc eval --json writes it, with numbers of no meaning that differ from each other."""
    results = [{"scheme": "fp", "nominal_bits": 16.0, "effective_bits": 16.0, "nll": 2.5, "perplexity": math.exp(2.5), "window_nll": [2.4, 2.6], "seconds": 1.0}]
    for m, mode in enumerate(MODES):
        for i, scheme in enumerate(SCHEMES):
            nominal = float(re.search(r"\d+(\.\d)?", scheme)[0])
            bits = nominal + 0.03 * ((7 * i) % 11)
            kl = math.exp(1.1 - 1.3 * bits + 0.5 * math.sin(5.0 * i) + 0.2 * m)
            results.append({
                "scheme": scheme, **({"codebook": f"/tmp/{scheme}.kvcb"} if "nuq" in scheme else {}), "needs_calibration": "nuq" in scheme, "mode": mode, "sink": 0, "tail": 0,
                "nominal_bits": nominal, "effective_bits": bits, "effective_bits_at": {"2048": bits + 0.2, "32768": bits, "131072": bits - 0.01},
                "nll": 2.5 + kl, "perplexity": math.exp(2.5 + kl), "dnll": kl, "dnll_se": kl / 20, "kl": kl, "kl_se": kl / 15, "kl_median": kl / 3, "kl_p90": 2 * kl,
                "kl_p99": 6 * kl, "kl_p999": 20 * kl, "top1_agreement": 1 / (1 + kl), "key_outlier_fraction": 0.01,
                "positions": {"begin": [1 + 128 * b for b in range(17)], "kl": [kl * (1 + (b + i) / 30) for b in range(16)], "dnll": [kl] * 16},
                "key_error": {"worst_percent": [0.1, 1, 5, 10, 50, 100], "magnitude_share": [0.5 / (1 + j + i % 5) for j in range(6)]},
                "repair": [{"percent": p, "kl_worst_exact": kl * (1 - 0.02 * p), "kl_rest_exact": kl * 0.05 * p} for p in (1, 5, 10)],
                "attention": {"queries": [255, 511, 1023, 2047], "static": [kl / 9, kl / 8, kl / 7, kl / 6], "accumulated": [kl / 5, kl / 4, kl / 3, kl / 2],
                              "kl_by_layer": [[kl * (1 + l + h) for h in range(4)] for l in range(6)], "relative_by_layer": [[kl * (1 + l * h) for h in range(4)] for l in range(6)]},
                "window_nll": [2.4 + kl, 2.6 + kl], "seconds": 3.0 + i})
    return {"schema_version": 1, "model": "/models/tiny", "dataset": {"name": "wikitext-2:evaluation", "sha256": "ab" * 32, "tokens": 245569}, "windows": 2, "seqlen": 2048,
            "effective_bits_context": 32768, "effective_bits_amortise": 1 << 20, "results": results}


def page(folder, source):
    (folder / "e.json").write_text(json.dumps(source))
    subprocess.run([MAKE, "evaluation", folder / "e.json", folder / "e.html"], check=True)
    return folder / "e.html"


def front(rows, measure="perplexity", bits=lambda row: row["effective_bits"]):
    """Rows that no other row beats in one of bits and measure without losing in the other."""
    return {row["scheme"] for row in rows if not any(
        bits(other) <= bits(row) and other[measure] <= row[measure] and (bits(other), other[measure]) != (bits(row), row[measure]) for other in rows)}


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def source():
    return document()


@pytest.fixture(scope="module")
def report(tmp_path_factory, source):
    return page(tmp_path_factory.mktemp("evaluation"), source)


def points(browser, card):
    """{name: label} of the points that a reader's focus can reach."""
    return dict(browser.evaluate(f"[...document.querySelectorAll('#{card} [data-name][tabindex=\"0\"]')].map((p) => [p.dataset.name, p.getAttribute('aria-label')])"))


def test_the_front_is_the_front(browser, report, source):
    browser.view(1280)
    browser.open(report)
    assert browser.errors == [] and len(browser.requests) == 1
    for mode in MODES:
        browser.click(f"input[name=mode][value='{mode}']")
        rows = [row for row in source["results"] if row.get("mode") == mode]
        for measure, name in (("perplexity", "Perplexity"), ("kl", "KL")):
            browser.click(f"input[name=measure][value={measure}]")
            labels = points(browser, "pareto")
            assert set(labels) == {row["scheme"] for row in rows}
            assert {scheme for scheme, label in labels.items() if "on the Pareto front" in label} == front(rows, measure)
            for row in rows:
                bits, value = re.search(rf", ([\d.]+) bits, {name} ([-\d.e]+)", labels[row["scheme"]]).groups()
                assert float(bits) == pytest.approx(row["effective_bits"], rel=1e-3) and float(value) == pytest.approx(row[measure], rel=1e-3)
        browser.click("input[name=measure][value=perplexity]")
    browser.click("input[name=context][value='2048']")
    row = source["results"][1]
    bits = re.search(r", ([\d.]+) bits", points(browser, "pareto")["int2"])[1]
    assert float(bits) == pytest.approx(row["effective_bits_at"]["2048"], rel=1e-3)
    assert browser.errors == []


def test_points_are_where_the_numbers_are(browser, report, source):
    browser.view(1280)
    browser.open(report)
    rows = {row["scheme"]: row for row in source["results"] if row.get("mode") == "full"}
    for axis, line in (("lin", lambda y: y), ("log", math.log)):
        browser.click(f"input[name=axis][value={axis}]")
        places = browser.evaluate("[...document.querySelectorAll('#pareto [data-name]')].map((p) => { const b = p.getBoundingClientRect(); return [p.dataset.name, b.x + b.width / 2, b.y + b.height / 2]; })")
        low, high = min(places, key=lambda p: rows[p[0]]["perplexity"]), max(places, key=lambda p: rows[p[0]]["perplexity"])
        left, right = min(places, key=lambda p: p[1]), max(places, key=lambda p: p[1])
        share = lambda value, a, b: (value - a) / (b - a)
        for name, x, y in places:
            wanted = share(*[line(rows[n]["perplexity"]) for n in (name, low[0], high[0])])
            assert share(y, low[2], high[2]) == pytest.approx(wanted, abs=0.01)
            wanted = share(*[rows[n]["effective_bits"] for n in (name, left[0], right[0])])
            assert share(x, left[1], right[1]) == pytest.approx(wanted, abs=0.01)


def test_lines_are_the_documents_numbers(browser, report, source):
    browser.view(1280)
    browser.open(report)
    rows = {row["scheme"]: row for row in source["results"] if row.get("mode") == "full"}
    got = {}
    for card, name in (("position", "kl-by-position"), ("magnitude", "magnitude-share"), ("repair", "kl-repair"), ("context", "attention-by-context"), ("attention", "attention"),
                       ("pareto", "pareto"), ("results", "results")):
        got[card] = list(csv.reader(io.StringIO(browser.downloads(lambda: browser.click(f"#{card} footer button"), f"{name}.csv"))))
    position = {}
    for scheme, x, y in got["position"][1:]:
        position.setdefault(scheme, []).append((float(x), float(y)))
    for scheme, row in rows.items():
        assert [y for _, y in position[scheme]] == pytest.approx(row["positions"]["kl"], rel=1e-8)
        assert position[scheme][0][0] == (1 + 128) / 2  # the middle of positions 1 to 128
        assert [float(y) for s, _, y in got["magnitude"] if s == scheme] == pytest.approx(row["key_error"]["magnitude_share"])
        assert [float(y) for s, _, y in got["repair"] if s == f"{scheme}, rest exact"] == pytest.approx([at["kl_rest_exact"] for at in row["repair"]])
        assert [float(y) for s, _, y in got["context"] if s == f"{scheme}, accumulated"] == pytest.approx(row["attention"]["accumulated"])
    assert len(got["attention"]) == 1 + len(rows) * 6 * 4 and len(got["results"]) == 1 + len(source["results"]) and len(got["pareto"]) == 1 + len(rows)
    # Eight are drawn at first; a box adds one, in a colour that no other line has.
    drawn = "[...document.querySelectorAll('#position > .chart ~ *, #position .swatches')].flatMap((u) => [...u.querySelectorAll('svg path')].map((p) => p.getAttribute('fill') + p.getAttribute('d')))"
    assert len(browser.evaluate(drawn)) == 8
    browser.click("#position .pick summary")
    browser.click("#position .pick input:not(:checked)")
    marks = browser.evaluate(drawn)
    assert len(marks) == len(set(marks)) == 9
    assert browser.errors == []


def test_a_theme_that_changes_is_followed(browser, report):
    browser.view(1280)
    browser.open(report)
    color = "getComputedStyle(document.querySelector('#attention .heat button')).backgroundColor"
    light = browser.evaluate(color)
    browser.click("input[name=mode][value=pseudo-decode]")
    browser.click("input[name=mode][value=full]")
    browser.view(1280, dark=True)
    assert browser.evaluate(color) != light
    browser.view(1280)
    assert browser.evaluate(color) == light


def test_keyboard_search_and_readers(browser, report):
    browser.view(1280)
    browser.open(report)
    nodes = browser.accessible()
    assert [role for role, name in nodes if role in ("button", "link", "radio", "searchbox", "combobox", "checkbox", "img", "image", "grid", "region") and not name.strip()] == []
    assert any("Pareto front: " in name for _, name in nodes)
    browser.evaluate("document.querySelector('#pareto [data-name=\"kivi-2\"]').focus()")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.dataset.name") not in (None, "kivi-2")
    browser.evaluate("document.querySelector('input[type=search]').focus()")
    browser.type("kvcc pseudo")
    assert browser.evaluate("document.querySelectorAll('#results tbody tr').length") == 3
    browser.click("#results thead th:nth-child(8) button")
    values = [float(x) for x in browser.evaluate("[...document.querySelectorAll('#results tbody tr')].map((r) => r.children[7].textContent)")]
    assert values == sorted(values) and len(values) == 3
    for card in ("pareto", "position", "magnitude", "repair", "context", "attention"):
        browser.click(f"#{card} footer summary")
        browser.wait(f"document.querySelectorAll('#{card} footer tbody tr').length > 0")
    assert browser.errors == []


def test_hostile_and_missing_numbers(browser, tmp_path, source):
    """Names stay text; null is "-" and is not drawn; measures that a run did not take leave no empty chart."""
    rows = [dict(row) for row in source["results"][:4]]
    hostile = "</script><img src=x onerror=\"document.title='run'\">"
    rows[1].update(scheme=hostile, codebook=f"/tmp/{hostile}.kvcb", dnll_se=None, kl_se=None)
    rows[2].update(perplexity=None, kl=None, nll=None)
    for row in rows:
        for name in ("positions", "repair", "attention", "key_error"):
            row.pop(name, None)
    browser.view(400)
    browser.open(page(tmp_path, {**source, "model": f"/m/{hostile}", "results": rows}))
    assert browser.evaluate("document.images.length") == 0 and hostile in browser.evaluate("document.body.textContent")
    assert len(points(browser, "pareto")) == 2
    assert browser.evaluate("[...document.querySelectorAll('.card')].map((c) => c.id)") == ["pareto", "results", "provenance"]
    assert not browser.evaluate("/NaN|undefined|null|Infinity/.test(document.body.innerText)")
    rows[3].update(scheme="=1+1")  # a spreadsheet would compute it
    browser.open(page(tmp_path, {**source, "results": rows}))
    got = list(csv.reader(io.StringIO(browser.downloads(lambda: browser.click("#results footer button"), "results.csv"))))
    assert {row[0] for row in got[1:]} == {"fp", rows[2]["scheme"], hostile, "'=1+1"}
    browser.open(page(tmp_path, {**source, "results": rows[:1]}))  # full precision alone
    assert browser.errors == [] and browser.evaluate("document.querySelectorAll('#results tbody tr').length") == 1
    assert not browser.evaluate("/NaN|undefined|null|Infinity/.test(document.body.innerText)")


def test_what_eviction_kept(browser, tmp_path, source):
    rows = [dict(row) for row in source["results"][:4]]
    alone = {**rows[1], "scheme": "fp", "eviction": "snapkv:64", "kept": 0.37}
    rows[1:] = [alone, *({**row, "eviction": "snapkv:64", "kept": 0.37} for row in rows[1:])]
    browser.open(page(tmp_path, {**source, "results": rows}))
    got = list(csv.reader(io.StringIO(browser.downloads(lambda: browser.click("#results footer button"), "results.csv"))))
    eviction, kept = got[0].index("eviction"), got[0].index("kept")
    assert [(row[eviction], row[kept]) for row in got[1:] if row[kept]] == [("snapkv:64", "0.37")] * 4
    assert browser.evaluate("[...document.querySelectorAll('#results tbody td')].filter((c) => c.textContent === '37 %').length") == 4
    assert browser.errors == []


def test_answers_of_tasks(browser, tmp_path):
    """The document of kvcc eval --task has a page of its own; what is not scored says so."""
    def row(scheme, score, **more):
        tasks = [{"task": "passkey:512", "metric": "exact match", "samples": 10, "scored": 10, "score": score, "score_se": 0.1, "seconds": 2.0},
                 {"task": "ifeval", "metric": "all instructions followed (strict)", "samples": 4, "scored": 0, "score": None, "score_se": None, "seconds": 1.0,
                  "further": [{"metric": "instructions followed (loose)", "score": score / 2}]}]
        return {"scheme": scheme, **more, "tasks": tasks}
    hostile = "<img src=x onerror=\"document.title='run'\">"
    document = {"schema_version": 1, "model": "/models/tiny", "seed": 7, "mode": "prefill-exact",
                "results": [row("fp", 0.9), row("int2", 0.5, sink=1, tail=8), row(hostile, 0.25, codebook=f"/tmp/{hostile}", sink=0, tail=0)]}
    for width in (1280, 400):
        browser.view(width)
        browser.open(page(tmp_path, document))
        assert browser.errors == [] and browser.evaluate("document.images.length") == 0
        assert browser.evaluate("document.documentElement.scrollWidth") == width
    cells = browser.evaluate("[...document.querySelectorAll('#tasks tbody tr')].map((r) => [...r.children].map((c) => c.textContent))")
    assert cells[0] == ["fp", "-", "0.9 ± 0.1", "not scored", "0.45"] and cells[1] == ["int2", "1 + 8", "0.5 ± 0.1", "not scored", "0.25"]
    assert cells[2][0] == hostile and len(cells) == 3
    got = list(csv.reader(io.StringIO(browser.downloads(lambda: browser.click("#tasks footer button"), "tasks.csv"))))
    assert got[2][0] == "int2" and float(got[2][2]) == 0.5 and got[2][4] == ""
    assert not browser.evaluate("/NaN|undefined|null|Infinity/.test(document.body.innerText)")
    assert "each other exactly" in browser.evaluate("document.getElementById('provenance').textContent")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_looks_as_kept(browser, report, width, theme):
    browser.view(width, dark=theme == "dark")
    browser.open(report)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    compare(browser.picture(), f"evaluation-{width}-{theme}")
