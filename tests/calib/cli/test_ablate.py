"""kvcc ablate: its numbers are those of collect, fit and eval by themselves; what is done is kept; the page holds the document."""
import json
import re
import shutil

import pytest

from browser import Browser
from support import kvcc, kvcc_json, random_ids, tiny_llama

SCHEMES = ["kvcc-nuq3-1%-sink1", "kvquant-nuq2-1%"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("ablate é")
    tiny_llama(root / "model", num_hidden_layers=2)
    for i, name in enumerate(("a", "b", "e", "f")):
        random_ids(root / f"{name}.npy", 1, 900, seed=i, vocab=(256, 90, 256, 90)[i])
        import numpy as np
        np.save(root / f"{name}.npy", np.load(root / f"{name}.npy")[0])
    return root


def options(place, out="out", samples="2,3", seqlens="24,40", seeds="0,7"):
    return ["ablate", place / "model", "-o", place / out, "--dataset", place / "a.npy", "--domain", place / "b.npy", "--samples", samples, "--seqlen", seqlens,
            "--seeds", seeds, "--eval-dataset", place / "e.npy", "--eval-dataset", place / "f.npy", "--windows", 2, "--eval-seqlen", 32, *[w for s in SCHEMES for w in ("--scheme", s)]]


@pytest.fixture(scope="module")
def document(place):
    return kvcc_json(*options(place), "--html", place / "page.html", "--keep-activations")


def test_a_mistyped_name_of_the_page_harms_nothing(place):
    config = place / "model" / "config.json"
    before = config.read_bytes()
    assert f"{config}: is there and no earlier result of --html" in kvcc(*options(place, out="none"), "--html", config, code=3)[1]
    assert config.read_bytes() == before and not (place / "none").exists()


def test_points_are_the_axes(document):
    points = [(p["samples"], p["seqlen"], p["dataset"], p["seed"], tuple(p["axes"])) for p in document["points"] if p["scheme"] == SCHEMES[0]]
    assert sorted(points) == sorted([(3, 40, "a.npy", 0, ("samples", "seqlen", "domain", "seed")), (2, 40, "a.npy", 0, ("samples",)),
                                     (3, 24, "a.npy", 0, ("seqlen",)), (3, 40, "b.npy", 0, ("domain",)), (3, 40, "a.npy", 7, ("seed",))])
    assert len(document["points"]) == 2 * len(points) and document["schemes"] == SCHEMES
    assert [e["dataset"] for e in document["evaluations"]] == ["e.npy", "f.npy"]


def test_numbers_are_those_of_the_verbs_by_themselves(place, document):
    """Every point again by collect and fit: the same artifact; eval of all: the same rows; diff: the same distances."""
    books = {}
    for number, point in enumerate(p for p in document["points"] if p["scheme"] == SCHEMES[0]):
        acts = place / f"alone{number}.acts"
        kvcc("collect", place / "model", "-o", acts, "--dataset", place / point["dataset"], "--samples", point["samples"], "--seqlen", point["seqlen"], "--seed", point["seed"])
        fits = kvcc_json("fit", acts, *[w for s in SCHEMES for w in ("--scheme", s)], "-o", place / f"alone{number}")["results"]
        for fit in fits:
            same = [p for p in document["points"] if p["scheme"] == fit["scheme"] and all(p[k] == point[k] for k in ("samples", "seqlen", "dataset", "seed"))]
            assert len(same) == 1 and same[0]["content_sha256"] == fit["content_sha256"], point
            books[same[0]["codebook"]] = fit["output"]
    for name in ("e.npy", "f.npy"):
        alone = kvcc_json("eval", place / "model", "--dataset", place / name, "--windows", 2, "--seqlen", 32, *[w for b in books.values() for w in ("--codebook", b)])
        rows = {row["codebook"]: row for row in alone["results"] if "codebook" in row}
        for point in document["points"]:
            mine, row = next(r for r in point["results"] if r["dataset"] == name), rows[books[point["codebook"]]]
            assert {k: v for k, v in mine.items() if k != "dataset"} == {k: row[k] for k in mine if k != "dataset"}
        full = next(e for e in document["evaluations"] if e["dataset"] == name)
        assert full["perplexity"] == alone["results"][0]["perplexity"] and full["windows"] == 2
    pair = next(p for p in document["seeds"] if p["scheme"] == SCHEMES[1])
    a, b = (next(p for p in document["points"] if p["scheme"] == SCHEMES[1] and p["seed"] == s and "seed" in p["axes"]) for s in (pair["a"], pair["b"]))
    heads = json.loads(kvcc("diff", a["codebook"], b["codebook"], "--json", code=6)[0])["heads"]
    for kind in ("key", "value"):
        distances = sorted(h["distance"] for h in heads if h["kind"] == kind)
        assert pair[kind]["heads"] == len(distances) == 4 and pair[kind]["most"] == pytest.approx(distances[-1])
        assert pair[kind]["rms"] == pytest.approx((sum(d * d for d in distances) / len(distances)) ** 0.5)
        assert b["distance"][kind] == pytest.approx(pair[kind]) and a["distance"][kind]["most"] == 0
    assert pair["key"]["rms"] > 0


def test_what_is_done_is_kept_and_more_can_be_asked_for(place, document):
    before = {p: p.stat().st_mtime_ns for p in (place / "out/fits").iterdir()}
    again = kvcc_json(*options(place), "--keep-activations")
    assert again == document and before == {p: p.stat().st_mtime_ns for p in (place / "out/fits").iterdir()}
    copy = place / "killed"
    shutil.copytree(place / "out", copy)  # as a kill leaves it: one fit, one evaluation and all activations not there
    shutil.rmtree(copy / "acts")
    next((copy / "fits").glob(f"n2_*{SCHEMES[0]}*")).unlink()
    for path in (copy / "eval").glob("*.json"):
        path.unlink()
    finished = kvcc_json(*options(place, "killed"))
    assert json.dumps(finished).replace("killed/", "out/") == json.dumps(document)
    assert not list((copy / "acts").iterdir())
    more = kvcc_json(*options(place, "killed", samples="1,2,3", seeds="0,7,8"))
    assert len(more["points"]) == 2 * (3 + 1 + 1 + 2) and len(more["seeds"]) == 2 * 3
    kept = {p["codebook"]: p for p in more["points"]}
    assert all(kept[p["codebook"]] == p for p in finished["points"])


def test_another_run_is_refused(place, document):
    other = [*options(place)]
    other[other.index(place / "a.npy")] = place / "e.npy"
    assert "other texts" in kvcc(*other, code=3)[1]
    (place / "full").mkdir(exist_ok=True)
    (place / "full/file").write_text("x")
    assert "holds no ablation" in kvcc(*options(place, "full"), code=3)[1]
    assert "given twice" in kvcc(*options(place, samples="1,1"), code=2)[1]
    assert "nothing to calibrate" in kvcc(*options(place), "--scheme", "int4", code=2)[1]
    plan = kvcc_json(*options(place, "new"), "--dry-run")
    assert plan["fits"] == 10 and [c["samples"] for c in plan["collections"]] == [3, 3, 3, 3] and not (place / "new").exists()


def test_table_and_page(place, document):
    text = kvcc(*options(place))[0]
    for heading in ("number of samples", "length of samples", "calibration text", "seed", "distance between fits"):
        assert f"\n{heading}" in text
    for point in document["points"]:
        assert f"{point['results'][0]['perplexity']:.4f}" in text
    page = (place / "page.html").read_text()
    data = json.loads(re.search(r'id="kvcc-data"[^>]*>(.*?)</script>', page, re.S)[1])
    assert data.pop("title") == "kvcc ablation of model"
    document = dict(document)
    document.pop("schema_version")
    assert data == document


def test_the_page_draws_every_point(place, document):
    browser = Browser()
    try:
        browser.view(1280)
        browser.open(place / "page.html")
        assert browser.errors == [] and len(browser.requests) == 1
        for axis in ("samples", "seqlen", "seed"):
            count = sum(axis in p["axes"] for p in document["points"]) * len(document["evaluations"])
            assert browser.evaluate(f"document.querySelectorAll('#{axis} [data-name]').length") == count
        before = browser.evaluate("document.querySelector('#samples svg').outerHTML")
        browser.click("input[name=measure][value=perplexity]")
        assert browser.evaluate("document.querySelector('#samples svg').outerHTML") != before and browser.errors == []
        rows = browser.evaluate("[...document.querySelectorAll('#domain tbody tr')].map((r) => r.children.length)")
        assert rows == [3 + 3 * 2 + 2] * 4
    finally:
        browser.close()
