"""Texts of every kind to samples: JSON lines, conversations, documents of their own length, mixtures. Oracles: tokenizers, transformers, Python's random, NumPy."""
import hashlib
import json
import math
import random

import h5py
import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from reference_model import fisher_pass, tap_keys_and_values
from support import kvcc, kvcc_json, tiny_llama

SCHEME = "kvcc-nuq3-1%-sink1"
MARKS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHAT = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim + '<|im_end|>' + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
WORDS = "the a of kv cache token layer head quantile sample window text model error bits outlier zero scale né 世界".split()


def words(seed, count):
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(count)) + "\n"


DOCUMENTS = [words(i, n) for i, n in enumerate((30, 3, 12, 55, 8, 21, 40, 1))]


class Place:
    def __init__(self, folder):
        self.folder, self.model = folder, folder / "model"
        self.llama = tiny_llama(self.model, vocab_size=260)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
        tokenizer.save(str(self.model / "tokenizer.json"))
        self.tokenizer = tokenizer
        (self.model / "tokenizer_config.json").write_text(json.dumps({
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}, "chat_template": CHAT}))
        self.texts = self.lines("texts.jsonl", [{"id": i, "text": text} for i, text in enumerate(DOCUMENTS)])
        self.other = folder / "other é.txt"
        self.other.write_text(words(99, 400))

    def lines(self, name, objects):
        path = self.folder / name
        path.write_text("\n".join(json.dumps(o) for o in objects) + "\n")
        return path

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def collect(self, *options, seqlen=96, samples=3, name="a.acts"):
        out = self.folder / name
        report = kvcc_json("collect", self.model, "-o", out, "--seqlen", seqlen, "--samples", samples, "--force", *options)
        return out, json.loads((out / "manifest.json").read_text())["settings"], report


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("texts é"))


def hash_of(ids):
    return hashlib.sha256(np.asarray(ids, np.int32).tobytes()).hexdigest()


def shuffled(count, seed):
    order = list(range(count))
    rng = random.Random(seed)
    rng.shuffle(order)
    return order


def documents(place, order, samples, seqlen, texts=None):
    """(numbers, ids) of the first documents in this order that predict something."""
    kept = []
    for number in order:
        ids = place.encode((texts or DOCUMENTS)[number])[:seqlen]
        if len(ids) >= 2:
            kept.append((number, ids))
    return kept[:samples]


def shard(folder, sample, layer):
    with h5py.File(folder / f"s{sample:04}" / f"l{layer:04}.h5") as file:
        return {name: file[name][()] for name in file}


def test_documents_are_samples_of_their_own_length(place):
    """Keys, values and Fisher are those of transformers run document by document; nothing is padded, and no fit sees more than there is."""
    folder, settings, report = place.collect("--dataset", place.texts, "--packing", "document", "--seed", 5, samples=6, seqlen=120)
    wanted = documents(place, shuffled(len(DOCUMENTS), 5), 6, 120)
    assert settings["offsets"] == [n for n, _ in wanted]
    assert settings["lengths"] == [len(ids) for _, ids in wanted] and len(set(settings["lengths"])) > 3
    assert settings["sample_sha256"] == [hash_of(ids) for _, ids in wanted]
    assert report["tokens"] == sum(settings["lengths"]) and settings["seqlen"] == 120
    taps = tap_keys_and_values(place.llama)
    losses, everything = [], {}
    for sample, (_, ids) in enumerate(wanted):
        loss, activations, gradients = fisher_pass(place.llama, taps, np.array(ids))
        losses.append(loss * (len(ids) - 1))
        for layer in range(3):
            ours = shard(folder, sample, layer)
            for i, name in enumerate(("key", "value")):
                a = activations[2 * layer + i].numpy().reshape(ours[name].shape)
                g = gradients[2 * layer + i].double().numpy().reshape(ours[name].shape) * (len(ids) - 1)
                assert ours[name].shape[0] == len(ids)
                np.testing.assert_allclose(ours[name], a, rtol=1e-4, atol=2e-5 * np.abs(a).max())
                np.testing.assert_allclose(ours[name + "_grad"], g, rtol=1e-4, atol=2e-5 * np.abs(g).max())
                everything.setdefault((layer, name), []).append((ours[name], ours[name + "_grad"]))
    assert report["nll"] == pytest.approx(sum(losses) / sum(len(ids) - 1 for _, ids in wanted), rel=1e-5)
    book = place.folder / "documents.kvcb"
    kvcc("fit", folder, "--scheme", SCHEME, "-o", book, "--force")
    with h5py.File(book) as file:
        assert file["provenance"].attrs["tokens"] == sum(settings["lengths"])
        for layer in range(3):
            x, g = (np.concatenate(parts).astype(np.float64) for parts in zip(*everything[layer, "key"]))
            rest = np.concatenate([part[1:] for part, _ in everything[layer, "key"]]).astype(np.float64)
            close = dict(rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(file["key/stats/mean"][layer], x.mean(0), **close)
            np.testing.assert_allclose(file["key/stats/variance"][layer], x.var(0), **close)
            np.testing.assert_allclose(file["key/stats/fisher"][layer], (g**2).mean(0), **close)
            for name, q in (("threshold_lower", 0.005), ("threshold_upper", 0.995)):  # first tokens are out
                np.testing.assert_allclose(file[f"key/{name}"][layer], np.quantile(rest, q, axis=0), **close)
            first = sum((gradient[0].astype(np.float64) ** 2).sum(-1) for _, gradient in everything[layer, "key"])
            np.testing.assert_allclose(file["key/stats/first_token_share"][layer], first / (g**2).sum((0, 2)), **close)
            share = [[(gradient[1:, h].astype(np.float64) ** 2).sum() for _, gradient in everything[layer, "key"]] for h in range(2)]
            assert file["key/stats/heaviest_sample"][layer].tolist() == np.argmax(share, 1).tolist()
            coded = np.concatenate([part[1:] for part, _ in everything[layer, "key"]])
            outside = (coded < file["key/threshold_lower"][layer]) | (coded > file["key/threshold_upper"][layer])
            np.testing.assert_allclose(file["key/outlier_fraction"][layer], outside.mean((0, 2)), rtol=1e-6)
    kvcc("validate", folder, book)
    assert kvcc_json("inspect", folder)["samples"] == 6


def test_a_document_alone_is_the_sample_that_ids_give(place):
    """The same shards, byte for byte, whichever way the ids came."""
    folder, settings, _ = place.collect("--dataset", place.texts, "--packing", "document", samples=4)
    for sample, (_, ids) in enumerate(documents(place, shuffled(len(DOCUMENTS), 0), 4, 96)):
        np.save(place.folder / "one.npy", np.array([ids], np.int32))
        alone, _, _ = place.collect("--ids", place.folder / "one.npy", samples=1, seqlen=len(ids), name="one.acts")
        for layer in range(3):
            a, b = shard(folder, sample, layer), shard(alone, 0, layer)
            assert all(np.array_equal(a[name], b[name]) for name in a)


def test_packed_lines_are_joined_and_cut(place):
    folder, settings, _ = place.collect("--dataset", place.texts, samples=5, seqlen=64)
    joined = [i for text in DOCUMENTS for i in place.encode(text)]
    rng = random.Random(0)
    offsets = [rng.randint(0, len(joined) - 65) for _ in range(5)]
    assert settings["offsets"] == offsets and "lengths" not in settings
    assert settings["sample_sha256"] == [hash_of(joined[o:o + 64]) for o in offsets]
    assert settings["text_name"] == "texts.jsonl" and settings["text_sha256"] == hashlib.sha256(place.texts.read_bytes()).hexdigest()


def test_the_field_and_bos(place):
    path = place.lines("body.jsonl", [{"body": text, "text": "no"} for text in DOCUMENTS])
    _, settings, _ = place.collect("--dataset", path, "--field", "body", "--packing", "document", "--bos", "on", samples=2, seqlen=50)
    bos = place.tokenizer.token_to_id("<s>")
    wanted = [[bos, *place.encode(DOCUMENTS[n])][:50] for n in shuffled(len(DOCUMENTS), 0)[:2]]
    assert settings["sample_sha256"] == [hash_of(ids) for ids in wanted] and settings["bos"] == "on"


def test_conversations_go_through_the_models_own_template(place):
    from transformers import PreTrainedTokenizerFast
    reference = PreTrainedTokenizerFast.from_pretrained(place.model)
    talks = [[{"role": "system", "content": " Be brief. "}, {"role": "user", "content": f"Question {i}?\n"}, {"role": "assistant", "content": text}]
             for i, text in enumerate(DOCUMENTS)]
    path = place.lines("talks.jsonl", [{"messages": messages} for messages in talks])
    wanted = [reference.apply_chat_template(messages, tokenize=True, return_dict=False) for messages in talks]
    _, settings, _ = place.collect("--dataset", path, "--packing", "document", "--seed", 2, samples=5, seqlen=512)
    assert settings["sample_sha256"] == [hash_of(wanted[n]) for n in shuffled(len(talks), 2)[:5]]
    assert settings["text_flavour"] == "chat" and settings["bos"] == "off"
    joined = [i for ids in wanted for i in ids]
    _, settings, _ = place.collect("--dataset", path, "--seed", 2, samples=2, seqlen=200)
    assert settings["sample_sha256"] == [hash_of(joined[o:o + 200]) for o in settings["offsets"]]


def test_mixtures_have_exact_proportions(place):
    folder, settings, report = place.collect("--dataset", f"{place.texts}:0.3,{place.other}:0.7", samples=10, seqlen=48, name="mix.acts")
    assert [settings["sample_part"].count(p) for p in (0, 1)] == [3, 7]
    had = [0, 0]
    for n, part in enumerate(settings["sample_part"], 1):
        had[part] += 1
        assert abs(had[0] - 0.3 * n) < 1
    for number, path in enumerate((place.texts, place.other)):
        alone = place.collect("--dataset", path, samples=had[number], seqlen=48)[1]
        ours = [s for s, part in zip(settings["sample_sha256"], settings["sample_part"]) if part == number]
        assert ours == alone["sample_sha256"]
        part = settings["parts"][number]
        assert part == {"text_name": path.name, "text_sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "text_flavour": "raw", "bos": "off",
                        "weight": pytest.approx((0.3, 0.7)[number]), "tokens": 48 * had[number]}
        assert report["parts"][number]["samples"] == had[number]
    kvcc("fit", folder, "--scheme", SCHEME, "-o", place.folder / "mix.kvcb", "--force")
    with h5py.File(place.folder / "mix.kvcb") as file:
        sources = json.loads(file["provenance"].attrs["sources"])
    assert [(s["text_name"], s["samples"], s["tokens"], round(s["weight"], 9)) for s in sources] == [("texts.jsonl", 3, 144, 0.3), (place.other.name, 7, 336, 0.7)]
    # The option again is the same, and the run before it resumes; merging keeps each sample's own text.
    again = kvcc_json("collect", place.model, "-o", folder, "--dataset", f"{place.texts}:3", "--dataset", f"{place.other}:7", "--samples", 10, "--seqlen", 48, "--resume")
    assert again["nll"] is None and again["samples"] == 10
    more = place.collect("--dataset", place.other, "--seed", 9, samples=2, seqlen=48, name="more.acts")[0]
    merged = kvcc_json("merge", folder, more, "-o", place.folder / "merged.acts", "--force")
    assert sorted((s["text_name"], s["samples"]) for s in merged["sources"]) == sorted([("texts.jsonl", 3), (place.other.name, 7), (place.other.name, 2)])


def test_self_is_a_part_like_others(place):
    folder, settings, _ = place.collect("--dataset", f"self:1,{place.other}:1", samples=4, seqlen=32, name="self.acts")
    ids = np.load(folder / "self_ids.npy")
    assert ids.shape == (2, 32) and settings["sample_part"] == [0, 1, 0, 1]
    assert settings["sample_sha256"][0] == hash_of(ids[0]) and settings["sample_sha256"][2] == hash_of(ids[1])
    assert settings["parts"][0]["text_sha256"] == hashlib.sha256(ids.tobytes()).hexdigest() and settings["parts"][0]["tokens"] == 64


def test_merged_documents_keep_their_lengths(place):
    a = place.collect("--dataset", place.texts, "--packing", "document", "--seed", 1, samples=3, name="d1.acts")[0]
    b = place.collect("--dataset", place.other, "--packing", "document", samples=1, name="d2.acts")[0]
    out = place.folder / "documents.acts"
    kvcc("merge", a, b, "-o", out, "--force")
    settings = json.loads((out / "manifest.json").read_text())["settings"]
    assert [shard(out, s, 0)["key"].shape[0] for s in range(4)] == settings.get("lengths", [96] * 4)
    kvcc("validate", out)
    kvcc("fit", out, "--scheme", SCHEME, "-o", place.folder / "merged.kvcb", "--force")


def test_evaluation_counts_each_prediction_once(place):
    """Documents of several lengths: the mean is over all predictions alike, as transformers has them one by one."""
    report = kvcc_json("eval", place.model, "--dataset", place.texts, "--packing", "document", "--windows", 0, "--seqlen", 100, "--scheme", "int4")
    kept = documents(place, range(len(DOCUMENTS)), 99, 100)
    losses = []
    with torch.no_grad():
        for _, ids in kept:
            x = torch.tensor([ids])
            losses.append(torch.nn.functional.cross_entropy(place.llama(x).logits[0, :-1].double(), x[0, 1:], reduction="none"))
    full = report["results"][0]
    assert report["windows"] == len(kept) and report["window_tokens"] == [len(ids) for _, ids in kept]
    assert full["nll"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    assert full["perplexity"] == pytest.approx(math.exp(full["nll"]), rel=1e-12)
    assert full["window_nll"] == pytest.approx([l.mean().item() for l in losses], rel=1e-4)
    assert report["results"][1]["kl"] > 0 and all(k is None or k >= 0 for k in report["results"][1]["positions"]["kl"])
    mixed = kvcc_json("eval", place.model, "--dataset", f"{place.texts}:1,{place.other}:3", "--windows", 8, "--seqlen", 40)
    assert [(p["windows"], p["tokens"]) for p in mixed["dataset"]["parts"]] == [(2, 80), (6, 240)]


def test_articles_of_wikitext(place, monkeypatch):
    text = " \n = First = \n \n some text \n = = Section = = \n more \n \n = Second one = \n \n words \n"
    root = place.folder / "data"
    (root / "w").mkdir(parents=True, exist_ok=True)
    (root / "w/w.txt").write_text(text)
    manifest = place.folder / "manifest.json"
    manifest.write_text(json.dumps({"schema_version": 1, "datasets": [{"name": "wiki", "aliases": ["w2"], "documents": "articles", "title": "", "licence": "", "folder": "w", "default": ["all"],
                                                                       "splits": [{"name": "all", "file": "w.txt", "flavour": "raw"}]}]}))
    monkeypatch.setenv("KVCC_MANIFEST", str(manifest))
    monkeypatch.setenv("KVCC_DATA", str(root))
    _, settings, _ = place.collect("--dataset", "w2", "--packing", "document", samples=2, seqlen=200)
    articles = [text[2:text.index(" = Second")], text[text.index(" = Second"):]]
    assert sorted(settings["sample_sha256"]) == sorted(hash_of(place.encode(a)) for a in articles)
    assert settings["text_name"] == "wiki:all" and settings["text_sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_c4_and_ptb_are_read_below_the_data_folder(place, tmp_path, monkeypatch):
    """Files named and made as AllenAI's C4 (JSON lines with text, timestamp and url) and Mikolov's PTB (a sentence a line, <unk>, N) are the same samples as the files themselves."""
    monkeypatch.setenv("KVCC_DATA", str(tmp_path))
    (tmp_path / "c4").mkdir()
    (tmp_path / "ptb").mkdir()
    pages = [{"text": text.strip(), "timestamp": f"2019-04-2{i}T12:57:54Z", "url": f"https://a.example/{i}"} for i, text in enumerate(DOCUMENTS)]
    sentences = "".join(f" {line.strip()} <unk> N \n" for line in DOCUMENTS)
    files = {"c4": ("c4/c4-train.00000-of-01024.json", pages), "c4:validation": ("c4/c4-validation.00000-of-00008.json", pages[::-1]),
             "ptb": ("ptb/ptb.train.txt", sentences), "ptb:valid": ("ptb/ptb.valid.txt", sentences[30:]), "ptb:test": ("ptb/ptb.test.txt", sentences[60:])}
    samples = set()
    for name, (file, content) in files.items():
        path = tmp_path / file
        path.write_text(content if isinstance(content, str) else "\n".join(json.dumps(page) for page in content) + "\n")
        _, settings, _ = place.collect("--dataset", name, samples=2)
        _, of_file, _ = place.collect("--dataset", path, samples=2)
        assert settings["sample_sha256"] == of_file["sample_sha256"]
        assert settings["text_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert settings["text_name"] == (name if ":" in name else f"{name}:train")
        assert settings["text_flavour"] == ("raw" if name.startswith("c4") else "tokens")
        everything = place.encode(content if isinstance(content, str) else "".join(page["text"] for page in content))
        windows = [everything[offset:offset + 96] for offset in settings["offsets"]]
        if isinstance(content, str):
            assert settings["sample_sha256"] == [hash_of(ids) for ids in windows]
        samples.update(settings["sample_sha256"])
    assert len(samples) == 2 * len(files)
    _, settings, _ = place.collect("--dataset", "c4", "--packing", "document", "--seed", 3, samples=4)
    order = shuffled(len(DOCUMENTS), 3)
    wanted = documents(place, order, 4, 96, [page["text"] for page in pages])
    assert settings["sample_sha256"] == [hash_of(ids) for _, ids in wanted]


def refusal(place, *options, code=3):
    return kvcc("collect", place.model, "-o", place.folder / "no.acts", "--seqlen", 32, "--samples", 4, *options, code=code)[1]


@pytest.mark.parametrize("lines,words", [
    (['{"text": "a"}', "{", '{"text": "b"}'], "line 2"), (['{"text": "a"}', "", '{"txt": "b"}'], "line 3: its members are txt"), (["[1]"], "one JSON list"), (['{"text": 3}'], "line 1: 'text' is 3"),
    (['{"messages": [{"content": "x"}]}'], "line 1: a message"), (['{"text": "a"}', '{"messages": []}'], "line 2: a conversation; wanted as in line 1"), (['{"text": "a"} x'], "line 1"), (['{"text": "a", "text": "b"}'], "line 1")])
def test_broken_lines_are_named(place, lines, words):
    path = place.folder / "broken.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert words in refusal(place, "--dataset", path)


def test_what_cannot_be_read_says_what_to_do(place):
    for name, start, hint in (("a.parquet", b"PAR1", "read_parquet"), ("a.jsonl.gz", b"\x1f\x8b\x08", "gunzip"), ("a.zst", b"\x28\xb5\x2f\xfd", "zstd -d")):
        path = place.folder / name
        path.write_bytes(start + b"x" * 100)
        assert hint in refusal(place, "--dataset", path)
    assert "no such file" in refusal(place, "--dataset", place.folder / "absent.jsonl")
    message = refusal(place, "--dataset", "c4")
    assert "below KVCC_DATA" in message and "c4-train.00000-of-01024.json" in message
    assert "ptb.valid.txt" in refusal(place, "--dataset", "ptb:valid")
    assert "did you mean" in refusal(place, "--dataset", "wikitxt2", code=2)
    assert "weights of some" in refusal(place, "--dataset", f"{place.texts}:1,{place.other}", code=2)
    assert "none of 4 samples" in refusal(place, "--dataset", f"{place.texts}:0.01,{place.other}:1", code=2)
    assert "no chat template" in kvcc("collect", no_template(place), "-o", place.folder / "no.acts", "--seqlen", 32, "--dataset",
                                      place.lines("talk.jsonl", [{"messages": [{"role": "user", "content": "x"}]}]), code=3)[1]
    exact = kvcc("eval", place.model, "--dataset", place.texts, "--packing", "document", "--windows", 0, "--seqlen", 64, "--attention", 2, "--scheme", "int4", code=2)[1]
    assert "no positions in common" in exact


def no_template(place):
    folder = place.folder / "without"
    folder.mkdir(exist_ok=True)
    for file in place.model.iterdir():
        if file.name != "tokenizer_config.json" and not (folder / file.name).exists():
            (folder / file.name).write_bytes(file.read_bytes())
    return folder
