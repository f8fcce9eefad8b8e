"""Ids equal to those of PyPI tokenizers and sentencepiece for each kind of vocabulary that models ship, from tokenizer.json and
tokenizer.model. test_full_tokenizer_families.py has the whole of evaluation.txt."""
import json
import random

import numpy as np
import pytest
from made_tokenizers import BYTES, FAMILIES, SENTENCEPIECE, Pieces, byte_level, charsmap, evaluation, family, processor, rewired, sentencepiece_model
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers_oracle import HARD, ours, refusal, run, same

WORDS = "the quick  brown fox\n  doesn't jump over 12345 lazy dogs, naïve café №5 ﬁne Ⅷ ǅ ẞ İstanbul ʼn ½ "
ALL = "\n".join(HARD.values())
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)


def saved(tmp_path, oracle):
    oracle.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def write(name):
        path = folder / (name.replace(" ", "_") + ".model")
        if not path.exists():
            path.write_bytes(sentencepiece_model(name))
        return path
    return write


@pytest.mark.parametrize("name", FAMILIES)
def test_families_from_tokenizer_json(tmp_path, name):
    path, oracle = saved(tmp_path, family(name)), family(name)
    for text in (*HARD.values(), WORDS, evaluation(30000), "hi <s>there</s> <s> x", "<s>", " <|user|>  a<|end|>\n b", "a\n\nb▁▁c"):
        same(path, oracle, text)


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_families_from_tokenizer_model(model_file, name):
    """Texts with the model's own special tokens are not compared: kvcc looks for them, sentencepiece does not."""
    path, oracle = model_file(name), Pieces(name)
    for text in (*HARD.values(), WORDS, evaluation(30000), "a<mask>b", "a\n\nb\n\n\nc▁▁▁d  e", "<0x41>", " <0x0A> "):
        same(path, oracle, text)


@pytest.mark.parametrize("name", ["T5", "Unigram with symbols"])
def test_rounded_sums_of_long_texts(model_file, name):
    """Two ways through "paws" that are 0.004 apart: sums of tens of thousands, rounded to float, take one or the other."""
    words = sorted(set(evaluation(200000).split()))
    random.Random(4).shuffle(words)
    for text in ("jaguar paws ; this " * 12000, " ".join(words), "zq paws<a symbol with a long name>\u4e00 \n" * 3000):
        same(model_file(name), Pieces(name), text)


def test_special_tokens_of_tokenizer_model(model_file, tmp_path):
    """Each is one id wherever it stands, and what follows it is a text by itself, as transformers and llama.cpp have it."""
    path, p = model_file("Gemma"), processor("Gemma")
    turn, bos = p.piece_to_id("<start_of_turn>"), p.bos_id()
    assert list(ours(path, "<start_of_turn>user<s> hi")) == [turn, *p.encode("user"), bos, *p.encode(" hi")]
    path, p = model_file("Llama 2"), processor("Llama 2")
    assert list(ours(path, "</s>x <unk>")) == [p.eos_id(), *p.encode("x "), p.unk_id()]
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"add_bos_token": False, "added_tokens_decoder": {
        "1500": {"content": "<|user|>", "rstrip": True, "special": True}, "1501": {"content": "zq", "single_word": True}}}))
    code, out, errors = run(path, settings, data=b"<|user|>  \n zq azq")
    assert code == 0, errors
    assert list(np.frombuffer(out, np.int32)) == [1500, 1501, *p.encode(" azq")]
    assert run("--describe", path, settings)[1].split()[:3] == [b"1502", b"1", b"0"]
    assert run("--describe", path)[1].split()[:3] == [b"1500", b"1", b"1"]  # the habit of models that ship such a file


def test_F24_invalid_bytes(model_file, tmp_path):
    """A byte that is no UTF-8 is its own token, and what follows it goes on: no space is put before it."""
    p = processor("Llama 2")
    piece, byte = p.piece_to_id, lambda b: p.piece_to_id(f"<0x{b:02X}>")
    want = [*p.encode("the"), byte(0xff), piece("a"), byte(0xe2), byte(0x82), piece("b")]
    assert list(ours(model_file("Llama 2"), b"the\xffa\xe2\x82b")) == want
    oracle = family("Llama 2")
    ids = lambda text: [oracle.token_to_id(t) for t in text]
    want = [*oracle.encode("the").ids, *ids(["<0xFF>", "a", "<0xE2>", "<0x82>", "b"])]
    assert list(ours(saved(tmp_path, oracle), b"the\xffa\xe2\x82b")) == want
    # A normalizer that reads the text as a whole puts U+FFFD there, as PyPI sentencepiece does.
    same(model_file("Unigram with bytes"), Pieces("Unigram with bytes"), b"the\xffa\xe2\x82b")


@pytest.mark.parametrize("name", ["Llama 2", "T5"])
def test_any_bytes_are_survived(model_file, tmp_path, name):
    rng = random.Random(3)
    for data in [rng.randbytes(size) for size in (1, 2, 3, 10, 1000, 20000)]:
        for path in (model_file(name), saved(tmp_path, family(name))):
            ids = ours(path, data)
            assert ids.size and ids.min() >= 0


@pytest.mark.parametrize("form", ["json", "model"])
def test_decoding_gives_the_text_again(tmp_path, model_file, form):
    """But for the space that these vocabularies put before a text."""
    path = saved(tmp_path, family("Llama 2")) if form == "json" else model_file("Llama 2")
    for text in (WORDS, HARD["emoji"], HARD["CJK"], HARD["control"], "a  b\n"):
        code, out, errors = run("--decode", path, data=ours(path, text).tobytes())
        assert code == 0 and out.decode() == " " + text, errors


N = normalizers
NORMALIZERS = {
    "NFC": N.NFC(), "NFD": N.NFD(), "NFKC": N.NFKC(), "NFKD": N.NFKD(), "Lowercase": N.Lowercase(), "Nmt": N.Nmt(),
    "StripAccents": N.Sequence([N.NFD(), N.StripAccents()]), "accents as they are": N.StripAccents(),
    "Strip": N.Strip(), "left": N.Strip(right=False), "right": N.Strip(left=False),
    "Prepend": N.Prepend("__"), "Replace": N.Replace("a.", "<>"), "Replace by regex": N.Replace(Regex(r"\s+|\p{N}"), " "),
    "nested": N.Sequence([N.Sequence([N.Replace("ß", "ss"), N.NFKC()]), N.Lowercase()]),
}


@pytest.fixture(scope="module")
def plain():
    return byte_level(GPT2).to_str()


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizers(tmp_path, plain, name):
    oracle = Tokenizer.from_str(plain)
    oracle.normalizer = NORMALIZERS[name]
    oracle.add_tokens([AddedToken("Word", normalized=True), AddedToken("Raw", normalized=False), AddedToken("é", normalized=True)])
    path = saved(tmp_path, oracle)
    marks = "".join("a" + "\u0301\u0323\u0315\u0300"[i % 4:] + "\u05b0\u094d" for i in range(300))
    for text in (ALL, HARD["combining"], WORDS, "a Word word Raw raw WORD é e\u0301 E\u0301", " \u3000x\u3000 ", "가각 \u1100\u1161\u11a8", marks):
        same(path, oracle, text)


PRE = {
    "Metaspace": pre_tokenizers.Metaspace(), "never": pre_tokenizers.Metaspace(prepend_scheme="never"),
    "first": pre_tokenizers.Metaspace(prepend_scheme="first"), "whole": pre_tokenizers.Metaspace(split=False),
    "another mark": pre_tokenizers.Metaspace(replacement="."),
    "WhitespaceSplit": pre_tokenizers.WhitespaceSplit(), "Whitespace": pre_tokenizers.Whitespace(),
    "Punctuation": pre_tokenizers.Punctuation(), "Punctuation together": pre_tokenizers.Punctuation("contiguous"),
    "words and marks": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]),
    **{f"Split, {behaviour}, {invert}": pre_tokenizers.Split(Regex(r"\s|\p{P}"), behaviour, invert=invert)
       for behaviour in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous") for invert in (False, True)},
}


@pytest.mark.parametrize("name", PRE)
def test_pre_tokenizers_of_characters(tmp_path, name):
    oracle = Tokenizer.from_str(family("Llama 2").to_str())
    oracle.normalizer = None
    oracle.pre_tokenizer = PRE[name]
    path = saved(tmp_path, oracle)
    for text in (ALL, HARD["spaces"], WORDS, "<s> a<s>b", " a", "a  b. .c"):
        same(path, oracle, text)


@pytest.mark.parametrize("options", [dict(fuse_unk=False), dict(byte_fallback=False), dict(byte_fallback=False, fuse_unk=False),
                                     dict(ignore_merges=True), "no bytes above 7F"])
def test_what_stands_for_the_unknown(tmp_path, options):
    spec = json.loads(family("Llama 2").to_str())
    if options == "no bytes above 7F":  # characters with such bytes are unknown then, and others are not
        for token in BYTES[0x80:]:
            spec["model"]["vocab"][token.replace("<", "<<")] = spec["model"]["vocab"].pop(token)
    else:
        spec["model"].update(options)
    oracle = Tokenizer.from_str(json.dumps(spec))
    path = saved(tmp_path, oracle)
    for text in (ALL, HARD["emoji"], WORDS, "éé\aé\a\aéaéé", evaluation(10000)):
        same(path, oracle, text)


def test_precompiled(tmp_path):
    """The table of nmt_nfkc, which T5, ALBERT and XLM-R have."""
    table = charsmap(sentencepiece_model("T5"))
    oracle = rewired(family("T5"), N.Sequence([N.Precompiled(table), N.Replace(Regex(" {2,}"), " ")]))
    oracle.pre_tokenizer = pre_tokenizers.Metaspace()
    path = saved(tmp_path, oracle)
    for text in (ALL, HARD["combining"], WORDS, "e\u0301x \u1100\u1161\u11a8 ﷺ ㌖ a\r\nb ﬃ", evaluation(30000)):
        same(path, oracle, text)
    spec = json.loads(path.read_text())
    for spoilt in ("", "AAA", "!" * 40, "AAAAAAAA", spec["normalizer"]["normalizers"][0]["precompiled_charsmap"][:4000]):
        spec["normalizer"]["normalizers"][0]["precompiled_charsmap"] = spoilt
        path.write_text(json.dumps(spec))
        if spoilt:
            assert "precompiled_charsmap" in refusal(path)
        else:
            assert run(path)[0] == 0


def test_F18_long_words_in_time_that_grows_with_them(tmp_path, model_file):
    """A megabyte without a space, of letters that merge, of marks that are ordered, of spaces: each in seconds."""
    paths = [saved(tmp_path, family("Llama 2")), model_file("Llama 2"), model_file("T5")]
    for text in ("the" * 300000, "a\u0315\u0300" * 100000, " " * 500000 + "x"):
        for path in paths:
            assert ours(path, text).size
    oracle = byte_level(GPT2, N.NFKC())
    for text in ("a" + "\u0315\u0300" * 200000, "the" * 300000):
        assert ours(saved(tmp_path, oracle), text).size
    trailing = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\s+$"), "isolated"), GPT2])
    oracle = byte_level(trailing)
    for text in ("a  \n  b \t\n\n  c  ", "a\r\n \r\n x", "  ", "\n \n", HARD["spaces"], HARD["newlines"], HARD["separators"], HARD["code"]):
        same(saved(tmp_path, oracle), oracle, text)
    assert ours(tmp_path / "tokenizer.json", " " * 500000 + "x").size


@pytest.mark.parametrize("spoil, words", [
    (lambda t: t["model"].pop("unk_id"), ["Unigram model without unk_id"]),
    (lambda t: t["model"].update(unk_id=10**6), ["unk_id is 1000000", "below the vocabulary's 1200"]),
    (lambda t: t["model"].update(vocab={}), ["Unigram model without a list vocab"]),
    (lambda t: t["model"]["vocab"].__setitem__(7, ["a"]), ['vocab 7 is ["a"]', "a token and its score"]),
    (lambda t: t["model"]["vocab"].__setitem__(7, ["a", "b"]), ["vocab 7"]),
    (lambda t: t["model"]["vocab"].__setitem__(7, ["a" * 2000, -1.0]), ["token 7 of 2000 bytes", "at most 1024"]),
    (lambda t: t.update(pre_tokenizer={"type": "ByteLevel"}), ["Unigram model with ByteLevel"]),
    (lambda t: t.update(pre_tokenizer={"type": "Metaspace", "replacement": "ab"}), ['replacement "ab"', "one character"]),
    (lambda t: t.update(pre_tokenizer={"type": "Metaspace", "prepend_scheme": "often"}), ["prepend_scheme often"]),
    (lambda t: t.update(pre_tokenizer={"type": "BertPreTokenizer"}), ["pre_tokenizer BertPreTokenizer", "Metaspace"]),
    (lambda t: t.update(normalizer={"type": "BertNormalizer"}), ["normalizer BertNormalizer", "NFKC"]),
    (lambda t: t.update(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 100}), ["more than 64 normalizers"]),
    (lambda t: t.update(normalizer={"type": "Replace", "content": ""}), ["normalizer Replace without a pattern"]),
    (lambda t: t["model"].update(type="WordPiece"), ["tokenizer model WordPiece", "BPE or Unigram"]),
])
def test_F12_what_is_not_known_is_refused_by_name(tmp_path, spoil, words):
    spec = json.loads(family("Unigram with bytes").to_str())
    spoil(spec)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec))
    message = refusal(path)
    assert all(w in message for w in (*words, "--ids FILE", str(path))), message


def test_broken_tokenizer_model(tmp_path):
    """Nothing, text, a file cut anywhere, and bytes changed anywhere: refused with file and cure, or read, never a crash."""
    good = sentencepiece_model("T5")
    path = tmp_path / "tokenizer.model"
    rng = random.Random(5)
    for data in (b"", b"IQ== 0\nIg== 1\n", b"\xff" * 100, good[:1000], good[:-3], good[:len(good) // 2], b"\x0a\x00"):
        path.write_bytes(data)
        message = refusal(path)
        assert str(path) in message and ("--ids FILE" in message or "empty" in message), message
    for _ in range(40):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 5, 50))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        code, _, errors = run(path, data=WORDS.encode())
        assert code in (0, 3) and (code == 0 or str(path) in errors), (code, errors)
