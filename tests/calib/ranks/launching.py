"""Starts programs as ranks, as torchrun, mpirun and srun do: by their environment."""
import os
import socket
import subprocess
import time

import pytest

from support import BUILD, random_ids, tiny_llama

COLLECT = BUILD / "libexec/kvcc/kvcc-collect"
FIT = BUILD / "libexec/kvcc/kvcc-fit"
SCHEMES = ["--scheme", "kvcc-nuq3-1%-sink1", "--scheme", "int4-channel-prerope", "--scheme", "kvcc-2", "--scheme", "kvcc-2-predict"]
# Of the machine's own launcher, if the tests run under one.
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "SLURM_", "PMI_", "TORCHELASTIC_", "MPI_", "KVCC_RANKS_")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}


def rank_environment(rank, size, port, address="127.0.0.1", by="torch"):
    names = {"torch": {"RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size},
             "mpirun": {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_LOCAL_SIZE": size},
             "srun": {"SLURM_STEP_ID": 0, "SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_JOB_ID": 7,
                      "SLURM_JOB_NODELIST": address, "SLURM_STEP_TASKS_PER_NODE": size}}[by]
    meeting = {} if by == "mpirun" else {"MASTER_ADDR": address} if by == "torch" else {}
    # A rank whose peers are slow to start is no fault; one that is dead is found in seconds here.
    return {**clean_environment(), "KVCC_RANKS_JOIN": "120", "KVCC_RANKS_TIMEOUT": "4", "MASTER_PORT": str(port),
            **{name: str(value) for name, value in {**names, **meeting}.items()}}


def start(size, program, *arguments, by="torch", folders=None, each=None, port=None, env=None):
    """One process a rank; folders[r] is where it runs, each[r] more arguments of one rank."""
    port = port or free_port()
    return [subprocess.Popen([str(program), *map(str, arguments), *map(str, (each or {}).get(r, []))], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folders[r] if folders else None,
                             env={**rank_environment(r, size, port, by=by), **(env or {})}) for r in range(size)]


def finish(processes, seconds=120):
    """[(code, stdout, stderr)]; ends them all when one takes longer."""
    deadline = time.monotonic() + seconds
    ended = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            ended.append((process.returncode, out, err))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    return ended


def run(size, program, *arguments, **kw):
    """All ranks must end well; returns rank 0's stdout."""
    ended = finish(start(size, program, *arguments, **kw))
    assert [code for code, _, _ in ended] == [0] * size, "\n".join(f"{code}\n{out}\n{err}" for code, out, err in ended)
    assert all(out == "" for _, out, _ in ended[1:]), ended
    return ended[0][1]


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    tiny_llama(folder / "model")
    random_ids(folder / "ids.npy", 9, 96)
    arguments = [folder / "model", "--ids", folder / "ids.npy", "--samples", 9, "--seqlen", 96]
    subprocess.run([str(COLLECT), *map(str, arguments), "-o", str(folder / "one.acts"), "--quiet"], check=True,
                   env=clean_environment())
    return folder, arguments


def long_run(folder, tmp_path, samples=60):
    random_ids(tmp_path / "many.npy", samples, 256)
    return [folder / "model", "--ids", tmp_path / "many.npy", "--samples", samples, "--seqlen", 256, "--threads", 1]


def end_one(victim, how, arguments, out):
    """Three ranks run until some shards are there; then one gets the signal, and the others end and name it."""
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
