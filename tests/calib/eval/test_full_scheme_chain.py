"""On a real window of SmolLM2, what eval simulates, the reference codec and the packed bytes agree bit for bit for every
preset that needs no calibration and for fitted artifacts."""
import json
import re
import subprocess

import numpy as np

from support import BUILD, data_path, kvcc, kvcc_json, model_path

TOKENS = 288


def presets():
    """Every name of the table of presets' patterns, and their options."""
    names = []
    for preset in kvcc_json("schemes")["presets"]:
        if preset["needs_calibration"] or preset["example"] == "fp":
            continue
        base = re.sub(r"\[[^]]*\]", "", preset["pattern"])
        names += expand(base)
        options = re.findall(r"\[(-[a-z0-9]+)\]", preset["pattern"])  # those without a number
        names += [preset["example"] + option for option in options if preset["example"] + option not in names]
    return names + ["kvarn-2-g64", "kvarn-k4v2-g64", "kvarn-2-it16", "kivi-2-g128", "kivi-4-g128", "oscar-qk"]


def expand(pattern):
    """"q{4,8}_0" to ["q4_0", "q8_0"], "int{2..8}" to all of them."""
    found = re.search(r"\{([^}]*)\}", pattern)
    if not found:
        return [pattern]
    first_last = re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    parts = range(int(first_last[1]), int(first_last[2]) + 1) if first_last else found[1].split(",")
    return [name for part in parts for name in expand(pattern[:found.start()] + str(part) + pattern[found.end():])]


def test_simulated_reference_and_packed_values_are_the_same_bits(tmp_path):
    names = presets()
    assert len(names) > 50
    np.load(data_path("smollm2/evaluation_ids.npy")).ravel()[:TOKENS].astype(np.int32).tofile(tmp_path / "ids")
    np.save(tmp_path / "calibration.npy", np.load(data_path("smollm2/calibration_ids.npy"))[:1, :TOKENS])
    kvcc("collect", model_path(), "-o", tmp_path / "a.acts", "--ids", tmp_path / "calibration.npy",
         "--samples", 1, "--seqlen", TOKENS)
    fitted = ("kvcc-nuq3-1%-sink1", "kvcc-nuq3-1%-layer", "kvquant-nuq2-5%-sink1", "kvquant-nuq4-fs2", "kvquant-nuq3-1%-head",
              "kvquant-nuq2-1%-cap-qnorm-sink1", "int3-channel-prerope", "nf3-channel-prerope-1%")
    arguments = ["fit", tmp_path / "a.acts", "-o", tmp_path / "s"]
    for scheme in fitted:
        arguments += ["--scheme", scheme]
    kvcc(*arguments)
    artifacts = [tmp_path / f"s.{scheme}.kvcb" for scheme in fitted]
    done = subprocess.run([BUILD / "tests/bin/scheme_chain", model_path(), tmp_path / "ids", *names, *artifacts],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    seconds = result.pop("forward_seconds")
    assert set(result) == {*names, *fitted}
    for name, row in result.items():
        assert row["differ"] == 0, (name, row)
        assert row["elements"] > 0, name
        assert row["bytes"] < 9 / 8 * row["elements"], (name, "more than a byte an element")
    print(f"forward pass {seconds:.2f} s; slowest codecs {sorted((row['seconds'], name) for name, row in result.items())[-6:]}")
