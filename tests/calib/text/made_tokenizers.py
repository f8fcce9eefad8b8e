"""Small vocabularies of each family, trained on the spot on the calibration text, with the rules that the models of the family
publish. Texts beyond English letters have no tokens of their own in them, so what stands for the unknown is met everywhere."""
import functools
import io
import json

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers_oracle import DATA, need

BYTES = [f"<0x{b:02X}>" for b in range(256)]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
MARK = "▁"


@functools.lru_cache
def calibration():
    return need(DATA / "wikitext-2" / "calibration.txt").read_text()[:400_000]


@functools.lru_cache
def evaluation(characters=None):
    return need(DATA / "wikitext-2" / "evaluation.txt").read_bytes().decode()[:characters]


def lines():
    return [line for line in calibration().split("\n") if line.strip()]


def special(*names, **flags):
    return [AddedToken(n, special=True, normalized=False, **flags) for n in names]


def byte_level(pre, normalizer=None, **options):
    oracle = Tokenizer(models.BPE(**options))
    oracle.pre_tokenizer = pre
    oracle.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    oracle.add_special_tokens(special("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    if normalizer:
        oracle.normalizer = normalizer
    return oracle


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_fallback(normalizer, pre, added=()):
    """BPE of characters, as a SentencePiece vocabulary is once it has been written as tokenizer.json."""
    oracle = Tokenizer(models.BPE(unk_token="<unk>"))
    oracle.normalizer = normalizers.Replace(" ", MARK)
    oracle.pre_tokenizer = pre_tokenizers.Split(MARK, "merged_with_next")
    oracle.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<unk>", "<s>", "</s>", *BYTES], limit_alphabet=80, show_progress=False))
    spec = json.loads(oracle.to_str())
    spec["model"].update(byte_fallback=True, fuse_unk=True)
    spec["added_tokens"] = []  # the trainer makes special tokens of the bytes
    oracle = Tokenizer.from_str(json.dumps(spec))
    oracle.normalizer = normalizer
    if pre is None:
        spec = json.loads(oracle.to_str())
        spec["pre_tokenizer"] = None
        oracle = Tokenizer.from_str(json.dumps(spec))
    else:
        oracle.pre_tokenizer = pre
    oracle.add_special_tokens(special("<unk>", "<s>", "</s>"))
    oracle.add_tokens(list(added))
    return oracle


def unigram(normalizer, pre, **model):
    oracle = Tokenizer(models.Unigram())
    oracle.normalizer = normalizer
    oracle.pre_tokenizer = pre
    tokens = ["<unk>", "<s>", "</s>", *(BYTES if model else [])]
    oracle.train_from_iterator(lines()[:600], trainers.UnigramTrainer(
        vocab_size=1200, special_tokens=tokens, unk_token="<unk>", show_progress=False))
    spec = json.loads(oracle.to_str())
    spec["added_tokens"] = [a for a in spec["added_tokens"] if a["content"] not in BYTES]
    spec["model"].update(model)
    return Tokenizer.from_str(json.dumps(spec))


def rewired(oracle, normalizer):
    """The same vocabulary on texts that nothing cuts into words."""
    spec = json.loads(oracle.to_str())
    spec["pre_tokenizer"] = None
    oracle = Tokenizer.from_str(json.dumps(spec))
    oracle.normalizer = normalizer
    return oracle


LLAMA2 = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
CHAT = [AddedToken("<|user|>", rstrip=True, normalized=False, special=True), AddedToken("<|end|>", rstrip=True, normalized=False, special=True)]
FAMILIES = {
    "GPT-2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "Llama 3": lambda: byte_level(split(LLAMA3), ignore_merges=True),
    "Qwen 2": lambda: byte_level(split(LLAMA3.replace("{1,3}", "")), normalizers.NFC()),
    "SmolLM": lambda: byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    "Llama 2": lambda: byte_fallback(LLAMA2, None),
    "Phi-3": lambda: byte_fallback(LLAMA2, None, CHAT),
    "Mistral": lambda: byte_fallback(None, pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=False)),
    "Gemma": lambda: byte_fallback(normalizers.Replace(" ", MARK), pre_tokenizers.Split(" ", "merged_with_previous"),
                                   [AddedToken("\n\n", normalized=False), AddedToken("▁▁", normalized=False)]),
    "T5": lambda: unigram(normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
                          pre_tokenizers.Metaspace(MARK, prepend_scheme="always")),
    "ALBERT": lambda: unigram(normalizers.Sequence([
        normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(),
        normalizers.Lowercase()]), pre_tokenizers.Metaspace(MARK, prepend_scheme="always")),
    "Unigram with bytes": lambda: unigram(None, pre_tokenizers.Metaspace(MARK, prepend_scheme="always"), byte_fallback=True),
    "Unigram on whole texts": lambda: rewired(family("Unigram with bytes"), LLAMA2),
}


@functools.lru_cache
def family(name):
    return FAMILIES[name]()


SENTENCEPIECE = {
    "Llama 2": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                    split_digits=True, allow_whitespace_only_pieces=True),
    "Gemma": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                  split_digits=True, add_dummy_prefix=False, allow_whitespace_only_pieces=True,
                  user_defined_symbols=["\n", "\n\n", "▁▁", "▁▁▁▁", "<mask>"], control_symbols=["<start_of_turn>"]),
    "BPE, nmt_nfkc": dict(model_type="bpe"),
    "T5": dict(model_type="unigram", control_symbols=["<extra_id_0>"]),
    "Unigram with bytes": dict(model_type="unigram", byte_fallback=True, normalization_rule_name="nfkc_cf"),
    "Unigram with symbols": dict(model_type="unigram", user_defined_symbols=["<a symbol with a long name>", "zq", "\n"]),
    "suffix": dict(model_type="unigram", treat_whitespace_as_suffix=True),
}


@functools.lru_cache
def sentencepiece_model(name):
    """Bytes of a tokenizer.model."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()[:1500]), model_writer=out, vocab_size=1500, hard_vocab_limit=False,
        character_coverage=0.99, num_threads=1, minloglevel=2, **SENTENCEPIECE[name])
    return out.getvalue()


def processor(name):
    return sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(name))


def charsmap(model):
    """precompiled_charsmap of a serialised model: field 2 of field 3."""
    def fields(data):
        at = 0
        def varint():
            nonlocal at
            value = shift = 0
            while True:
                value |= (data[at] & 0x7f) << shift
                at, shift = at + 1, shift + 7
                if data[at - 1] < 0x80:
                    return value
        while at < len(data):
            key = varint()
            size = varint() if key & 7 in (0, 2) else 4
            if key & 7 != 0:
                yield key >> 3, data[at:at + size]
                at += size
    return next(v for k, spec in fields(model) if k == 3 for k, v in fields(spec) if k == 2)


class Pieces:
    """PyPI sentencepiece behind the methods of PyPI tokenizers that same() calls."""

    def __init__(self, name):
        self.processor = processor(name)

    def encode(self, text):
        self.ids = self.processor.encode(text)
        return self

    def decode(self, ids):
        return self.processor.decode([int(i) for i in ids])
