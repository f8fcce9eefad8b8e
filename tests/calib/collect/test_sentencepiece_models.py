"""kvcc collect on models with a SentencePiece vocabulary, whose library and libtorch are in one program: the ids of the samples are
PyPI sentencepiece's, and the BOS policy and the tokenizer are in the record."""
import hashlib
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from support import BUILD, SOURCE

sys.path.insert(0, str(pathlib.Path(SOURCE) / "tests/calib/text"))
from made_models import config, sentencepiece_directory, sentencepiece_gguf, tensors, write_directory  # noqa: E402
from made_tokenizers import processor  # noqa: E402

TEXT = "The tower is 324 metres tall, naïve café.\n" * 20


def collect(*arguments):
    done = subprocess.run([str(BUILD / "libexec/kvcc/kvcc-collect"), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("form, name", [("gguf", "Llama 2"), ("directory", "Gemma"), ("directory", "T5")])
@pytest.mark.parametrize("bos", ["auto", "off"])
def test_samples_and_record(tmp_path, form, name, bos):
    p = processor(name)
    model = sentencepiece_gguf(tmp_path / "m.gguf", name) if form == "gguf" else sentencepiece_directory(tmp_path / "model", name)
    (tmp_path / "text.txt").write_text(TEXT)
    collect(model, "--text", tmp_path / "text.txt", "--samples", 2, "--seqlen", 24, "--bos", bos, "-o", tmp_path / "acts", "--quiet")
    record = json.loads((tmp_path / "acts/manifest.json").read_text())["settings"]
    on = bos == "auto"
    assert record["bos"] == ("on" if on else "off") and len(record["tokenizer_sha256"]) == 64
    whole = p.encode(TEXT)
    for offset, digest in zip(record["offsets"], record["sample_sha256"], strict=True):
        ids = ([p.bos_id()] if on else []) + whole[offset:offset + 24 - on]
        assert digest == hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest()


def test_ids_need_no_tokenizer(tmp_path):
    """A tokenizer that kvcc does not know stops a text, by name; ids go through."""
    model = tmp_path / "model"
    c = config(vocab_size=300)
    write_directory(model, c, tensors(c))
    (model / "tokenizer.json").write_text('{"model": {"type": "WordPiece", "vocab": {}}}')
    (tmp_path / "text.txt").write_text(TEXT)
    np.save(tmp_path / "ids.npy", np.arange(48, dtype=np.int32).reshape(2, 24))
    command = [str(BUILD / "libexec/kvcc/kvcc-collect"), str(model), "--samples", "2", "--seqlen", "24", "-o", str(tmp_path / "acts"), "--quiet"]
    done = subprocess.run([*command, "--text", str(tmp_path / "text.txt")], capture_output=True, text=True)
    assert done.returncode == 3 and "tokenizer model WordPiece" in done.stderr and "--ids FILE" in done.stderr
    done = subprocess.run([*command, "--ids", str(tmp_path / "ids.npy")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
