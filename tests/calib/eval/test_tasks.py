"""kvcc eval --task: greedy answers over each scheme's simulated cache, against transformers."""
import json
import os
import shutil
import subprocess

import numpy as np
import pytest
import torch

import literal
import oracle
from calib.collect.test_weights import read as read_weights
from calib.eval.test_eval import CALM, evaluate, run
from support import KVCC, random_ids, tiny_llama


def tokenizer(folder, vocab=256):
    """Printable ASCII, a token a character, and pairs of letters that no text is encoded as: all answers are ASCII."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    characters = ["\u0120"] + [chr(c) for c in range(33, 127)]  # a space is written as G with a dot
    pairs = [a + b for a in "abcdefgh" for b in "abcdefghijklmnopqrstuvwxyz"]
    words = (characters + pairs)[:vocab]
    tokens = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, []))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.save(str(folder / "tokenizer.json"))
    return tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks") / "model"
    made = tiny_llama(folder, max_position_embeddings=4096, **CALM)
    return folder, made, tokenizer(folder)


def greedy(made, ids, count, coder=None, **keywords):
    """Token by token over the literal cache; the prompt sees itself exactly."""
    ids, given = list(ids), []
    for _ in range(count):
        logits, _ = literal.decode(made, np.array(ids), coder, "prefill-exact", prompt=len(ids) - len(given), **keywords)
        given.append(int(logits[-1].argmax()))
        ids.append(given[-1])
    return given


def test_answers_are_those_of_a_literal_decode(model, tmp_path):
    """RULER's score is 1 when the text that transformers decodes is in the answer."""
    folder, made, tokens = model
    prompts = ["What is it, then?", "Two and two make", "The sea was"]
    levels = np.tile(oracle.integer_levels(2), (2, 1))
    schemes = {"fp": lambda layer, kind, x: x, "int2": lambda layer, kind, x: oracle.token(x, levels, 0)}
    for name, coder in schemes.items():
        file = tmp_path / f"{name}.jsonl"
        with open(file, "w") as out:
            for prompt in prompts:
                ids = tokens.encode(prompt).ids
                answer = tokens.decode(greedy(made, ids, 6, coder))
                out.write(json.dumps({"input": prompt, "outputs": [answer], "max_tokens": 6}) + "\n")
    for name in schemes:
        document = evaluate(folder, "--task", f"ruler={tmp_path / name}.jsonl", "--scheme", "int2")
        scores = {row["scheme"]: row["tasks"][0] for row in document["results"]}
        assert scores[name]["score"] == 1 and scores[name]["scored"] == 3, (name, scores)
    other = scores["fp"]["score"]  # of int2's answers
    assert other < 1


def test_answers_on_quantised_weights(model, tmp_path):
    """Full precision answers with the model's own weights, everything else with those of --weights."""
    from transformers import LlamaForCausalLM
    folder, made, tokens = model
    random_ids(tmp_path / "ids.npy", 1, 64)
    weights = tmp_path / "w.kvcw"
    run("fit-weights", folder, "-o", weights, "--bits", 2, "--ids", tmp_path / "ids.npy", "--samples", 1, "--seqlen", 64)
    quantised = LlamaForCausalLM.from_pretrained(folder).eval()
    state = quantised.state_dict()
    for name, (values, _, _) in read_weights(weights).items():
        state[name].copy_(torch.from_numpy(values))
    scores = {}
    for name, who in {"own": made, "quantised": quantised}.items():
        with open(tmp_path / f"{name}.jsonl", "w") as out:
            for prompt in ("What is it, then?", "Two and two make"):
                answer = tokens.decode(greedy(who, tokens.encode(prompt).ids, 4, lambda layer, kind, x: x))
                out.write(json.dumps({"input": prompt, "outputs": [answer], "max_tokens": 4}) + "\n")
        document = evaluate(folder, "--task", f"ruler={tmp_path / name}.jsonl", "--weights", weights, "--scheme", "int4")
        assert document["weights"]["name"] == "w2-s0.45" and len(document["results"]) == 3
        scores[name] = [row["tasks"][0]["score"] for row in document["results"][:2]]
    assert scores["own"][0] == scores["quantised"][1] == 1
    assert scores["own"][1] < 1 and scores["quantised"][0] < 1


def test_block_codecs_and_tails_decode(model):
    """Every kind of cache answers; what the model says is of no use here."""
    folder, _, _ = model
    document = evaluate(folder, "--task", "passkey:200", "--samples", 2, "--scheme", "int4", "--scheme", "int2", "--sink", 2,
                        "--tail", 4)
    assert [row["scheme"] for row in document["results"]] == ["fp", "int4", "int2"]
    for row in document["results"]:
        task, = row["tasks"]
        assert task["task"] == "passkey:200" and task["samples"] == task["scored"] == 2 and task["score"] == 0
    assert document["mode"] == "prefill-exact"
    table = run("eval", folder, "--task", "passkey:200", "--task", "codes:3", "--samples", 1).stdout
    assert table.splitlines()[0].startswith("scheme") and "codes:3 (exact match)" in table.splitlines()[0]


def test_a_prompt_that_sees_the_quantised_cache(model, tmp_path):
    folder, made, tokens = model
    ids = tokens.encode("What is it, then?").ids
    levels = np.tile(oracle.integer_levels(2), (2, 1))
    coder = lambda layer, kind, x: oracle.token(x, levels, 0)
    given = []
    for _ in range(5):
        now = np.array(ids + given)
        log = oracle.simulate(made, now, before=lambda l, k, x: coder(l, k, x) if k == "value" else x, after=coder)
        given.append(int(log[-1].argmax()))
    (tmp_path / "r.jsonl").write_text(json.dumps({"input": "What is it, then?", "outputs": [tokens.decode(given)], "max_tokens": 5}))
    document = evaluate(folder, "--task", f"ruler={tmp_path / 'r.jsonl'}", "--scheme", "int2", "--mode", "full")
    assert document["mode"] == "full" and document["results"][1]["tasks"][0]["score"] == 1


def test_the_report_of_tasks(model, tmp_path):
    """--html writes the document that --json prints."""
    folder, _, _ = model
    file = tmp_path / "i.jsonl"
    file.write_text(json.dumps({"prompt": "Hi", "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
                                "kwargs": [{}, {"keywords": ["~never~"]}]}) + "\n")
    document = evaluate(folder, "--task", f"ifeval={file}", "--scheme", "int4", "--html", tmp_path / "t.html")
    task = document["results"][1]["tasks"][0]
    assert task["score"] == 0 and [further["metric"] for further in task["further"]] == [
        "all instructions followed (loose)", "instructions followed (strict)", "instructions followed (loose)"]
    assert task["further"][0]["score"] == 0 and task["further"][1]["score"] <= task["further"][2]["score"] <= 0.5
    page = (tmp_path / "t.html").read_text()
    found = json.loads(page.split('id="kvcc-data"', 1)[1].split(">", 1)[1].split("</script>", 1)[0])
    assert found["results"][1]["tasks"][0]["further"] == task["further"]
    table = run("eval", folder, "--task", f"ifeval={file}", "--scheme", "int4", "--html", tmp_path / "u.html").stdout
    assert "int4" in table and "ifeval" in table and "ifeval" in (tmp_path / "u.html").read_text(), "without --json too"


def test_weights_that_change_under_the_run_score_nothing(model, tmp_path):
    folder, _, _ = model
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "r.jsonl"
    file.write_text("".join(json.dumps({"input": f"Prompt {i}", "outputs": ["x"], "max_tokens": 32}) + "\n" for i in range(200)))
    process = subprocess.Popen([KVCC, "eval", tmp_path / "model", "--task", f"ruler={file}", "--scheme", "int4", "-v"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for line in process.stderr:
        if ", fp: " in line:  # an answer of many
            break
    with open(tmp_path / "model/model.safetensors", "r+b") as weights:
        weights.seek(-1, os.SEEK_END)
        weights.write(b"\x01")
    out, told = process.communicate()
    assert process.returncode == 3 and out == "" and "model.safetensors: changed" in told, told


def test_usage(model, tmp_path):
    folder, _, _ = model
    assert "passkey" in run("eval", folder, "--task", "haystack", code=2).stderr
    assert "passkey:4096" in run("eval", folder, "--task", "passkey:many", code=2).stderr
    assert "beyond-context" in run("eval", folder, "--task", "passkey:8000", "--samples", 1, code=2).stderr
    run("eval", folder, "--task", "passkey:200", "--mode", "pseudo-decode", code=2)
    run("eval", folder, "--task", f"gsm8k={tmp_path / 'none.jsonl'}", code=3)
    code = {"task_id": "T/0", "prompt": "def f():\n", "test": "def check(f):\n    pass\n", "entry_point": "f"}
    (tmp_path / "h.jsonl").write_text(json.dumps(code))
    done = run("eval", folder, "--task", f"humaneval={tmp_path / 'h.jsonl'}", "--beyond-context", "--json")
    assert "--run-code" in done.stderr
    task, = json.loads(done.stdout)["results"][0]["tasks"]
    assert task["score"] is None and task["scored"] == 0
