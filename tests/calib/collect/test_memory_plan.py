"""What `kvcc collect --dry-run` says of memory and disk against runs, and that no way of saving memory changes a byte."""
import json
import subprocess

import pytest

from made_weights import write_llama
from resident import watch
from support import BUILD, random_ids, tiny_llama

COLLECT = BUILD / "libexec/kvcc/kvcc-collect"
MIDDLE = dict(hidden_size=640, intermediate_size=2560, num_hidden_layers=5, num_attention_heads=10, num_key_value_heads=2, head_dim=64,
              vocab_size=32000, max_position_embeddings=2048, tie_word_embeddings=True, rms_norm_eps=1e-5)
WAYS = {"everything kept": [], "weights left in their files": ["--max-memory", "{streamed}"], "layers run twice": ["--recompute", "on"],
        "both": ["--recompute", "on", "--max-memory", "{both}"]}


def plan(*arguments):
    done = subprocess.run([str(COLLECT), *map(str, arguments), "--dry-run", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def shards(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.h5"))}


@pytest.fixture(scope="module")
def middle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("middle")
    write_llama(folder / "model", MIDDLE, shard_bytes=40 << 20)
    random_ids(folder / "ids.npy", 1, 512, vocab=32000)
    return folder


def ways(folder, model, samples, seqlen):
    """The four ways that a run can be forced to: (name, arguments, plan)."""
    common = [folder / model, "--ids", folder / "ids.npy", "--samples", samples, "--seqlen", seqlen]
    whole, again = plan(*common, "-o", folder / "none"), plan(*common, "-o", folder / "none", "--recompute", "on")
    limits = {"streamed": whole["peak_memory_bytes"] - 1, "both": again["peak_memory_bytes"] - 1}
    for number, (name, more) in enumerate(WAYS.items()):
        arguments = [*common, "-o", folder / f"{model}{number}.acts", *[word.format(**limits) for word in more]]
        yield name, arguments, plan(*arguments)


def test_memory_and_disk_are_as_planned_within_a_quarter(middle):
    found, bytes_ = {}, None
    for name, arguments, planned in ways(middle, "model", 1, 512):
        assert planned["streamed"] == (name in ("weights left in their files", "both")), (name, planned)
        assert planned["recompute"] == (name in ("layers run twice", "both")), (name, planned)
        assert planned["seconds"] > 0
        run = watch(COLLECT, *arguments, "--quiet")
        found[name] = (planned["peak_memory_bytes"], run)
        acts = arguments[arguments.index("-o") + 1]
        disk = sum(p.stat().st_size for p in acts.rglob("*") if p.is_file())
        assert 0.75 * disk < planned["disk_bytes"] < 1.25 * disk
        bytes_ = bytes_ or shards(acts)
        assert shards(acts) == bytes_, name
    for name, (planned, run) in found.items():
        assert 0.75 * run["peak"] < planned < 1.25 * run["peak"], found
    peak = {name: run["peak"] for name, (_, run) in found.items()}
    assert peak["both"] < peak["layers run twice"] < peak["everything kept"]
    assert peak["weights left in their files"] < peak["everything kept"]


def test_memory_of_a_tiny_model(tmp_path):
    """What libraries take, mostly."""
    tiny_llama(tmp_path / "model")
    random_ids(tmp_path / "ids.npy", 3, 96)
    for recompute in ("off", "on"):
        arguments = [tmp_path / "model", "--ids", tmp_path / "ids.npy", "--samples", 3, "--seqlen", 96, "-o", tmp_path / f"{recompute}.acts",
                     "--recompute", recompute]
        planned, run = plan(*arguments)["peak_memory_bytes"], watch(COLLECT, *arguments, "--quiet")
        assert 0.75 * run["peak"] < planned < 1.25 * run["peak"], (recompute, planned, run)
