"""kvcc inspect --html in a real browser: what is shown is what kvcc inspect --json says, and can be used by mouse, by
keyboard and by screen reader, at 1280 and at 400 pixels, in light and in dark."""
import csv
import io
import json
import re
import subprocess

import h5py
import numpy as np
import pytest
from browser import Browser
from pictures import compare, difference
from support import BUILD, kvcc, kvcc_json

MAKE = BUILD / "tests/bin/make_report"
LAYERS, HEADS, DIM = 8, 3, 32


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("html report")
    size = [str(n) for n in (LAYERS, HEADS, DIM)]
    subprocess.run([MAKE, "codebook", folder / "a.kvcb", *size, "tiny"], check=True)
    subprocess.run([MAKE, "activations", folder / "a.acts", *size], check=True)
    kvcc("inspect", folder / "a.kvcb", "--html", folder / "report.html", "--activations", folder / "a.acts")
    kvcc("inspect", folder / "a.kvcb", "--html", folder / "plain.html")
    return folder


@pytest.fixture(scope="module")
def heads(files):
    """{(kind, layer, head): the row of kvcc inspect --json}."""
    document = kvcc_json("inspect", files / "a.kvcb")
    return {(kind, at["layer"], head["head"]): head for at in document["layers"] for kind in ("key", "value") for head in at[kind]}


def cell(kind, layer, head):
    return f".heat[aria-label*=' {kind} '] [data-l='{layer}'][data-h='{head}']"


def number(text):
    return float(re.sub(r"[^-+.0-9e].*", "", text))


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_the_file_needs_nothing_else(browser, files):
    text = (files / "report.html").read_text()
    assert set(re.findall(r"https?://[^\"'\s)]*", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<script[^>]+src=|<link[^>]+stylesheet|@import|url\(", text)
    browser.view(1280)
    browser.open(files / "report.html")
    assert browser.requests == [f"file://{files}/report.html".replace(" ", "%20")]
    assert browser.errors == []
    assert browser.evaluate("fetch('data:text/plain,x').then(() => 'went out', () => 'refused')") == "refused"


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("kind, layer, head", [("key", 5, 2), ("value", 7, 0)])
def test_a_click_on_a_cell_shows_that_head(browser, files, heads, width, kind, layer, head):
    browser.view(width)
    browser.open(files / "report.html")
    browser.click(cell(kind, layer, head))
    assert browser.evaluate("document.querySelector('h1').textContent") == f"Layer {layer}, {kind} head {head}"
    shown = dict(browser.evaluate("[...document.querySelectorAll('.numbers > div')].map((d) => [d.querySelector('dt').textContent, d.querySelector('b').textContent])"))
    expected = heads[kind, layer, head]
    for name in ("bits", "range_min", "range_max", "outlier_fraction", "fisher_mass", "weighted_sse", "sqnr_db", "first_token_share"):
        assert number(shown[name]) == pytest.approx(expected[name], rel=1e-5), name
    levels = browser.evaluate("[...document.querySelectorAll('#codes tbody tr')].map((row) => row.children[1].textContent)")
    assert [float(x) for x in levels] == pytest.approx(expected["codebook"], rel=1e-4)
    assert browser.evaluate("document.querySelectorAll('#histogram svg circle').length") == 16
    browser.evaluate("history.back()")
    browser.wait("document.querySelectorAll('.heat').length === 2")
    assert browser.evaluate(f"document.activeElement === document.querySelector({json.dumps(cell(kind, layer, head))})")
    assert browser.errors == []


def test_heat_maps_and_table_say_what_the_json_says(browser, files, heads):
    browser.view(1280)
    browser.open(files / "report.html")
    for metric, name, scale in (("sqnr_db", "SQNR", 1), ("outlier_fraction", "Outlier share", 0.01), ("fisher_mass", "Fisher mass", 1),
                                ("weighted_sse", "Weighted error", 1), ("bits", "Bits", 1)):
        browser.click(f"input[name='metric'][value='{metric}']")
        for (kind, layer, head), row in heads.items():
            label = browser.evaluate(f"document.querySelector({json.dumps(cell(kind, layer, head))}).getAttribute('aria-label')")
            assert label.startswith(f"layer {layer}, {kind} head {head}: {name} ")
            value = label.split(name)[1].split(",")[0].strip()
            if row[metric] is None:
                assert value == "-"  # infinity is no number to show
            else:
                assert number(value) * scale == pytest.approx(row[metric], rel=6e-3), (metric, kind, layer, head)
    flagged = browser.evaluate("[...document.querySelectorAll('.heat .flagged')].map((c) => c.getAttribute('aria-label').split(':')[0])")
    assert sorted(flagged) == sorted(f"layer {l}, {k} head {h}" for (k, l, h), row in heads.items() if row["flags"])
    assert "layer 1, key head 1" in flagged
    document = kvcc_json("inspect", files / "a.kvcb")
    shown = browser.evaluate("document.querySelector('#warnings').textContent")
    assert {"one-token", "thin-data"} <= {w["name"] for w in document["warnings"]}
    for warning in document["warnings"]:
        for part in ("name", "where", "cause", "cure"):
            assert warning[part] in shown
    browser.click(".heat .flagged")
    assert "one-token" in browser.evaluate("document.querySelector('#head-warnings').textContent")


def test_colour_follows_the_number(browser, files, heads):
    browser.view(1280)
    browser.open(files / "report.html")
    browser.click("input[name='metric'][value='weighted_sse']")

    def darkness(key):
        text = browser.evaluate(f"getComputedStyle(document.querySelector({json.dumps(cell(*key))})).backgroundColor")
        return -sum(int(x) for x in re.findall(r"\d+", text)[:3])

    keys = sorted((key for key in heads if key[0] == "key"), key=lambda key: heads[key]["weighted_sse"])
    shades = [darkness(key) for key in keys]
    assert shades == sorted(shades) and shades[0] < shades[-1] - 200


@pytest.mark.parametrize("scheme", ["kvcc-2", "kvcc-2-head"])
def test_bits_and_energy_of_vector_codebooks(browser, tmp_path, scheme):
    subprocess.run([BUILD / "tests/bin/make_store", "codebook", tmp_path / "v.kvcb", scheme], check=True)
    kvcc("inspect", tmp_path / "v.kvcb", "--html", tmp_path / "v.html")
    browser.view(1280)
    browser.open(tmp_path / "v.html")
    with h5py.File(tmp_path / "v.kvcb") as file:
        stored = {kind: {name: file[f"{kind}/{name}"][()] for name in ("group_width", "group_bits", "stats/energy")} for kind in ("key", "value")}
    got = rows(browser.downloads(lambda: browser.click("#groups footer button"), "groups.csv"))
    for kind, arrays in stored.items():
        ours = [row for row in got if row["kind"] == kind]
        at = np.argwhere(arrays["group_width"] > 0)
        assert [(int(r["unit"]), int(r["first_coordinate"])) for r in ours] == [(u, c) for _, u, c in at]
        for row, (l, u, c) in zip(ours, at):
            width = arrays["group_width"][l, u, c]
            assert (int(row["width"]), int(row["bits"])) == (width, arrays["group_bits"][l, u, c])
            assert float(row["energy"]) == pytest.approx(arrays["stats/energy"][l, u, c:c + width].sum(), rel=1e-5)

    def shown():
        picture = "document.querySelector('#groups canvas')"
        return browser.evaluate(f"{picture}.toDataURL()"), browser.evaluate(f"{picture}.getAttribute('aria-label')")

    pictures = [shown()]
    for choice in ("groups-measure'][value='energy", "groups-kind'][value='value"):
        browser.click(f"#groups input[name='{choice}']")
        pictures.append(shown())
    assert len({picture for picture, _ in pictures}) == 3
    assert [label.split(",")[0] for _, label in pictures] == [
        "Bits an element of each coordinate of the keys", "Energy of each coordinate of the keys", "Energy of each coordinate of the values"]
    browser.evaluate("document.querySelector('#groups canvas').focus()")
    browser.press("ArrowRight")
    said = browser.evaluate("document.querySelector('#groups [role=status]').textContent")
    place = "all heads" if scheme == "kvcc-2" else "head 0"
    assert "coordinate 1" in said and "energy" in said and ("head" in said) == (place == "head 0"), said
    assert browser.errors == []


def test_without_a_mouse(browser, files):
    for width, right, down in ((1280, (1, 0), (0, 1)), (400, (0, 1), (1, 0))):  # narrow: layers run downwards
        browser.view(width)
        browser.open(files / "report.html")
        for _ in range(60):
            browser.press("Tab")
            if browser.evaluate("document.activeElement.closest('.heat') !== null"):
                break
        at = [0, 0]
        for key, step in (("ArrowRight", right), ("ArrowDown", down), ("ArrowRight", right), ("ArrowLeft", (-right[0], -right[1]))):
            browser.press(key)
            at = [at[0] + step[0], at[1] + step[1]]
            now = browser.evaluate("[document.activeElement.dataset.l, document.activeElement.dataset.h].map(Number)")
            assert now == at, (width, key)
        # One stop of the tab order a map: the next Tab leaves it.
        first = browser.evaluate("document.activeElement.closest('.heat').getAttribute('aria-label')")
        browser.press("Tab")
        assert browser.evaluate("document.activeElement.closest('.heat')?.getAttribute('aria-label')") != first
        browser.evaluate(f"document.querySelector({json.dumps(cell('key', *at))}).focus()")
        browser.press("Enter")
        browser.wait("location.hash !== ''")
        assert browser.evaluate("location.hash") == f"#/key/{at[0]}/{at[1]}"
        assert browser.evaluate("document.activeElement.textContent") == f"Layer {at[0]}, key head {at[1]}"  # read out
    assert browser.errors == []


def test_search(browser, files, heads):
    browser.view(1280)
    browser.open(files / "report.html")

    def search(text):
        browser.evaluate("(() => { const box = document.querySelector('input[type=search]'); box.focus(); box.select(); })()")
        browser.type(text)
        found = browser.evaluate("[...document.querySelectorAll('#heads tbody a')].map((a) => a.getAttribute('aria-label'))")
        lit = browser.evaluate("document.querySelectorAll('.heat button:not(.dim)').length")
        assert lit == len(found)
        return found, browser.evaluate("document.querySelector('#search-status').textContent")

    assert search("layer 3 head 1")[0] == ["layer 3, key head 1", "layer 3, value head 1"]
    assert search("l3h1 value")[0] == ["layer 3, value head 1"]
    assert "layer 1, key head 1" in search("one-token")[0]
    weak = sum(row["sqnr_db"] is not None and row["sqnr_db"] < 17 for row in heads.values())
    found, said = search("sqnr < 17")
    assert len(found) == weak > 0 and said == f"{weak} heads match"
    found, said = search("zebra")
    assert found == [] and "zebra" in said
    search("layer 6 head 2 key")
    browser.press("Enter")
    browser.wait("location.hash === '#/key/6/2'")


def test_downloads_hold_the_artifacts_numbers(browser, files, heads):
    browser.view(1280)
    browser.open(files / "report.html")
    got = rows(browser.downloads(lambda: browser.click("#channels footer button"), "channels.csv"))
    assert len(got) == LAYERS * HEADS * DIM
    with h5py.File(files / "a.kvcb") as file:
        for name in ("min", "max", "mean", "fisher"):
            assert np.array([float(row[name]) for row in got]) == pytest.approx(file[f"key/stats/{name}"][:].ravel(), rel=1e-6), name
        assert np.array([float(row["threshold_upper"]) for row in got]) == pytest.approx(file["key/threshold_upper"][:].ravel(), rel=1e-6)
    # After RoPE, against numpy on the stored activations.
    low = []
    for shard in sorted((files / "a.acts").rglob("*.h5")):
        with h5py.File(shard) as file:
            key = file["key"][:].astype(np.float64).reshape(-1, HEADS, DIM)
        angle = np.arange(len(key))[:, None] * 10000.0 ** (-np.arange(0, DIM, 2) / DIM)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = key[..., :DIM // 2], key[..., DIM // 2:]
        low.append(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).min(0))
    assert len(low) == LAYERS
    assert np.array([float(row["min_after_rope"]) for row in got]) == pytest.approx(np.array(low).ravel(), rel=1e-4, abs=1e-4)
    got = rows(browser.downloads(lambda: browser.click("#heat footer button"), "heads.csv"))
    assert len(got) == len(heads)
    for row in got:
        expected = heads[row["kind"], int(row["layer"]), int(row["head"])]["sqnr_db"]
        assert row["sqnr_db"] == "" if expected is None else float(row["sqnr_db"]) == pytest.approx(expected, rel=1e-8)


def test_each_chart_has_its_table_and_its_download(browser, files):
    browser.view(1280)
    for page, charts in (("", 3), ("#/key/2/1", 3)):
        browser.open(files / "report.html", page)
        cards = browser.evaluate("[...document.querySelectorAll('.card')].filter((c) => c.querySelector('svg:not([aria-hidden]), canvas, .heat')).map((c) => c.id)")
        assert len(cards) == charts
        for card in cards:
            browser.click(f"#{card} summary")
            browser.wait(f"document.querySelectorAll('#{card} details tbody tr').length > 0")
            assert browser.evaluate(f"document.querySelector('#{card} footer button').textContent") == "Download CSV"
    assert browser.errors == []


def test_screen_readers_are_told(browser, files):
    browser.view(1280)
    for page in ("", "#/value/2/1"):
        browser.open(files / "report.html", page)
        nodes = browser.accessible()
        nameless = [role for role, name in nodes if role in ("button", "link", "radio", "searchbox", "combobox", "img", "image", "grid", "table", "region") and not name.strip()]
        assert nameless == []
        roles = [role for role, _ in nodes]
        assert roles.count("main") == 1 and "navigation" in roles and "searchbox" in roles
        levels = browser.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))")
        assert levels.count(1) == 1 and all(b <= a + 1 for a, b in zip(levels, levels[1:]))
        assert browser.evaluate("document.documentElement.lang") == "en"
    browser.open(files / "report.html")
    nodes = browser.accessible()
    assert sum(role == "grid" for role, _ in nodes) == 2 and sum(role == "gridcell" for role, _ in nodes) == 2 * LAYERS * HEADS
    images = [name for role, name in nodes if role in ("img", "image")]
    assert any("Largest magnitude of each key channel" in name and "after rope" in name for name in images)
    # Text must stand out: 4.5 to 1 (WCAG AA), in both themes.
    for dark in (False, True):
        browser.view(1280, dark=dark)
        ratios = browser.evaluate("""(() => {
          const luminance = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255).map((c) => (c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4))
            .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
          const back = (node) => { for (; node; node = node.parentElement) { const c = getComputedStyle(node).backgroundColor; if (!/, 0\\)$/.test(c)) return c; } return 'rgb(255,255,255)'; };
          return [...document.querySelectorAll('p, h1, h2, h3, dt, dd, td, th, a, label span, button, summary, li')].filter((n) => n.textContent.trim() && !n.closest('.heat')).map((n) => {
            const [a, b] = [luminance(getComputedStyle(n).color), luminance(back(n))].sort((x, y) => y - x); return [(a + .05) / (b + .05), n.tagName + '.' + n.className]; });
        })()""")
        assert len(ratios) > 100 and min(ratios)[0] >= 4.5, min(ratios)


def test_f51_hostile_names_stay_text(browser, tmp_path):
    name = "</script><img src=x onerror=\"document.title='run'\">&amp;'\"<!--{{7*7}}"
    folder = (tmp_path / "<b>é&'").as_posix().encode() + b"\xff"  # not UTF-8
    subprocess.run(["mkdir", "-p", folder], check=True)
    subprocess.run([MAKE, "codebook", folder + b"/<script>x.kvcb", "2", "1", "8", name], check=True)
    subprocess.run([BUILD / "bin/kvcc", "inspect", folder + b"/<script>x.kvcb", "--html", tmp_path / "r.html"], check=True, capture_output=True)
    browser.view(1280)
    for page in ("", "#/key/1/0", "#/key/9/9", "#/<img src=x onerror=alert(1)>"):
        browser.open(tmp_path / "r.html", page)
        assert browser.errors == []
        assert browser.evaluate("document.images.length") == 0
        assert name in browser.evaluate("document.title")
        assert name in browser.evaluate("document.querySelector('main').textContent")
    assert "/<script>x.kvcb" in browser.evaluate("document.querySelector('main').textContent")
    assert "\ufffd" in browser.evaluate("document.querySelector('main').textContent")
    # The policy of the page holds even if an element did come in.
    browser.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
    browser.settle()
    assert name in browser.evaluate("document.title")


def test_what_a_file_does_not_hold_is_left_out(browser, tmp_path):
    """Statistics are optional: without them there are no empty charts, and numbers that are not known are "-"."""
    subprocess.run([MAKE, "codebook", tmp_path / "a.kvcb", "2", "1", "8", "bare", "bare"], check=True)
    kvcc("inspect", tmp_path / "a.kvcb", "--html", tmp_path / "r.html")
    browser.view(400)
    browser.open(tmp_path / "r.html")
    assert browser.evaluate("[...document.querySelectorAll('.card')].map((c) => c.id)") == ["warnings", "heat", "heads", "provenance"]
    assert "-" in browser.evaluate("[...document.querySelectorAll('.tile dd')].map((d) => d.textContent.trim().split(' ')[0])")
    browser.open(tmp_path / "r.html", "#/key/1/0")
    assert "no histogram" in browser.evaluate("document.querySelector('#histogram').textContent")
    assert browser.evaluate("document.querySelectorAll('#histogram circle').length") == 16
    assert not browser.evaluate("/NaN|undefined|null|Infinity/.test(document.body.innerText)")
    assert browser.errors == []


def test_an_activations_folder_has_a_report_too(browser, files, tmp_path):
    """What needs no codebook: ranges before and after RoPE, Fisher mass; nothing about codes."""
    kvcc("inspect", files / "a.acts", "--html", tmp_path / "r.html")
    document = kvcc_json("inspect", files / "a.acts")
    browser.view(1280)
    browser.open(tmp_path / "r.html")
    assert browser.evaluate("document.querySelectorAll('#channels canvas').length") == 2
    metrics = browser.evaluate("[...document.querySelectorAll('input[name=metric]')].map((m) => m.value)")
    assert "range" in metrics and "fisher_mass" in metrics and not {"sqnr_db", "bits", "weighted_sse", "outlier_fraction"} & set(metrics)
    head = document["layers"][4]["key"][2]
    browser.click(cell("key", 4, 2))
    assert browser.evaluate("document.querySelectorAll('#histogram, #codes').length") == 0
    shown = browser.evaluate("document.querySelector('.tile dd').textContent").split(" to ")
    assert [float(x) for x in shown] == pytest.approx([head["range_min"], head["range_max"]], rel=1e-2)
    assert not browser.evaluate("/NaN|undefined|null|Infinity/.test(document.body.innerText)")
    assert browser.errors == []


@pytest.mark.parametrize("width", [1280, 400])
def test_layout(browser, files, width):
    browser.view(width)
    for page in ("", "#/key/3/1"):
        browser.open(files / "report.html", page)
        assert browser.evaluate("document.documentElement.scrollWidth") == width  # nothing sticks out
        boxes = browser.evaluate("[...document.querySelectorAll('main > *')].map((n) => { const b = n.getBoundingClientRect(); return [b.left, b.right, b.top, b.bottom]; })")
        margin = (width - 1200) / 2 if width > 1240 else 12
        for box in boxes:
            assert box[0] == pytest.approx(margin, abs=1) and box[1] == pytest.approx(width - margin, abs=1)
        for above, below in zip(boxes, boxes[1:]):
            assert 8 <= below[2] - above[3] <= 24
    browser.open(files / "report.html")
    first, layer, head = (browser.box(cell("key", *at)) for at in ((0, 0), (1, 0), (0, 1)))
    if width == 1280:
        assert layer[0] > first[0] and layer[1] == first[1] and head[1] > first[1] and head[0] == first[0]
    else:
        assert layer[1] > first[1] and layer[0] == first[0] and head[0] > first[0] and head[1] == first[1]
    assert min(first[2], first[3]) >= 18  # can be hit with a finger
    before, after = (browser.evaluate("(() => { const b = document.querySelectorAll('#channels canvas')[%d].getBoundingClientRect(); return [b.left, b.top, b.width]; })()" % i) for i in (0, 1))
    assert (after[1] == before[1] and after[0] > before[0]) if width == 1280 else after[1] > before[1]
    assert before[2] == after[2] > 250


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_looks_as_kept(browser, files, width, theme):
    """Less the texts that come from elsewhere: warnings, and the meanings of formats/spec/statistics.md."""
    browser.view(width, dark=theme == "dark")
    for page, name in (("", "overview"), ("#/key/1/1", "head")):
        browser.open(files / "report.html", page)
        browser.evaluate("document.querySelectorAll('#warnings, #head-warnings, #numbers').forEach((card) => card.remove())")
        browser.settle()
        compare(browser.picture(), f"{name}-{width}-{theme}")
    assert browser.errors == []


def test_a_theme_that_changes_is_followed_and_the_comparison_can_fail(browser, files):
    browser.view(1280)
    browser.open(files / "report.html")
    light = browser.picture()
    browser.click("input[name='metric'][value='weighted_sse']")
    other = browser.picture()
    browser.view(1280, dark=True)
    dark = browser.picture()
    browser.view(1280)
    assert not difference(browser.picture(), other)
    assert difference(light, other) and difference(light, dark)
    browser.evaluate("document.querySelector('#channels canvas').remove()")
    assert difference(browser.picture(), other)


def test_a_large_artifact_stays_small_and_opens(browser, tmp_path):
    subprocess.run([MAKE, "codebook", tmp_path / "a.kvcb", "32", "8", "128", "large"], check=True)
    kvcc("inspect", tmp_path / "a.kvcb", "--html", tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 4e6
    browser.view(1280)
    browser.open(tmp_path / "r.html")
    assert browser.errors == [] and browser.evaluate("document.querySelectorAll('.heat button').length") == 512
    # An outlier channel is seen at any width: its pixel has the colour of the largest, its neighbours have not.
    for width in (1280, 400):
        browser.view(width)
        row = browser.evaluate("""(() => { const c = document.querySelector('#channels canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, 1).data;
          return Array.from({length: c.width}, (_, i) => d[4 * i] + d[4 * i + 1] + d[4 * i + 2]); })()""")
        usual = np.median(row)
        for channel in (125, 17, 128 + 28):
            x = int((channel + 0.5) / 1024 * len(row))
            assert min(row[x - 1:x + 2]) < usual - 120, (width, channel)
        assert np.mean(np.array(row) < usual - 120) < 0.05


def test_command_line(files, tmp_path):
    artifact, before = files / "a.kvcb", (files / "a.kvcb").read_bytes()
    assert "file to inspect" in kvcc("inspect", artifact, "--html", artifact, code=2)[1]
    assert artifact.read_bytes() == before
    kvcc("inspect", artifact, "--html", tmp_path / "no/such/r.html", code=3)
    kvcc("inspect", artifact, "--html", "/dev/null", code=3)
    shard = next((files / "a.acts").rglob("*.h5"))
    assert "--html" in kvcc("inspect", shard, "--html", tmp_path / "r.html", code=2)[1]
    subprocess.run([MAKE, "activations", tmp_path / "b.acts", "2", "1", "8"], check=True)
    assert "b.acts" in kvcc("inspect", artifact, "--html", tmp_path / "r.html", "--activations", tmp_path / "b.acts", code=3)[1]
    assert not list(tmp_path.glob("*.html*"))
