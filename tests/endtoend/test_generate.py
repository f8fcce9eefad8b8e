"""kvcc generate as users run it: on SmolLM2, and on tiny models without a tokenizer, where ids stand for text."""
import hashlib
import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest

from packed import evaluation_ids, smollm2_codebook
from support import KVCC, kvcc, kvcc_json, model_path, random_ids, tiny_llama


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generate")
    np.save(folder / "ids.npy", evaluation_ids(0, 100))
    return folder, [model_path(), "--codebook", smollm2_codebook(3), "--ids", folder / "ids.npy"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    model = tiny_llama(folder / "model", initializer_range=0.12, max_position_embeddings=160)
    random_ids(folder / "calibration.npy", 4, 128)
    random_ids(folder / "prompt.npy", 1, 100, seed=3)
    kvcc("calibrate", folder / "model", "-o", folder / "t.kvcb", "--ids", folder / "calibration.npy", "--samples", 4,
         "--seqlen", 128, "--scheme", "k=nuq3@prerope/channel,v=nuq3@token,sparse=2%,sink=1,residual=5,codebook=head,"
         "weight=f,first-thresholds=in,first-kmeans=out")
    return folder, model


def tiny_json(tiny, *arguments, **kw):
    return kvcc_json("generate", tiny[0] / "model", "--codebook", tiny[0] / "t.kvcb", *arguments, **kw)


@pytest.mark.parametrize("prefill", ("exact", "quantised"))
def test_text_goes_on_in_another_process(smollm2, tmp_path, prefill):
    _, common = smollm2
    whole = kvcc_json("generate", *common, "--tokens", 40, "--prefill", prefill)
    first = kvcc_json("generate", *common, "--tokens", 20, "--prefill", prefill, "--save-cache", tmp_path / "c")
    second = kvcc_json("generate", *common[:3], "--load-cache", tmp_path / "c", "--tokens", 20)
    assert len(whole["ids"]) == 40 and len(first["ids"]) == 20
    assert whole["ids"] == first["ids"] + second["ids"] and whole["text"] == first["text"] + second["text"]
    assert second["loaded_tokens"] == 120 and second["prompt_tokens"] == 0


def test_document(smollm2):
    _, common = smollm2
    document = kvcc_json("generate", *common, "--tokens", 30)
    assert next(iter(document)) == "schema_version" and document["stopped"] == "tokens"
    assert document["prompt_tokens"] == 100 and document["prefill"]["mode"] == "exact"
    assert document["prefill"]["seconds"] > 0 and document["decode"]["steps"] == 29
    assert document["decode"]["tokens_per_second"] == pytest.approx(29 / document["decode"]["seconds"])
    cache = document["cache"]
    assert cache["kind"] == "packed" and cache["tokens"] == 129 and cache["arithmetic"] == "f32" and cache["target"]
    assert cache["fp16_bytes"] == 129 * 30 * 2 * 3 * 64 * 2
    assert cache["bytes"] == cache["packed_bytes"] + cache["exact_bytes"] <= cache["reserved_bytes"]
    assert cache["exact_bytes"] == 30 * 2 * 3 * 64 * 2  # the sink
    assert cache["compression"] == pytest.approx(cache["fp16_bytes"] / cache["bytes"]) and cache["compression"] > 2


def test_text_is_streamed_and_the_summary_is_not_in_it(smollm2):
    _, common = smollm2
    document = kvcc_json("generate", *common, "--tokens", 30)
    out, err = kvcc("generate", *common, "--tokens", 30)
    assert out == document["text"] + "\n" and "prefill, exact" in err and "compression" in err
    out, err = kvcc("generate", *common, "--tokens", 30, "--quiet")
    assert out == document["text"] + "\n" and err == ""


def test_greedy_text_of_an_fp16_cache_is_the_models_own(tmp_path):
    """Against transformers; fp16 rows change logits by 1e-3 or so."""
    import torch
    from reference_model import llama_from_gguf
    ids = evaluation_ids(0, 64)
    np.save(tmp_path / "ids.npy", ids)
    with torch.no_grad():
        follow = llama_from_gguf(model_path()).generate(torch.tensor(ids.astype(np.int64))[None], max_new_tokens=30,
                                                        min_new_tokens=30, do_sample=False)[0, 64:].tolist()
    for prefill in ("exact", "quantised"):
        document = kvcc_json("generate", model_path(), "--cache", "fp16", "--ids", tmp_path / "ids.npy", "--tokens", 30,
                             "--ignore-eos", "--prefill", prefill)
        assert document["ids"] == follow
        assert document["cache"] == {"kind": "fp16", "tokens": 93, "fp16_bytes": 93 * 30 * 2 * 3 * 64 * 2}


def test_export_is_the_same_artifact(smollm2, tmp_path):
    _, common = smollm2
    kvcc("export", common[2], "--to", "safetensors", "-o", tmp_path / "s.safetensors")
    ours = kvcc_json("generate", *common, "--tokens", 12)
    exported = kvcc_json("generate", common[0], "--codebook", tmp_path / "s.safetensors", *common[3:], "--tokens", 12)
    assert exported["ids"] == ours["ids"] and exported["cache"] == ours["cache"]
    error = kvcc("generate", common[0], "--codebook", tmp_path / "s.safetensors", *common[3:], "--cache", "simulated", code=2)[1]
    assert "the .kvcb it was made from" in error


def test_chat_stops_at_the_end_of_the_turn(smollm2, tmp_path):
    folder, common = smollm2
    chat = ["generate", *common[:3], "--chat"]
    document = kvcc_json(*chat, "--prompt", "What is the capital of France? Answer in one word.", "--tokens", 60, "--save-cache",
                          tmp_path / "c")
    assert document["stopped"] == "end" and document["ids"][-1] == 2 and "<|" not in document["text"]
    more = kvcc_json(*chat, "--prompt", "And of Italy?", "--tokens", 5, "--load-cache", tmp_path / "c")
    assert more["loaded_tokens"] == document["prompt_tokens"] + len(document["ids"])
    assert more["prompt_tokens"] == 14  # "\n<|im_start|>user\nAnd of Italy?<|im_end|>\n<|im_start|>assistant\n"
    system = kvcc_json(*chat, "--prompt", "Hi", "--system", "Be brief.", "--tokens", 1)
    assert system["prompt_tokens"] > kvcc_json(*chat, "--prompt", "Hi", "--tokens", 1)["prompt_tokens"]
    (tmp_path / "prompt.txt").write_text("Hi")
    from_file = kvcc_json(*chat, "--prompt-file", tmp_path / "prompt.txt", "--tokens", 5)
    assert from_file["ids"] == kvcc_json(*chat, "--prompt", "Hi", "--tokens", 5)["ids"]


def test_sampling(tiny):
    folder = tiny[0]
    prompt = ["--ids", folder / "prompt.npy", "--tokens", 40, "--ignore-eos"]
    greedy = tiny_json(tiny, *prompt)["ids"]
    hot = tiny_json(tiny, *prompt, "--temperature", 2, "--seed", 5)["ids"]
    assert hot == tiny_json(tiny, *prompt, "--temperature", 2, "--seed", 5)["ids"] != greedy
    assert hot != tiny_json(tiny, *prompt, "--temperature", 2, "--seed", 6)["ids"]
    assert tiny_json(tiny, *prompt, "--temperature", 2, "--top-p", 1e-6, "--seed", 5)["ids"] == greedy
    assert tiny_json(tiny, *prompt, "--temperature", 1e-4)["ids"] == greedy
    boiling = tiny_json(tiny, *prompt, "--temperature", 100)["ids"]  # 256 tokens, nearly alike
    assert 90 < np.mean(boiling) < 165 and len(set(boiling)) > 25


def test_residual_window_is_saved(tiny, tmp_path):
    prompt = ["--ids", tiny[0] / "prompt.npy", "--ignore-eos"]
    whole = tiny_json(tiny, *prompt, "--tokens", 30)["ids"]
    first = tiny_json(tiny, *prompt, "--tokens", 3, "--save-cache", tmp_path / "c")["ids"]
    second = tiny_json(tiny, "--load-cache", tmp_path / "c", "--tokens", 27, "--ignore-eos", "--save-cache", tmp_path / "c")["ids"]
    assert first + second == whole
    assert tiny_json(tiny, "--load-cache", tmp_path / "c", "--tokens", 1)["loaded_tokens"] == 130


def test_a_prompt_can_be_packed_once(tiny, tmp_path):
    """--tokens 0; what comes later attends to the packed prompt in either mode."""
    np.save(tmp_path / "more.npy", np.arange(10, dtype=np.int32))
    document = tiny_json(tiny, "--ids", tiny[0] / "prompt.npy", "--tokens", 0, "--save-cache", tmp_path / "c")
    assert document["ids"] == [] and document["decode"]["tokens_per_second"] == 0
    more = [tiny_json(tiny, "--load-cache", tmp_path / "c", "--ids", tmp_path / "more.npy", "--tokens", 8)["ids"] for _ in range(2)]
    assert more[0] == more[1] and len(more[0]) == 8
    assert "holds no token" in kvcc("generate", tiny[0] / "model", "--codebook", tiny[0] / "t.kvcb", "--load-cache",
                                    tmp_path / "c", code=2)[1]


def test_models_context(tiny):
    """160 positions: a prompt above is refused, text that reaches it stops."""
    folder = tiny[0]
    document = tiny_json(tiny, "--ids", folder / "prompt.npy", "--tokens", 128, "--ignore-eos")
    assert document["stopped"] == "context" and document["cache"]["tokens"] == 160 and len(document["ids"]) == 61
    random_ids(folder / "long.npy", 1, 161)
    out, error = kvcc("generate", folder / "model", "--codebook", folder / "t.kvcb", "--ids", folder / "long.npy", code=2)
    assert out == "" and "161 tokens" in error and "at most 160, the model's context" in error


def test_other_models(tiny, tmp_path):
    folder = tiny[0]
    tiny_llama(tmp_path / "other", num_key_value_heads=4, num_hidden_layers=2, max_position_embeddings=160)
    for artifact in ("t.kvcb", "t.safetensors"):
        if artifact.endswith("s"):
            kvcc("export", folder / "t.kvcb", "--to", "safetensors", "-o", folder / artifact)
        error = kvcc("generate", tmp_path / "other", "--codebook", folder / artifact, "--ids", folder / "prompt.npy", code=3)[1]
        assert "kv_heads: artifact 2, model 4" in error and "layers: artifact 3, model 2" in error
    tiny_llama(tmp_path / "tuned", seed=7, initializer_range=0.12, max_position_embeddings=160)
    error = kvcc("generate", tmp_path / "tuned", "--codebook", folder / "t.kvcb", "--ids", folder / "prompt.npy", "--tokens", 2)[1]
    assert "made from other weights" in error and "ids are printed in place of text" in error


def test_wrong_usage(tiny, tmp_path):
    folder = tiny[0]
    common = ["generate", folder / "model"]
    book, ids = ["--codebook", folder / "t.kvcb"], ["--ids", folder / "prompt.npy"]
    assert "--codebook" in kvcc(*common, *ids, code=2)[1]
    assert "nothing to go on from" in kvcc(*common, *book, code=2)[1]
    assert "--cache packed" in kvcc(*common, *book, *ids, "--cache", "simulated", "--save-cache", tmp_path / "x", code=2)[1]
    assert "no folder" in kvcc(*common, *book, *ids, "--save-cache", tmp_path / "none" / "x", code=2)[1]
    for arguments in (["--prompt", "a"], ["--chat"], ["--tokens", -1], ["--top-p", 0], ["--prefill", "fast"], ["--system", "x"],
                      ["--temperature", "nan"], ["--top-p", "nan"]):
        kvcc(*common, *book, *ids, *arguments, code=2)
    kvcc(*common, *book, "--prompt", "a", code=3)  # no tokenizer
    (tmp_path / "no.kvcache").write_bytes(b"nothing")
    kvcc(*common, *book, "--load-cache", tmp_path / "no.kvcache", code=3)
    error = kvcc(*common, "--codebook", tmp_path / "no.kvcache", *ids, code=3)[1]
    assert "neither HDF5 nor safetensors" in error
    os.mkfifo(tmp_path / "fifo")
    for target in (tmp_path, tmp_path / "fifo"):  # said before the work, and what is there stays
        out, error = kvcc(*common, *book, *ids, "--save-cache", target, code=3)
        assert out == "" and "the name of a file to write" in error
    assert (tmp_path / "fifo").is_fifo()


def test_numbers_beyond_the_runtimes_limits(tiny):
    """The model's context bounds what is asked for, and 1,024 threads what the runtime takes."""
    document = tiny_json(tiny, "--ids", tiny[0] / "prompt.npy", "--tokens", 1 << 24, "--threads", 1100, "--ignore-eos")
    assert document["stopped"] == "context" and document["cache"]["tokens"] == 160


def test_ids_in_a_file_belong_to_its_tokens(tiny, tmp_path):
    """The C API saves any ids; these are of a right checksum, and wrong."""
    tiny_json(tiny, "--ids", tiny[0] / "prompt.npy", "--tokens", 5, "--ignore-eos", "--save-cache", tmp_path / "c")
    whole = (tmp_path / "c").read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header, data = json.loads(whole[8:8 + size]), whole[8 + size:]
    first, last = header["token_ids"]["data_offsets"]
    assert last == len(data) == first + 4 * 105

    def damaged(ids):
        tensors = {**header, "token_ids": {"dtype": "I32", "shape": [len(ids)], "data_offsets": [first, first + 4 * len(ids)]}}
        content = data[:first] + np.array(ids, "<i4").tobytes()
        metadata = tensors.pop("__metadata__")
        digest = hashlib.sha256()
        for name in sorted(set(metadata) - {"content_sha256"}):
            digest.update(f"metadata {name} {len(metadata[name].encode())}\n{metadata[name]}\n".encode())
        for name, tensor in sorted(tensors.items()):
            part = content[slice(*tensor["data_offsets"])]
            digest.update(f"tensor {name} {tensor['dtype']} {'x'.join(map(str, tensor['shape']))} {len(part)}\n".encode() + part + b"\n")
        text = json.dumps({"__metadata__": {**metadata, "content_sha256": digest.hexdigest()}, **tensors}).encode()
        (tmp_path / "d").write_bytes(len(text).to_bytes(8, "little") + text + content)
        return ["generate", tiny[0] / "model", "--codebook", tiny[0] / "t.kvcb", "--load-cache", tmp_path / "d", "--tokens", 2,
                "--ids", tmp_path / "more.npy"]

    random_ids(tmp_path / "more.npy", 1, 20)
    ids = np.frombuffer(data[first:], "<i4").tolist()
    kvcc(*damaged([]), "--ignore-eos")
    assert "ids of 103 tokens for 104 in the cache" in kvcc(*damaged(ids[:103]), code=3)[1]
    assert "ids of 106 tokens for 104 in the cache" in kvcc(*damaged(ids + [1]), code=3)[1]
    assert "token id -1" in kvcc(*damaged([-1] + ids[1:]), code=3)[1]
    assert "token id 1073741824" in kvcc(*damaged(ids[:104] + [1 << 30]), code=3)[1]


def test_interrupt_keeps_what_is_there(smollm2, tmp_path):
    _, common = smollm2
    command = [str(KVCC), "generate", *map(str, common), "--tokens", "4000", "--ignore-eos", "--save-cache", str(tmp_path / "c")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
        first = process.stdout.read1(1)  # text has begun
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert b"(interrupted)" in error and b"tokens per second" in error
    printed = (first + out).decode()
    document = kvcc_json("generate", *common[:3], "--load-cache", tmp_path / "c", "--tokens", 3)
    made = document["loaded_tokens"] - 100
    assert 0 < made < 4000
    whole = kvcc_json("generate", *common, "--tokens", made + 3, "--ignore-eos")
    text = whole["text"].removesuffix(document["text"])
    assert text + document["text"] == whole["text"] and printed == (text if text.endswith("\n") else text + "\n")


def test_help_is_true():
    out, _ = kvcc("generate", "--help")
    for option in ("--codebook", "--prompt", "--prompt-file", "--ids", "--tokens", "--temperature", "--top-p", "--seed",
                   "--prefill", "--chat", "--system", "--ignore-eos", "--save-cache", "--load-cache", "--arithmetic",
                   "--units", "--threads", "--json", "--cache"):
        assert option in out
    assert "generate" in kvcc("completion", "bash")[0]
