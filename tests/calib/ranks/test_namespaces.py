"""Ranks on machines of their own: network namespaces with a wire between them, and nothing else in common but the disk."""
import os
import subprocess
import time

import pytest

from launching import COLLECT, clean_environment, contents, finish, rank_environment
from support import random_ids, tiny_llama


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def machines():
    """Two namespaces with addresses on one wire; skips, and says so, where that is not allowed."""
    names, wire = [f"kvcc{os.getpid()}n{i}" for i in (0, 1)], f"kv{os.getpid() % 100000}"
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", wire + "a", "netns", names[0], "type", "veth", "peer", "name", wire + "b", "netns", names[1])
        for i, name in enumerate(names):
            end = wire + "ab"[i]
            ip("-n", name, "addr", "add", f"10.213.77.{i + 1}/24", "dev", end)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", end, "up")
    except (OSError, subprocess.CalledProcessError) as error:
        remove(names)
        pytest.skip(f"SKIPPED: no network namespaces here: {getattr(error, 'stderr', '') or error}")
    yield names, wire
    remove(names)


def remove(names):
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("namespaces")
    tiny_llama(folder / "model")
    return folder / "model"


def start(machines, *arguments, address="10.213.77.1", **env):
    names, _ = machines
    return [subprocess.Popen(["ip", "netns", "exec", name, str(COLLECT), *map(str, arguments)], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env={**rank_environment(r, 2, 29611, address=address), "LOCAL_WORLD_SIZE": "1", **env})
            for r, name in enumerate(names)]


def test_same_bytes_across_machines(machines, model, tmp_path):
    random_ids(tmp_path / "ids.npy", 5, 96)
    arguments = [model, "--ids", tmp_path / "ids.npy", "--samples", 5, "--seqlen", 96]
    subprocess.run([str(COLLECT), *map(str, arguments), "-o", str(tmp_path / "one.acts"), "--quiet"], check=True,
                   env=clean_environment())
    ended = finish(start(machines, *arguments, "-o", tmp_path / "a.acts"))
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert contents(tmp_path / "a.acts") == contents(tmp_path / "one.acts")


def test_cut_wire_ends_both_within_a_minute(machines, model, tmp_path):
    names, wire = machines
    random_ids(tmp_path / "ids.npy", 400, 256)
    out = tmp_path / "a.acts"
    ranks = start(machines, model, "--ids", tmp_path / "ids.npy", "--samples", 400, "--seqlen", 256, "--threads", 1, "-o", out)
    while all(p.poll() is None for p in ranks) and len(list(out.glob("s*/l*.h5"))) < 6:
        time.sleep(0.01)
    ip("-n", names[0], "link", "set", wire + "a", "down")
    ended = finish(ranks, seconds=60)
    assert [code for code, _, _ in ended] == [1, 1], ended
    assert "rank 1 (" in ended[0][2] and "no sign of life" in ended[0][2], ended[0][2]
    assert "rank 0 (" in ended[1][2] and "--resume" in ended[1][2], ended[1][2]
