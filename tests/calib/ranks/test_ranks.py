"""Several ranks make what one process makes, to the byte; a rank that dies or differs is named, and the run resumes."""
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from launching import COLLECT, FIT, clean_environment, contents, finish, free_port, rank_environment, run, start
from support import BUILD, random_ids, tiny_llama

SCHEMES = ["--scheme", "kvcc-nuq3-1%-sink1", "--scheme", "int4-channel-prerope", "--scheme", "kvcc-2"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    tiny_llama(folder / "model")
    random_ids(folder / "ids.npy", 9, 96)
    arguments = [folder / "model", "--ids", folder / "ids.npy", "--samples", 9, "--seqlen", 96]
    subprocess.run([str(COLLECT), *map(str, arguments), "-o", str(folder / "one.acts"), "--quiet"], check=True,
                   env=clean_environment())
    return folder, arguments


@pytest.mark.parametrize("size,by", [(2, "torch"), (4, "mpirun"), (3, "srun")])
def test_same_bytes_for_any_number_of_ranks(tiny, tmp_path, size, by):
    folder, arguments = tiny
    out = tmp_path / "a.acts"
    report = json.loads(run(size, COLLECT, *arguments, "-o", out, "--json", by=by))
    assert contents(out) == contents(folder / "one.acts")
    assert report["samples"] == 9 and report["nll"] > 0


def test_more_ranks_than_samples_and_a_resumed_run(tiny, tmp_path):
    """Two of three ranks have a sample; afterwards damaged and missing shards are made again by other ranks."""
    folder, arguments = tiny
    out = tmp_path / "a.acts"
    two = [*arguments[:3], "--samples", 2, "--seqlen", 96]
    run(3, COLLECT, *two, "-o", out)
    whole = contents(out)
    (out / "s0001/l0002.h5").unlink()
    shard = out / "s0000/l0001.h5"
    shard.write_bytes(shard.read_bytes()[:-5])
    ended = finish(start(2, COLLECT, *two, "-o", out, "--resume"))
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert "s0000/l0001.h5" in ended[0][2] and "4 layers of others; to run: sample 0, 1" in ended[0][2], ended[0][2]
    assert contents(out) == whole
    ended = finish(start(2, COLLECT, *two, "-o", out, "--resume"))
    assert "nothing is left to do" in ended[0][2] and contents(out) == whole


def test_ranks_without_a_common_folder_send_their_shards(tiny, tmp_path):
    folder, arguments = tiny
    folders = [tmp_path / "n0", tmp_path / "n1"]
    for each in folders:
        each.mkdir()
    ended = finish(start(2, COLLECT, *arguments, "-o", "a.acts", folders=folders))
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert "rank 1 does not see a.acts" in ended[0][2]
    assert contents(folders[0] / "a.acts") == contents(folder / "one.acts")
    assert not list(folders[1].iterdir())


def test_self_samples_are_made_once(tiny, tmp_path):
    folder, _ = tiny
    arguments = [folder / "model", "--dataset", "self", "--samples", 3, "--seqlen", 24]
    subprocess.run([str(COLLECT), *map(str, arguments), "-o", str(tmp_path / "one.acts"), "--quiet"], check=True)
    run(2, COLLECT, *arguments, "-o", tmp_path / "two.acts")
    assert contents(tmp_path / "one.acts") == contents(tmp_path / "two.acts")


def long_run(folder, tmp_path, samples=60):
    random_ids(tmp_path / "many.npy", samples, 256)
    return [folder / "model", "--ids", tmp_path / "many.npy", "--samples", samples, "--seqlen", 256, "--threads", 1]


@pytest.mark.parametrize("victim,how", [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_dead_rank_is_named_within_a_minute_and_the_run_resumes(tiny, tmp_path, victim, how):
    folder, _ = tiny
    arguments = long_run(folder, tmp_path)
    out = tmp_path / "a.acts"
    ranks = start(3, COLLECT, *arguments, "-o", out)
    while all(p.poll() is None for p in ranks) and len(list(out.glob("s*/l*.h5"))) < 12:
        time.sleep(0.01)
    assert all(p.poll() is None for p in ranks), finish(ranks)
    ranks[victim].send_signal(how)
    others = finish([p for r, p in enumerate(ranks) if r != victim], seconds=60)
    ranks[victim].kill()
    ranks[victim].communicate()
    for code, _, err in others:
        assert code == 1 and f"rank {victim} (" in err and f"process {ranks[victim].pid}" in err and "--resume" in err, err
    kept = len(list(out.glob("s*/l*.h5")))
    assert kept >= 12
    if how == signal.SIGKILL and victim == 1:
        ended = finish(start(2, COLLECT, *arguments, "-o", out, "--resume"))
        assert [code for code, _, _ in ended] == [0, 0], ended
        assert re.search(r"goes on where it was: keeps [1-9]\d* of 60 samples", ended[0][2]), ended[0][2]
        alone = tmp_path / "alone.acts"
        subprocess.run([str(COLLECT), *map(str, arguments), "-o", str(alone), "--quiet"], check=True)
        assert contents(alone) == contents(out)


def test_interrupted_rank_ends_all_and_what_is_done_is_kept(tiny, tmp_path):
    folder, _ = tiny
    arguments = long_run(folder, tmp_path)
    out = tmp_path / "a.acts"
    ranks = start(2, COLLECT, *arguments, "-o", out)
    while all(p.poll() is None for p in ranks) and len(list(out.glob("s*/l*.h5"))) < 6:
        time.sleep(0.01)
    ranks[1].send_signal(signal.SIGTERM)
    (code, _, err), (interrupted, _, hint) = finish(ranks, seconds=60)
    assert code == 1 and "rank 1 (" in err and "was interrupted" in err, err
    assert interrupted == 143 and "--resume" in hint
    listed = {line.split(" ")[0] for line in (out / "manifest.journal").read_text().splitlines()}
    there = {str(p.relative_to(out)) for p in out.glob("s*/l*.h5")}
    assert listed <= there and len(listed) >= 3  # what rank 1 wrote last may not have been listed


def test_missing_rank_is_named(tiny, tmp_path):
    folder, arguments = tiny
    port = free_port()
    ended = finish([subprocess.Popen([str(COLLECT), *map(str, arguments), "-o", str(tmp_path / "a.acts")], text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     env={**rank_environment(r, 3, port), "KVCC_RANKS_JOIN": "3"}) for r in (0, 2)])
    assert [code for code, _, _ in ended] == [1, 1]
    assert any("still not there after 3 s: rank 1;" in err for _, _, err in ended), ended
    assert not (tmp_path / "a.acts").exists()


def test_rank_with_other_settings_is_refused_by_name(tiny, tmp_path):
    folder, arguments = tiny
    ended = finish(start(2, COLLECT, *arguments, "-o", tmp_path / "a.acts", each={1: ["--seed", 1]}))
    assert all(code != 0 for code, _, _ in ended)
    assert all("rank 1" in err and "seed is 1, on rank 0 0" in err for _, _, err in ended), ended


def test_F36_nan_on_one_rank_ends_all_with_its_place(tmp_path):
    model = tiny_llama(tmp_path / "model", tie_word_embeddings=False)
    with torch.no_grad():
        model.get_parameter("model.embed_tokens.weight")[200] = float("nan")
    model.save_pretrained(tmp_path / "model")
    ids = random_ids(tmp_path / "ids.npy", 4, 64, vocab=200)
    ids[1, 30] = 200  # a sample of rank 1
    np.save(tmp_path / "ids.npy", ids)
    arguments = [tmp_path / "model", "--ids", tmp_path / "ids.npy", "--samples", 4, "--seqlen", 64]
    ended = finish(start(2, COLLECT, *arguments, "-o", tmp_path / "a.acts"))
    assert [code for code, _, _ in ended] == [1, 1] and all("sample 1" in err and "token 30" in err for _, _, err in ended)
    assert "rank 1 (" in ended[0][2]
    run(2, COLLECT, *arguments, "-o", tmp_path / "a.acts", "--resume", "--on-nonfinite", "skip")
    subprocess.run([str(COLLECT), *map(str, arguments), "-o", str(tmp_path / "b.acts"), "--on-nonfinite", "skip"], check=True,
                   capture_output=True)
    assert contents(tmp_path / "a.acts") == contents(tmp_path / "b.acts")


def test_fit_is_the_same_for_any_number_of_ranks(tiny, tmp_path):
    folder, _ = tiny
    one = json.loads(run(1, FIT, folder / "one.acts", "-o", tmp_path / "one", *SCHEMES, "--json"))["results"]
    for size in (2, 4):  # of 3 layers: the last of four ranks has none
        many = json.loads(run(size, FIT, folder / "one.acts", "-o", tmp_path / f"many{size}", *SCHEMES, "--json"))["results"]
        assert [r["content_sha256"] for r in many] == [r["content_sha256"] for r in one]
    assert len({r["content_sha256"] for r in one}) == 3


def test_fit_of_other_activations_on_a_rank_is_refused(tiny, tmp_path):
    folder, arguments = tiny
    subprocess.run([str(COLLECT), *map(str, arguments), "-o", str(tmp_path / "one.acts"), "--seed", "1", "--quiet"], check=True)
    os.symlink(folder / "one.acts", tmp_path / "x0")
    ended = finish([subprocess.Popen([str(FIT), str(acts), "-o", str(tmp_path / "a.kvcb"), *SCHEMES[:2]], text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=rank_environment(r, 2, port))
                    for port in [free_port()] for r, acts in enumerate([folder / "one.acts", tmp_path / "one.acts"])])
    assert all(code != 0 for code, _, _ in ended) and all("activations_sha256" in err for _, _, err in ended), ended
    assert not (tmp_path / "a.kvcb").exists()


def test_half_set_environment(tmp_path):
    done = subprocess.run([str(COLLECT), "model", "-o", str(tmp_path / "a")], capture_output=True, text=True,
                          env={**clean_environment(), "RANK": "1"})
    assert done.returncode == 2 and "WORLD_SIZE: not set, but RANK is" in done.stderr


def test_torchrun_calibrates(tiny, tmp_path):
    """kvcc calibrate: every stage meets the other ranks anew, and the artifacts are those of one process."""
    folder, arguments = tiny
    common = ["--scheme", "kvcc-nuq3-1%-sink1", "--scheme", "kvcc-2", "--json"]
    kvcc = BUILD / "bin/kvcc"
    one = subprocess.run([str(kvcc), "calibrate", *map(str, arguments), *common, "-o", str(tmp_path / "one")], check=True,
                         capture_output=True, text=True, env=clean_environment())
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
                           str(free_port()), "--no-python", str(kvcc), "calibrate", *map(str, arguments), *common, "-o",
                           str(tmp_path / "two")], capture_output=True, text=True, env=clean_environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    shas = lambda text: [r["content_sha256"] for r in json.loads(text)["results"]]
    assert shas(done.stdout) == shas(one.stdout)
    assert contents(tmp_path / "one.acts") == contents(tmp_path / "two.acts")


def test_calibrate_started_by_hand(tiny, tmp_path):
    """As srun and mpirun do it: rank 0's programs serve the meeting place, one after another."""
    folder, arguments = tiny
    run(2, BUILD / "bin/kvcc", "calibrate", *arguments, "--scheme", "kvcc-nuq3-1%-sink1", "-o", tmp_path / "a", by="mpirun")
    assert (tmp_path / "a.kvcb").exists() and contents(tmp_path / "a.acts") == contents(folder / "one.acts")
