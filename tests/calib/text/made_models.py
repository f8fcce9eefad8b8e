"""Tiny models whose tokenizer is SentencePiece's."""
import os
import pathlib
import sys

from made_tokenizers import SENTENCEPIECE, charsmap, processor, sentencepiece_model

sys.path.insert(0, str(pathlib.Path(os.environ["KVCC_SOURCE"]) / "tests/formats/weights"))
from tiny_llama import config, tensors, write_directory, write_gguf  # noqa: E402


def sentencepiece_gguf(path, name, keys=lambda w: None, change=lambda tokens, scores, types: None):
    p = processor(name)
    count = range(p.get_piece_size())
    unigram = SENTENCEPIECE[name]["model_type"] == "unigram"
    users = SENTENCEPIECE[name].get("user_defined_symbols", [])
    types = [2 if p.is_unknown(i) else 3 if p.is_control(i) else 6 if p.is_byte(i) else 5 if p.is_unused(i) else
             4 if p.id_to_piece(i) in users else 1 for i in count]
    # llama.cpp's converter writes the marks of user-defined tokens as spaces.
    tokens = [p.id_to_piece(i).replace("▁", " ") if t == 4 else p.id_to_piece(i) for i, t in enumerate(types)]
    scores = [p.get_score(i) for i in count]
    change(tokens, scores, types)

    def write_keys(writer):
        writer.add_tokenizer_model("t5" if unigram else "llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_bos_token_id(p.bos_id())
        writer.add_add_space_prefix(SENTENCEPIECE[name].get("add_dummy_prefix", True))
        if SENTENCEPIECE[name].get("remove_extra_whitespaces", True):
            writer.add_remove_extra_whitespaces(True)
        if SENTENCEPIECE[name].get("normalization_rule_name") != "identity":
            writer.add_precompiled_charsmap(charsmap(sentencepiece_model(name)))
        keys(writer)

    c = config(vocab_size=len(tokens))
    return write_gguf(path, c, tensors(c), keys=write_keys)


def sentencepiece_directory(folder, name):
    c = config(vocab_size=processor(name).get_piece_size())
    write_directory(folder, c, tensors(c))
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(name))
    return folder
