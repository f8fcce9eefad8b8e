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


PRE = {"smollm": SMOLLM, "starcoder": SMOLLM, "refact": SMOLLM, "command-r": SMOLLM, "gpt-2": GPT2, "phi-2": GPT2,
       "llama-bpe": split(LLAMA3), "llama3": split(LLAMA3), "llama-v3": split(LLAMA3),
       "qwen2": split(LLAMA3.replace("{1,3}", "")), "deepseek-r1-qwen": split(LLAMA3.replace("{1,3}", ""))}


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
    oracle = trained(PRE[pre], ignore_merges=pre in ("llama-bpe", "llama3", "llama-v3"))
    path = write(tmp_path / "m.gguf", oracle, pre)
    for text in (*HARD.values(), "a<think>b <|bos|>c<thin", "IT'S I'Ll 12345 x\n\n  y"):
        same(path, oracle, text)


@pytest.mark.parametrize("pre", ["nonsense", "", None, "default", "llama", "smollm starcoder", " "])
def test_F12_unknown_pre_tokenizer_stops(tmp_path, pre):
    message = refusal(write(tmp_path / "m.gguf", plain(), pre))
    assert "tokenizer.ggml.pre" in message and "--ids FILE" in message and "smollm" in message and "llama-bpe" in message
    if pre:
        assert f'"{pre}"' in message


def test_F12_other_models_of_tokenizer(tmp_path):
    for model in ("llama", "bert", "t5", ""):
        message = refusal(write(tmp_path / f"{model}.gguf", plain(), "gpt-2", model=model))
        assert f'tokenizer.ggml.model "{model}"' in message and "--ids FILE" in message


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
