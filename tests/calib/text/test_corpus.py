"""Texts to samples: Python's own random module and NumPy as oracles."""
import hashlib
import random
import subprocess

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from tokenizers_oracle import BIN, DATA, MODEL, need


def draw(kind, source, n, seqlen, seed=0, bos="off", model=""):
    """(ids [count, seqlen], record, offsets) of kvcc."""
    out = subprocess.run([BIN / "draw", kind, str(n), str(seqlen), str(seed), bos, str(source), str(model)],
                         capture_output=True)
    assert out.returncode == 0, out.stderr.decode()
    first, _, offsets = out.stderr.decode().partition("\n")
    record = dict(zip(("name", "sha256", "flavour", "bos", "bos_id", "tokens", "samples"), first.split("|")))
    return np.frombuffer(out.stdout, np.int32).reshape(-1, seqlen), record, [int(o) for o in offsets.split()]


def refusal(kind, source, n, seqlen, bos="off", model="", code=3):
    out = subprocess.run([BIN / "draw", kind, str(n), str(seqlen), "0", bos, str(source), str(model)], capture_output=True)
    assert out.returncode == code, (out.returncode, out.stderr)
    return out.stderr.decode()


@pytest.fixture
def saved(tmp_path):
    def save(ids, name="ids é.npy"):
        np.save(tmp_path / name, ids)
        return tmp_path / name
    return save


def test_calibration_ids_of_the_reference(monkeypatch):
    want = np.load(need(DATA / "smollm2" / "calibration_ids.npy"))
    monkeypatch.setenv("KVCC_DATA", str(DATA))
    ids, record, offsets = draw("samples", "dataset:wikitext-2:calibration", 16, 2048, model=need(MODEL), bos="auto")
    assert np.array_equal(ids, want)
    random.seed(0)
    assert offsets == [random.randint(0, 262150 - 2049) for _ in range(16)]
    assert record == {"name": "wikitext-2:calibration", "flavour": "tokens", "bos": "off", "bos_id": "1",
                      "tokens": "262150", "samples": "16",
                      "sha256": hashlib.sha256((DATA / "wikitext-2/calibration.txt").read_bytes()).hexdigest()}


@pytest.mark.parametrize("seed", [0, 1, 42, 624, 2**31, 2**32 - 1, 2**32, 2**63 + 12345, 2**64 - 1])
@pytest.mark.parametrize("n", [12, 1000, 262150])
def test_offsets_are_pythons(saved, seed, n):
    ids = np.arange(n, dtype=np.int32)
    got, record, offsets = draw("samples", saved(ids), 700, 10, seed)
    rng = random.Random(seed)
    assert offsets == [rng.randint(0, n - 11) for _ in range(700)]
    assert np.array_equal(got, np.stack([ids[o:o + 10] for o in offsets]))
    assert record["flavour"] == "ids" and record["name"] == "ids é.npy"


def test_windows(saved):
    ids = np.arange(1003, dtype=np.int64)  # int64 is read too
    got, _, offsets = draw("windows", saved(ids), 0, 100)
    assert np.array_equal(got, ids[:1000].reshape(10, 100)) and offsets == list(range(0, 1000, 100))
    assert len(draw("windows", saved(ids), 3, 100)[0]) == 3
    assert len(draw("windows", saved(ids), 30, 100)[0]) == 10


def test_rows_are_samples(saved):
    ids = np.arange(60, dtype=np.int32).reshape(5, 12)
    for kind in ("samples", "windows"):
        assert np.array_equal(draw(kind, saved(ids), 3, 12)[0], ids[:3])
        assert np.array_equal(draw(kind, saved(ids), 16, 12)[0], ids)
        assert np.array_equal(draw(kind, saved(ids), 16, 7)[0], ids[:, :7])
        assert "needs >= 13 tokens, has 12" in refusal(kind, saved(ids), 3, 13)


def test_F19_too_short_a_text(saved):
    short = saved(np.arange(100, dtype=np.int32))
    for kind in ("samples", "windows"):
        message = refusal(kind, short, 1, 2048)
        assert "needs >= 2048 tokens, has 100" in message and "ids é.npy" in message
        got, _, offsets = draw(kind, short, 16, 100)  # exactly one
        assert np.array_equal(got, np.arange(100)[None]) and offsets == [0]
    assert draw("samples", short, 4, 99)[2] == [0, 0, 0, 0]
    assert "needs >= 2 tokens, has 0" in refusal("samples", saved(np.zeros(0, np.int32)), 1, 2)
    refusal("samples", short, 0, 10, code=2)
    refusal("samples", short, 1, 1, code=2)


def bpe(path, bos=False):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    oracle = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    oracle.add_special_tokens([AddedToken("<s>", special=True)])
    if bos:
        oracle.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    oracle.save(str(path))
    return {c: i for i, c in enumerate(alphabet)}


def test_bos(tmp_path, saved):
    bpe(tmp_path / "with.json", bos=True)
    bpe(tmp_path / "without.json")
    text = tmp_path / "text.txt"
    text.write_text("abcdefghij" * 10)
    plain = draw("windows", text, 0, 10, model=tmp_path / "without.json", bos="auto")
    assert plain[1]["bos"] == "off" and len(plain[0]) == 10
    flat = plain[0].ravel()
    for bos, model in (("auto", "with.json"), ("on", "with.json")):
        got, record, offsets = draw("windows", text, 0, 10, model=tmp_path / model, bos=bos)
        assert (record["bos"], record["bos_id"]) == ("on", "256") and offsets == list(range(0, 99, 9))
        assert np.array_equal(got, np.stack([np.r_[256, flat[o:o + 9]] for o in offsets]))  # no token is lost
    assert draw("windows", text, 0, 10, model=tmp_path / "with.json", bos="off")[1]["bos"] == "off"
    got, _, offsets = draw("samples", text, 5, 10, model=tmp_path / "with.json", bos="on")
    rng = random.Random(0)
    assert offsets == [rng.randint(0, 100 - 9 - 1) for _ in range(5)] and (got[:, 0] == 256).all()
    ids = saved(flat)
    assert draw("windows", ids, 0, 10, model=tmp_path / "with.json", bos="auto")[1]["bos"] == "off"  # ids stay as they are
    assert "no BOS" in refusal("windows", text, 0, 10, model=tmp_path / "without.json", bos="on", code=2)
    assert "rows" in refusal("windows", saved(flat.reshape(10, 10)), 0, 10, model=tmp_path / "with.json", bos="on", code=2)
    assert "--bos" in refusal("windows", text, 0, 10, model=tmp_path / "with.json", bos="maybe", code=2)


def test_F24_byte_order_mark_and_line_ends(tmp_path):
    ids = bpe(tmp_path / "t.json")
    text = tmp_path / "Загрузки é.txt"
    data = b"\xef\xbb\xbfa\r\nb\xff\r\n\r\r\nc\xef\xbb\xbf\r"
    text.write_bytes(data)
    a, b, c, lf, cr = (ids[x] for x in ("a", "b", "c", "Ċ", "č"))
    mark = [ids[x] for x in "ï»¿"]
    got, record, _ = draw("windows", text, 0, 12, model=tmp_path / "t.json")
    assert record["tokens"] == "12"
    assert list(got[0]) == [a, lf, b, ids["ÿ"], lf, cr, lf, c, *mark, cr]
    assert record["name"] == "Загрузки é.txt" and record["sha256"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("spoil, words", [
    (lambda d: b"", "truncated"),
    (lambda d: d[:9], "truncated"),
    (lambda d: d[:60], "truncated"),
    (lambda d: d[:-1], "truncated: shape [3, 4]"),
    (lambda d: d + b"x", "1 bytes after the ids"),
    (lambda d: b"x" + d[1:], "not a .npy"),
    (lambda d: d[:6] + b"\x09" + d[7:], "version 9"),
    (lambda d: d[:8] + b"\xff\xff" + d[10:], "truncated"),
    (lambda d: d.replace(b"<i4", b"<f4"), "type '<f4'"),
    (lambda d: d.replace(b"<i4", b">i4"), "type '>i4'"),
    (lambda d: d.replace(b"'descr'", b"'fescr'"), "no descr"),
    (lambda d: d.replace(b"False", b"True "), "columns first"),
    (lambda d: d.replace(b"(3, 4)", b"(3,-4)"), "shape (3,-4)"),
    (lambda d: d.replace(b"(3, 4)", b"(99999999999999, 4)"[:6]), "shape"),
    (lambda d: d.replace(b"(3, 4)", b"(1,2,3"), "header"),
    (lambda d: d.replace(b"(3, 4)", b"(    )"), "shape"),
    (lambda d: d[:-4] + b"\xff\xff\xff\xff", "id -1 at position 11"),
])
def test_npy_that_lies(saved, spoil, words):
    path = saved(np.arange(12, dtype=np.int32).reshape(3, 4))
    path.write_bytes(spoil(path.read_bytes()))
    message = refusal("samples", path, 1, 4)
    assert words in message and str(path) in message, message


def test_npy_truncated_at_every_length(saved):
    path = saved(np.arange(2, dtype=np.int32))
    data = path.read_bytes()
    for n in range(0, len(data), 3):
        path.write_bytes(data[:n])
        assert "truncated" in refusal("samples", path, 1, 2)


def test_ids_outside_the_vocabulary(tmp_path, saved):
    bpe(tmp_path / "t.json")
    assert draw("windows", saved(np.array([0, 256])), 1, 2, model=tmp_path / "t.json")[1]["tokens"] == "2"
    message = refusal("windows", saved(np.array([0, 5, 257])), 1, 2, model=tmp_path / "t.json")
    assert "id 257 at position 2" in message
    assert "id 4294967296" in refusal("windows", saved(np.array([2**32, 1])), 1, 2)


def test_exactly_one_source(tmp_path):
    assert "no such file" in refusal("windows", tmp_path / "absent.npy", 1, 2)
    bpe(tmp_path / "t.json")
    assert "no such file" in refusal("windows", tmp_path / "absent.txt", 1, 2, model=tmp_path / "t.json")
    assert "wikitext-3" in refusal("windows", "dataset:wikitext-3", 1, 2, model=tmp_path / "t.json", code=2)
