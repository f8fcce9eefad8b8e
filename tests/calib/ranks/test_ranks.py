"""Several ranks make what one process makes, to the byte; a rank that dies or differs is named, and the run resumes.
More of it in test_full_ranks.py."""
import json
import re
import signal
import socket
import subprocess
import time
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from launching import (COLLECT, FIT, SCHEMES, clean_environment, contents, end_one, finish, free_port, long_run, rank_environment, run,
                       start, tiny)

__all__ = ["tiny"]


@pytest.mark.parametrize("size,by", [(2, "torch"), (4, "mpirun")])
def test_same_bytes_for_any_number_of_ranks(tiny, tmp_path, size, by):
    folder, arguments = tiny
    out = tmp_path / "a.acts"
    report = json.loads(run(size, COLLECT, *arguments, "-o", out, "--json", by=by))
    assert contents(out) == contents(folder / "one.acts")
    assert report["samples"] == 9 and report["nll"] > 0


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


def test_killed_rank_is_named_within_a_minute_and_the_run_resumes(tiny, tmp_path):
    folder, _ = tiny
    arguments, out = long_run(folder, tmp_path), tmp_path / "a.acts"
    end_one(1, signal.SIGKILL, arguments, out)
    kept = len(list(out.glob("s*/l*.h5")))
    assert kept >= 12
    ended = finish(start(2, COLLECT, *arguments, "-o", out, "--resume"))
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert re.search(r"goes on where it was: keeps [1-9]\d* of 60 samples", ended[0][2]), ended[0][2]
    subprocess.run([str(COLLECT), *map(str, arguments), "-o", str(tmp_path / "one.acts"), "--quiet"], check=True)
    assert contents(tmp_path / "one.acts") == contents(out)


def test_rank_with_other_settings_is_refused_by_name(tiny, tmp_path):
    folder, arguments = tiny
    ended = finish(start(2, COLLECT, *arguments, "-o", tmp_path / "a.acts", each={1: ["--seed", 1]}))
    assert all(code != 0 for code, _, _ in ended)
    assert all("rank 1" in err and "seed is 1, on rank 0 0" in err for _, _, err in ended), ended


def test_ranks_of_runs_of_two_sizes_are_told_at_once(tiny, tmp_path):
    folder, arguments = tiny
    for sizes in ((2, 3), (3, 2)):
        port = free_port()
        ranks = [subprocess.Popen([str(COLLECT), *map(str, arguments), "-o", str(tmp_path / "a.acts")], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=rank_environment(r, size, port))
                 for r, size in enumerate(sizes)]
        for code, _, err in finish(ranks, seconds=60):
            assert code in (1, 2) and "a WORLD_SIZE of" in err, err
    assert not (tmp_path / "a.acts").exists()


def test_rank_0_that_is_killed_while_others_are_awaited_is_named_at_once(tiny, tmp_path):
    """Of three ranks the last never comes. The others may wait for it for two minutes, but not for a dead one."""
    folder, arguments = tiny
    port = free_port()
    ranks = [subprocess.Popen([str(COLLECT), *map(str, arguments), "-o", str(tmp_path / "a.acts")], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=rank_environment(r, 3, port)) for r in range(2)]
    meeting = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
    meeting.wait([f"kvcc//collect/1//here/{r}" for r in range(2)], timedelta(seconds=60))
    time.sleep(2)  # until rank 1 has seen that rank 0 is there
    ranks[0].kill()
    (code, _, err), = finish(ranks[1:], seconds=60)
    ranks[0].communicate()
    assert code == 1 and f"process {ranks[0].pid}) has ended while the ranks were meeting" in err, err


def test_what_listens_at_the_port_and_is_silent_is_not_waited_for(tiny, tmp_path):
    folder, arguments = tiny
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        rank = subprocess.Popen([str(COLLECT), *map(str, arguments), "-o", str(tmp_path / "a.acts")], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**rank_environment(1, 2, silent.getsockname()[1]), "KVCC_RANKS_JOIN": "2"})
        ((code, _, err),) = finish([rank], seconds=60)
    assert code == 1 and "does not answer" in err and "MASTER_PORT" in err, err


def test_fit_is_the_same_for_any_number_of_ranks(tiny, tmp_path):
    folder, _ = tiny
    one = json.loads(run(1, FIT, folder / "one.acts", "-o", tmp_path / "one", *SCHEMES, "--json"))["results"]
    for size in (2, 4):  # of 3 layers: the last of four ranks has none
        many = json.loads(run(size, FIT, folder / "one.acts", "-o", tmp_path / f"many{size}", *SCHEMES, "--json"))["results"]
        assert [r["content_sha256"] for r in many] == [r["content_sha256"] for r in one]
    assert len({r["content_sha256"] for r in one}) == 4


def test_half_set_environment(tmp_path):
    done = subprocess.run([str(COLLECT), "model", "-o", str(tmp_path / "a")], capture_output=True, text=True,
                          env={**clean_environment(), "RANK": "1"})
    assert done.returncode == 2 and "WORLD_SIZE: not set, but RANK is" in done.stderr
