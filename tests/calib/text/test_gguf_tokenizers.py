"""Tokenizers inside GGUF files written on the spot: every tokenizer.ggml.pre that kvcc knows, against the pre-tokenizer that
the models of that name publish; F12."""
import functools
import json
import os
import pathlib
import sys

import gguf
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers
from made_models import sentencepiece_gguf
from made_tokenizers import Pieces, evaluation, processor
from tokenizers_oracle import HARD, refusal, run, same

sys.path.insert(0, str(pathlib.Path(os.environ["KVCC_SOURCE"]) / "tests/formats/weights"))
from tiny_llama import config, tensors, write_gguf  # noqa: E402

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
SMOLLM = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2])


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def steps(*parts):
    """Pre-tokenizers in a row, then bytes."""
    return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


QWEN2 = split(LLAMA3.replace("{1,3}", ""))
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
HAN = isolated("[一-龥ࠀ-一가-퟿]+")
DIGIT, DIGITS = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Digits(individual_digits=False)
DEEPSEEK_V3 = [isolated(r"\p{N}{1,3}"), isolated("[一-龥぀-ゟ゠-ヿ]+"), isolated(
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+")]
PRE = {
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), SMOLLM),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "jais", "mpt", "gigachat", "a.x-4.0", "mellum", "exaone4", "trillion", "granite-docling"), GPT2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "midm-2.0", "lfm2", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
                    split(LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "kormo", "hunyuan", "solar-open"), QWEN2),
    "qwen35": split(LLAMA3.replace("{1,3}", "").replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")),
    "tekken": split(CASED % ("", "", r"\p{N}")),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), split(CASED % (SUFFIX, SUFFIX, r"\p{N}{1,3}"))),
    "default": steps(isolated(r"[\p{P}$+<=>^~|]+"), isolated(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
                     isolated(r"\p{N}+"), isolated("[0-9][0-9][0-9]")),
    "falcon": steps(isolated(r"[\p{P}$+<=>^~|`]+"), isolated(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
                    isolated("[0-9][0-9][0-9]")),
    "deepseek-coder": steps(isolated("[\r\n]"), isolated(r"\s?\p{L}+"), isolated(r"\s?\p{P}+"), HAN, DIGIT),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), steps(*DEEPSEEK_V3)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), split(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")),
    "seed-coder": split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"),
}
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "midm-2.0", "lfm2", "tekken")


@functools.lru_cache
def plain():
    return trained(GPT2)


def trained(pre, **options):
    oracle = Tokenizer(models.BPE(**options))
    oracle.pre_tokenizer = pre
    oracle.train_from_iterator(HARD.values(), trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    oracle.add_special_tokens([AddedToken("<|bos|>", special=True, normalized=False)])
    oracle.add_tokens([AddedToken("<think>", normalized=False)])
    return oracle


TRAINED = {}


def trained_for(pre, whole_words):
    """One for all names that share a rule."""
    key = id(pre), whole_words
    if key not in TRAINED:
        TRAINED[key] = trained(pre, ignore_merges=whole_words)
    return TRAINED[key]


def write(path, oracle, pre, model="gpt2", keys=lambda w: None, types=None):
    spec = json.loads(oracle.to_str())
    tokens = sorted(oracle.get_vocab(with_added_tokens=True), key=oracle.get_vocab().get)
    kinds = {a["content"]: 3 if a["special"] else 4 for a in spec["added_tokens"]}

    def write_keys(writer):
        writer.add_tokenizer_model(model)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types or [kinds.get(t, 1) for t in tokens])
        writer.add_token_merges([" ".join(m) for m in spec["model"]["merges"]])
        writer.add_bos_token_id(oracle.token_to_id("<|bos|>"))
        keys(writer)

    c = config(vocab_size=len(tokens))
    return write_gguf(path, c, tensors(c), keys=write_keys)


@pytest.mark.parametrize("pre", PRE)
def test_known_pre_tokenizers(tmp_path, pre):
    oracle = trained_for(PRE[pre], pre in WHOLE_WORDS)
    path = write(tmp_path / "m.gguf", oracle, pre)
    for text in ("\n".join(HARD.values()), HARD["spaces"], "a<think>b <|bos|>c<thin", "IT'S I'Ll 12345 x\n\n  y"):
        same(path, oracle, text)


@pytest.mark.parametrize("pre", ["nonsense", "", None, "llama", "smollm starcoder", " "])
def test_F12_unknown_pre_tokenizer_stops(tmp_path, pre):
    message = refusal(write(tmp_path / "m.gguf", plain(), pre))
    assert "tokenizer.ggml.pre" in message and "--ids FILE" in message and "smollm" in message and "llama-bpe" in message
    if pre:
        assert f'"{pre}"' in message


def test_F12_other_models_of_tokenizer(tmp_path):
    for model in ("bert", "rwkv", "plamo2", ""):
        message = refusal(write(tmp_path / f"{model}.gguf", plain(), "gpt-2", model=model))
        assert f'tokenizer.ggml.model "{model}"' in message and "llama (SentencePiece BPE)" in message and "--ids FILE" in message


def test_bos_policy(tmp_path):
    oracle = plain()
    bos = str(oracle.token_to_id("<|bos|>"))

    def describe(pre, keys=lambda w: None):
        return run("--describe", write(tmp_path / "m.gguf", oracle, pre, keys=keys))[1].decode().split()[1:3]

    assert describe("gpt-2") == [bos, "0"]
    assert describe("llama-bpe") == [bos, "1"]  # Llama 3's own habit
    assert describe("gpt-2", lambda w: w.add_add_bos_token(True)) == [bos, "1"]
    assert describe("llama-bpe", lambda w: w.add_add_bos_token(False)) == [bos, "0"]


def test_lists_that_do_not_fit(tmp_path):
    oracle = plain()
    assert "token types" in refusal(write(tmp_path / "a.gguf", oracle, "gpt-2", types=[1, 1, 1]))


def test_deepseek_llm(tmp_path):
    """Its tokenizer.json writes out ranges of letters with two cases, and of signs; here they are asked of Unicode, whose letters since
    then, and few others, are not among them."""
    cased, signs = r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+"
    oracle = trained(steps(isolated("[\r\n]"), isolated(cased), isolated(signs), isolated(r"\s+$"), HAN, DIGITS))
    path = write(tmp_path / "m.gguf", oracle, "deepseek-llm")
    for text in ("It's 12345  x\n\n  y \t\n z", "Привет, мир! naïve café ΆΏώΐῼ ΩK ǅ", *(t for n, t in HARD.items() if n != "scripts")):
        same(path, oracle, text)


@pytest.mark.parametrize("name", ["Llama 2", "Gemma", "T5"])
def test_sentencepiece(tmp_path, name):
    path = sentencepiece_gguf(tmp_path / "m.gguf", name)
    for text in (*HARD.values(), "a\n\nb\n\n\nc▁▁▁d    e", evaluation(30000)):
        same(path, Pieces(name), text)
    bos = processor(name).bos_id()
    assert run("--describe", path)[1].split()[1:3] == [b"%d" % bos, b"0" if name == "T5" else b"1"]


@pytest.mark.parametrize("keys, change, words", [
    (lambda w: w.add_add_bos_token(False), None, None),
    (lambda w: None, lambda tokens, scores, types: scores.pop(), ["1499 token scores", "1500"]),
    (lambda w: None, lambda tokens, scores, types: scores.__setitem__(9, float("nan")), ["the score of token 9", "finite"]),
    (lambda w: None, lambda tokens, scores, types: types.__setitem__(9, 7), ["token type 7", "1 to 6"]),
    (lambda w: None, lambda tokens, scores, types: types.__setitem__(0, 1), ["does not load"]),
    (lambda w: None, lambda tokens, scores, types: types.__setitem__(100, 1), ["does not load"]),
    (lambda w: None, lambda tokens, scores, types: tokens.__setitem__(400, tokens[401]), ["does not load"]),
    (lambda w: w.add_precompiled_charsmap(b"\x00\x04\x00\x00" + bytes(1000)), None, ["precompiled_charsmap"]),
])
def test_broken_sentencepiece(tmp_path, keys, change, words):
    path = sentencepiece_gguf(tmp_path / "m.gguf", "Llama 2", keys, change or (lambda *lists: None))
    if words is None:
        assert run("--describe", path)[1].split()[2] == b"0"
    else:
        message = refusal(path)
        assert all(w in message for w in (*words, "--ids FILE", str(path))), message
