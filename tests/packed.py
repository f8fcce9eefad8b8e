"""The packed cache in the tests of Python: codebooks of SmolLM2, and runs over given tokens (drivers/teacher_force.cc)."""
import fcntl
import hashlib
import json
import os
import shutil
import subprocess

import numpy as np

from support import BUILD, data_path, kvcc, model_path

SCHEME = "kvcc-nuq{}-1%-sink1"


def smollm2_codebook(bits):
    """A codebook of two samples of 512 tokens, made once for a build; `bits` 4, 3 or 2."""
    made = sorted((BUILD / "libexec/kvcc").glob("kvcc-[cf]*"))  # calibrate, collect, fit
    key = hashlib.sha256("".join(f"{p.name} {p.stat().st_mtime_ns}" for p in made).encode()).hexdigest()[:12]
    ids = np.load(data_path("smollm2/calibration_ids.npy"))[:2, :512].astype(np.int32)
    model = model_path()
    folder = BUILD / "tests" / "packed"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / key).exists():
            for old in folder.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            work = folder / f"{key}.part"
            work.mkdir()
            np.save(work / "ids.npy", ids)
            arguments = ["calibrate", model, "-o", work / "s.kvcb", "--ids", work / "ids.npy", "--samples", 2, "--seqlen", 512]
            for b in (4, 3, 2):
                arguments += ["--scheme", SCHEME.format(b)]
            kvcc(*arguments)
            work.rename(folder / key)
    return folder / key / f"s.{SCHEME.format(bits)}.kvcb"


def evaluation_ids(first, count):
    return np.load(data_path("smollm2/evaluation_ids.npy"))[first:first + count].astype(np.int32)


def teacher_force(folder, model, codebook, ids, prefix, prefill, lead, *more, perturb=None):
    """What the driver prints, lists as arrays. The last id is only a label."""
    ids.astype("<i4").tofile(folder / "ids.bin")
    done = subprocess.run([BUILD / "tests/bin/teacher_force", model, codebook, folder / "ids.bin", str(prefix), prefill, lead, *more],
                          capture_output=True, text=True, env={**os.environ, **({"PERTURB": str(perturb)} if perturb else {})})
    assert done.returncode == 0, done.stderr
    found = {name: np.array(values) for name, values in json.loads(done.stdout).items()}
    assert len(found["packed"]) == len(ids) - prefix
    return found


def assert_same_choice(found, name="packed", difference="difference", margin=1e-3):
    """`name` picks the simulated cache's token, except where that hardly prefers it."""
    other = (found[name] != found["simulated"]) & (found["margin"] >= margin)
    assert not other.any(), f"{name} differs at {np.flatnonzero(other)}, margins {found['margin'][other]}"
    print(f"{name}: {len(found[name])} tokens, {(found[name] != found['simulated']).sum()} below the margin, "
          f"largest difference of a logit {found[difference].max():.3g}")
