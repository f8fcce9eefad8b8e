"""The packed cache over 500 tokens at all widths, and a prompt as long as the model takes. Long: about ten minutes."""
import json
import os
import subprocess

import numpy as np
import pytest

from packed import assert_same_choice, evaluation_ids, smollm2_codebook, teacher_force
from support import KVCC, model_path


@pytest.mark.parametrize("prefill", ("exact", "quantised"))
@pytest.mark.parametrize("bits", (4, 3, 2))
def test_500_tokens(tmp_path, bits, prefill):
    """Each cache keeps its own rows; attention in double (--arithmetic f64), so that no order of sums decides a code."""
    found = teacher_force(tmp_path, model_path(), smollm2_codebook(bits), evaluation_ids(2048, 565), 65, prefill, "free", "f64")
    assert len(found["packed"]) == 500
    assert_same_choice(found)
    print(f"{bits} bits, {prefill}: {found['differing_rows']} of {found['rows']} numbers differ")
    assert found["difference"].max() < 5e-4


@pytest.mark.parametrize("prefill", ("exact", "quantised"))
@pytest.mark.parametrize("bits", (4, 3, 2))
def test_500_tokens_of_the_same_rows(tmp_path, bits, prefill):
    """In f32, both caches given the same rows to keep (drivers/teacher_force.cc says why)."""
    found = teacher_force(tmp_path, model_path(), smollm2_codebook(bits), evaluation_ids(2048, 565), 65, prefill, "led")
    assert len(found["packed"]) == 500 and found["differing_rows"] == 0
    assert_same_choice(found)
    assert found["difference"].max() < 5e-4
    if prefill == "quantised":
        assert_same_choice(found, "full", "full_difference")


@pytest.mark.parametrize("bits", (4, 3, 2))
def test_500_tokens_with_rows_of_their_own(tmp_path, bits):
    """In f32. Rounding of the last place flips codes, so that two runs soon have another noise of the same size: the simulated
    cache differs from eval's one pass no less than the packed one from the simulated, and none is worse."""
    found = teacher_force(tmp_path, model_path(), smollm2_codebook(bits), evaluation_ids(2048, 565), 65, "quantised", "free")
    packed, full = np.median(found["difference"]), np.median(found["full_difference"])
    agreed, full_agreed = ((found[name] == found["simulated"]).mean() for name in ("packed", "full"))
    nll = {name: found[f"{name}_nll"].mean() for name in ("packed", "simulated", "full")}
    print(f"{bits} bits: median difference {packed:.3g}, one pass {full:.3g}; agreement {agreed:.4f}, {full_agreed:.4f}; {nll}")
    assert packed < 1.5 * full
    assert agreed > full_agreed - 0.04
    assert abs(nll["packed"] - nll["simulated"]) < {4: 0.02, 3: 0.04, 2: 0.1}[bits]


@pytest.mark.parametrize("prefill", ("exact", "quantised"))
def test_prompt_of_8000_tokens(tmp_path, prefill):
    """The model's own limit is 8,192. At most 3 GiB beyond the weights (0.54 GiB in f32)."""
    np.save(tmp_path / "ids.npy", evaluation_ids(0, 8000))
    command = [KVCC, "generate", model_path(), "--codebook", smollm2_codebook(3), "--ids", tmp_path / "ids.npy", "--tokens", 192 + 1,
               "--ignore-eos", "--prefill", prefill, "--json"]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, env=os.environ) as process:
        document = json.loads(process.stdout.read())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    peak = used.ru_maxrss * 1024
    print(f"{prefill}: prefill {document['prefill']['seconds']:.1f} s, peak {peak / 2**20:.0f} MiB, {document['decode']}, {document['cache']}")
    assert peak < 2 * 2**30
    assert document["cache"]["tokens"] == 8192 and len(document["ids"]) == 193
    assert document["cache"]["compression"] > 3.5
