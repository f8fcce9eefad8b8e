"""What else may happen to ranks: launchers, stops and kills of each, NaN, ranks that do not come."""
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from launching import (COLLECT, FIT, SCHEMES, clean_environment, contents, end_one, finish, free_port, long_run, rank_environment, run,
                       start, tiny)
from support import BUILD, random_ids, tiny_llama

__all__ = ["tiny"]


def test_started_by_srun(tiny, tmp_path):
    folder, arguments = tiny
    run(3, COLLECT, *arguments, "-o", tmp_path / "a.acts", by="srun")
    assert contents(tmp_path / "a.acts") == contents(folder / "one.acts")


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


def test_self_samples_are_made_once(tiny, tmp_path):
    folder, _ = tiny
    arguments = [folder / "model", "--dataset", "self", "--samples", 3, "--seqlen", 24]
    subprocess.run([str(COLLECT), *map(str, arguments), "-o", str(tmp_path / "one.acts"), "--quiet"], check=True)
    run(2, COLLECT, *arguments, "-o", tmp_path / "two.acts")
    assert contents(tmp_path / "one.acts") == contents(tmp_path / "two.acts")


@pytest.mark.parametrize("victim,how", [(0, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_rank_that_is_gone_or_stopped_is_named_within_a_minute(tiny, tmp_path, victim, how):
    folder, _ = tiny
    end_one(victim, how, long_run(folder, tmp_path), tmp_path / "a.acts")


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


def test_fit_of_other_activations_on_a_rank_is_refused(tiny, tmp_path):
    folder, arguments = tiny
    subprocess.run([str(COLLECT), *map(str, arguments), "-o", str(tmp_path / "one.acts"), "--seed", "1", "--quiet"], check=True)
    os.symlink(folder / "one.acts", tmp_path / "x0")
    ended = finish([subprocess.Popen([str(FIT), str(acts), "-o", str(tmp_path / "a.kvcb"), *SCHEMES[:2]], text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=rank_environment(r, 2, port))
                    for port in [free_port()] for r, acts in enumerate([folder / "one.acts", tmp_path / "one.acts"])])
    assert all(code != 0 for code, _, _ in ended) and all("activations_sha256" in err for _, _, err in ended), ended
    assert not (tmp_path / "a.kvcb").exists()


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


def test_calibrate_on_ranks_that_differ_gives_each_the_reason(tiny, tmp_path):
    folder, arguments = tiny
    ended = finish(start(2, BUILD / "bin/kvcc", "calibrate", *arguments, "--scheme", "kvcc-2", "-o", tmp_path / "a", "--json",
                         each={1: ["--seed", 1]}))
    for code, out, err in ended:
        assert code == 3 and "seed is 1" in json.loads(out)["error"]["message"] and "said no more" not in err
