"""Tokenizers of PyPI tokenizers, as oracles, and kvcc's on the same input."""
import os
import pathlib
import subprocess

import gguf
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

SOURCE = pathlib.Path(os.environ["KVCC_SOURCE"])
BIN = pathlib.Path(os.environ["KVCC_BUILD"]) / "tests" / "bin"
MODEL = pathlib.Path(os.environ.get("KVCC_MODEL") or SOURCE / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf")
DATA = pathlib.Path(os.environ.get("KVCC_DATA") or SOURCE / "../shared/datasets")


def need(path):
    if not path.exists():
        pytest.skip(f"{path} is absent: run 'make demo', or set KVCC_MODEL and KVCC_DATA")
    return path


def smollm2(model=MODEL):
    """The tokenizer of SmolLM2's GGUF, built from its metadata by PyPI tokenizers."""
    fields = gguf.GGUFReader(need(model)).fields
    tokens, merges, types = (fields["tokenizer.ggml." + n].contents() for n in ("tokens", "merges", "token_type"))
    oracle = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)},
                                  merges=[tuple(m.split(" ")) for m in merges]))
    oracle.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    oracle.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k == 3])
    return oracle


def run(*words, data=b""):
    out = subprocess.run([BIN / "tokenize", *map(str, words)], input=data, capture_output=True)
    return out.returncode, out.stdout, out.stderr.decode()


def ours(model, text):
    code, out, errors = run(model, data=text if isinstance(text, bytes) else text.encode())
    assert code == 0, errors
    return np.frombuffer(out, np.int32)


def refusal(model):
    code, _, errors = run(model)
    assert code == 3, (code, errors)
    return errors


def same(model, oracle, text):
    got, want = ours(model, text), np.array(oracle.encode(text).ids, np.int32)
    if not np.array_equal(got, want):
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        raise AssertionError(f"{len(got)} and {len(want)} ids, first difference at {at}: {got[at - 2:at + 5]} and "
                             f"{want[at - 2:at + 5]}, {oracle.decode(list(want[max(0, at - 3):at + 5]))!r}")


HARD = {
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈👍🏽 a🤷🏻‍♀️b 🇩🇪🇫🇷 ☺️☺ \U0001F9D1\u200d\U0001F680",
    "CJK": "今日は、世界。漢字とかな交じり文 你好，世界！한국어 문장입니다 １２３ 𠀀𠮷",
    "combining": "e\u0301 a\u0308\u0304 \u0301\u0302 नमस्ते ภาษาไทย \u0e33 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢ ـــ مرحبا שָׁלוֹם",
    "control": "".join(map(chr, range(32))) + "a\0b\0\0c\x7f\x1b[0m \x0b\x0c\x85\x1c",
    "spaces": " " * 5000 + "x" + "  y   z" + "\t\t  \t" + " \n" * 100 + "   ",
    "digits": "1" * 3000 + " 12 345 6,789.01 ½²③Ⅻ٣१ 0x1F 1e-9",
    "newlines": "\n" * 3000 + "a\n\n\nb\r\n\r\nc\r\rd \n \n  \n",
    "scripts": "Привет, мир! Ελληνικά العربية हिन्दी ქართული አማርኛ ᏣᎳᎩ ABCабвαβγ 123абв",
    "contractions": "I'm you're HE'LL IT'S don't DON'T we'Ve 'tis ''s 'ſ ’s l'été 's's's",
    "separators": "a\u2028b\u2029c\u00a0d\u00a0\u00a0e\u3000f\u200bg\ufeffh\u180ei\u1680j\u202fk\u205fl\u2060m\u0085n",
    "special": "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|im_start|><|im_start <|im_end|>>x<|endoftext|>",
    "punctuation": "!!!...???---___***###@@@ (((a))) [b]{c}<d> \"e\" `f` //g\\\\h $5 %6 a_b __init__ x->y; i+=1;",
    "code": "def f(x):\n    return x  # comment\n\n\tif (a&&b) {\n\t\tc[i]++;\n\t}\n",
    "one word": "a" * 20000 + "é" * 3000 + "字" * 3000,
    "empty": "",
}
