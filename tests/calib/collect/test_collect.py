"""kvcc collect against transformers' autograd, and what happens when it is stopped, killed or fed NaN."""
import json
import re
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
import torch

from reference_model import fisher_pass, llama_from_gguf, tap_keys_and_values
from support import BUILD, data_path, model_path, random_ids, tiny_llama

COLLECT = BUILD / "libexec/kvcc/kvcc-collect"


def collect(*arguments, code=0):
    done = subprocess.run([str(COLLECT), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def collected(folder, sample, layer):
    with h5py.File(folder / f"s{sample:04}" / f"l{layer:04}.h5") as shard:
        return {name: shard[name][()] for name in shard}


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def assert_close(found, wanted, what):
    wanted = wanted.reshape(found.shape)
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5 * scale, err_msg=what)


def assert_equals_autograd(model, folder, ids):
    """Keys, values and Fisher diagonals. Ours are gradients of the sum, transformers' of the mean over T - 1."""
    taps = tap_keys_and_values(model)
    for sample, row in enumerate(ids):
        _, activations, gradients = fisher_pass(model, taps, row)
        for layer in range(len(activations) // 2):
            ours = collected(folder, sample, layer)
            for i, name in enumerate(("key", "value")):
                place = f"sample {sample} layer {layer} {name}"
                assert_close(ours[name], activations[2 * layer + i].numpy(), place)
                gradient = gradients[2 * layer + i].double().numpy() * (len(row) - 1)
                assert_close(ours[name + "_grad"], gradient, place + " gradient")
                assert_close(ours[name + "_grad"].astype(float) ** 2, gradient**2, place + " Fisher")
            assert not ours["key_grad"][-1].any() and not ours["value_grad"][-1].any()  # the last token predicts nothing


@pytest.fixture
def tiny(tmp_path):
    model = tiny_llama(tmp_path / "model")
    return tmp_path / "model", model, random_ids(tmp_path / "ids.npy", 3, 96), tmp_path


@pytest.mark.parametrize("name,changes", {
    "gqa": {}, "mha": dict(num_key_value_heads=4), "mqa": dict(num_key_value_heads=1), "untied": dict(tie_word_embeddings=False),
    "one_layer": dict(num_hidden_layers=1), "head_dim": dict(hidden_size=64, head_dim=20)}.items())
def test_equals_autograd(tmp_path, name, changes):
    model = tiny_llama(tmp_path / "model", **changes)
    ids = random_ids(tmp_path / "ids.npy", 2, 96)
    collect(tmp_path / "model", "-o", tmp_path / "a.acts", "--ids", tmp_path / "ids.npy", "--samples", 2, "--seqlen", 96)
    assert_equals_autograd(model, tmp_path / "a.acts", ids)


def test_F40_key_bias_is_in_the_collected_keys(tmp_path):
    """Keys are taken after the bias; a bias far larger than the keys makes a missing one obvious."""
    model = tiny_llama(tmp_path / "model", attention_bias=True)
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.bias.uniform_(-100, 100)
        model.model.layers[1].self_attn.v_proj.bias.uniform_(-3, 3)
    model.save_pretrained(tmp_path / "model")
    ids = random_ids(tmp_path / "ids.npy", 1, 64)
    collect(tmp_path / "model", "-o", tmp_path / "a.acts", "--ids", tmp_path / "ids.npy", "--samples", 1, "--seqlen", 64)
    assert_equals_autograd(model, tmp_path / "a.acts", ids)
    assert np.abs(collected(tmp_path / "a.acts", 0, 0)["key"]).max() > 50


def test_smollm2_equals_autograd(tmp_path):
    """One sample of 512 tokens; every eighth layer is compared."""
    path = model_path()
    ids = np.load(data_path("smollm2/calibration_ids.npy"))[:1, :512].astype(np.int32)
    np.save(tmp_path / "ids.npy", ids)
    out = tmp_path / "s.acts"
    report = json.loads(collect(path, "-o", out, "--ids", tmp_path / "ids.npy", "--samples", 1, "--seqlen", 512, "--json").stdout)
    model = llama_from_gguf(path)
    loss, activations, gradients = fisher_pass(model, tap_keys_and_values(model), ids[0])
    assert report["nll"] == pytest.approx(loss, rel=1e-5)
    worst = 0.0
    for layer in range(0, 30, 8):
        ours = collected(out, 0, layer)
        for i, name in enumerate(("key", "value")):
            wanted = activations[2 * layer + i].numpy().reshape(ours[name].shape)
            assert_close(ours[name], wanted, f"layer {layer} {name}")
            fisher = (gradients[2 * layer + i].double().numpy().reshape(ours[name].shape) * 511) ** 2
            found = ours[name + "_grad"].astype(float) ** 2
            worst = max(worst, np.abs(found - fisher).sum() / fisher.sum())
    print(f"SmolLM2: relative difference of Fisher mass {worst:.2g}")
    assert worst < 1e-3  # 30 layers of float rounding; a wrong definition is off by far more


def test_recompute_and_threads_do_not_change_the_bytes(tiny):
    path, _, _, folder = tiny
    common = ["--ids", folder / "ids.npy", "--samples", 3, "--seqlen", 96]
    collect(path, "-o", folder / "a.acts", *common, "--recompute", "off", "--threads", 1)
    for name, more in {"b": ["--recompute", "on"], "c": ["--threads", 3], "d": []}.items():
        collect(path, "-o", folder / f"{name}.acts", *common, *more)
        assert contents(folder / "a.acts") == contents(folder / f"{name}.acts"), name


def test_no_fisher_and_bf16(tiny):
    path, _, _, folder = tiny
    common = ["--ids", folder / "ids.npy", "--samples", 2, "--seqlen", 96]
    collect(path, "-o", folder / "f32.acts", *common)
    collect(path, "-o", folder / "plain.acts", *common, "--no-fisher")
    collect(path, "-o", folder / "half.acts", *common, "--acts-dtype", "bf16")
    for layer in range(3):
        full, plain = collected(folder / "f32.acts", 1, layer), collected(folder / "plain.acts", 1, layer)
        half = collected(folder / "half.acts", 1, layer)
        assert set(plain) == {"key", "value"}
        assert np.array_equal(plain["key"], full["key"]) and np.array_equal(plain["value"], full["value"])
        for name, stored in half.items():
            assert stored.dtype == np.uint16
            wanted = torch.from_numpy(full[name]).bfloat16().view(torch.uint16).numpy()
            assert np.array_equal(stored, wanted), name
    assert json.loads((folder / "plain.acts/manifest.json").read_text())["settings"]["fisher"] is False


def test_manifest_says_what_the_activations_hold(tiny):
    import hashlib
    path, _, ids, folder = tiny
    collect(path, "-o", folder / "a.acts", "--ids", folder / "ids.npy", "--samples", 2, "--seqlen", 96, "--seed", 5)
    settings = json.loads((folder / "a.acts/manifest.json").read_text())["settings"]
    assert settings["samples"] == 2 and settings["seqlen"] == 96 and settings["seed"] == 5
    assert settings["text_flavour"] == "ids"
    assert settings["text_sha256"] == hashlib.sha256((folder / "ids.npy").read_bytes()).hexdigest()
    assert settings["sample_sha256"] == [hashlib.sha256(row.tobytes()).hexdigest() for row in ids[:2]]
    assert settings["model"]["weights_sha256"] == hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()


def test_F45_killed_run_resumes_to_the_same_bytes(tiny):
    """kill -9 at several moments, with a damaged shard besides; --resume gives what an undisturbed run gives."""
    path, _, _, folder = tiny
    random_ids(folder / "many.npy", 12, 256)
    arguments = [path, "--ids", folder / "many.npy", "--samples", 12, "--seqlen", 256]
    collect(*arguments, "-o", folder / "whole.acts")
    out = folder / "killed.acts"
    kills = 0
    for wanted in (1, 5, 17):
        process = subprocess.Popen([str(COLLECT), *map(str, arguments), "-o", str(out), "--resume"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list(out.glob("s*/l*.h5"))) < wanted:
            time.sleep(0.002)
        if process.poll() is None:
            process.kill()
            kills += 1
        process.wait()
    assert kills > 0, "no run was alive long enough to be killed"
    shards = sorted(out.glob("s*/l*.h5"))
    assert len(shards) < 36
    shards[0].write_bytes(shards[0].read_bytes()[:-7])
    resumed = collect(*arguments, "-o", out, "--resume")
    assert shards[0].name in resumed.stderr  # the damaged one is named
    assert contents(out) == contents(folder / "whole.acts")


def test_interrupt_keeps_what_is_done_and_says_how_to_go_on(tiny):
    path, _, _, folder = tiny
    random_ids(folder / "many.npy", 40, 512)
    out = folder / "stopped.acts"
    process = subprocess.Popen([str(COLLECT), str(path), "-o", str(out), "--ids", str(folder / "many.npy"), "--samples", "40",
                                "--seqlen", "512"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(out.glob("s*/l*.h5")):
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in stderr
    # Every shard that has its name is listed too, so that it counts, and nothing is left half-written.
    there = {str(p.relative_to(out)): p.stat().st_size for p in out.glob("s*/l*.h5")}
    journal = [line.split(" ") for line in (out / "manifest.journal").read_text().splitlines()]
    assert there and there == {name: int(size) for name, size, _ in journal}
    assert not list(out.rglob("*.partial*"))


def test_interrupt_drains_the_queue_of_shards():
    """Shards that wait to be written when the interrupt comes are written."""
    probe = subprocess.run([str(BUILD / "tests/bin/shard_queue_probe")], capture_output=True, text=True, check=True)
    assert probe.stdout.split() == ["4", "4"]


def test_second_writer_is_refused_by_name(tiny):
    path, _, _, folder = tiny
    random_ids(folder / "many.npy", 40, 512)
    arguments = [path, "-o", folder / "a.acts", "--ids", folder / "many.npy", "--samples", 40, "--seqlen", 512]
    first = subprocess.Popen([str(COLLECT), *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while first.poll() is None and not list((folder / "a.acts").glob("s*/l*.h5")):
        time.sleep(0.002)
    assert first.poll() is None
    error = collect(*arguments, "--resume", code=3).stderr
    first.kill()
    first.wait()
    assert "a.acts: another process is writing it" in error
    collect(*arguments, "--resume")  # a lock dies with its process


def test_resuming_a_whole_folder_loads_no_model(tmp_path):
    """Weights stored as bfloat16 are converted when they are loaded: twice their file in memory."""
    model = tiny_llama(tmp_path / "model", hidden_size=512, intermediate_size=2048, num_hidden_layers=6)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    converted = sum(p.numel() for p in model.parameters()) * 4
    random_ids(tmp_path / "ids.npy", 1, 8)
    arguments = [tmp_path / "model", "-o", tmp_path / "a.acts", "--ids", tmp_path / "ids.npy", "--samples", 1, "--seqlen", 8, "--quiet"]
    first = peak_bytes(COLLECT, *arguments)
    before = contents(tmp_path / "a.acts")
    again = peak_bytes(COLLECT, *arguments, "--resume")
    assert first - again > 0.8 * converted, (first, again, converted)
    assert contents(tmp_path / "a.acts") == before


def on_a_terminal(*command, columns=140):
    """What a program writes to a terminal that is its stderr, and its exit code."""
    import fcntl, os, pty, struct, termios
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    return seen.decode(), process.wait()


def test_progress_bar_with_time_left_on_a_terminal(tiny):
    path, _, _, folder = tiny
    random_ids(folder / "many.npy", 12, 512)
    arguments = [path, "-o", folder / "a.acts", "--ids", folder / "many.npy", "--samples", 12, "--seqlen", 512, "--threads", 1]
    text, code = on_a_terminal(COLLECT, *arguments)
    assert code == 0
    bars = [line for line in re.split(r"[\r\n]+", text) if "elapsed" in line]
    assert any(re.search(r"collect \[=* *\] \d+/108 +\d+%  \d+:\d\d elapsed, \d+:\d\d left", bar) for bar in bars), text
    assert re.search(r"collect \[=+\] 108/108 100%", bars[-1]), text
    assert any(re.search(r"left, \d+ tokens/s, [\d.]+ MiB used, [\d.]+ [KM]iB written$", bar) for bar in bars), text
    narrow, code = on_a_terminal(COLLECT, *arguments, "--force", columns=60)  # shortened, so that no line wraps
    assert code == 0 and all(len(re.sub(r"\x1b\[K|\x1b\[0?m", "", line)) < 60 for line in re.split(r"[\r\n]+", narrow) if "elapsed" in line)
    quiet, code = on_a_terminal(COLLECT, *arguments, "--force", "--quiet")
    assert code == 0 and quiet == ""


def test_F47_resume_under_other_settings_is_refused(tiny):
    path, _, _, folder = tiny
    common = [path, "-o", folder / "a.acts", "--ids", folder / "ids.npy", "--samples", 2]
    collect(*common, "--seqlen", 96)
    refused = collect(*common, "--seqlen", 64, "--resume", code=3)
    assert "seqlen: 96 there, 64 now" in refused.stderr and "--force" in refused.stderr
    config = json.loads((path / "config.json").read_text())
    config["rms_norm_eps"] = 1e-4  # decides the activations, and is in no weight file
    (path / "config.json").write_text(json.dumps(config))
    refused = collect(*common, "--seqlen", 96, "--resume", code=3)
    assert "decoder.norm_epsilon: 1e-06 there, 0.0001 now" in refused.stderr
    collect(*common, "--seqlen", 64, "--force")
    assert json.loads((folder / "a.acts/manifest.json").read_text())["settings"]["seqlen"] == 64


def poison(folder, name, row, changes=None):
    """A tiny model with NaN in one row of one weight."""
    model = tiny_llama(folder, **(changes or {}))
    with torch.no_grad():
        model.get_parameter(name)[row] = float("nan")
    model.save_pretrained(folder)


@pytest.mark.parametrize("weight,row,place", [
    ("model.layers.1.self_attn.k_proj.weight", 5, "layer 1 key"),
    ("model.layers.2.self_attn.v_proj.weight", 3, "layer 2 value"),
    ("model.layers.0.mlp.down_proj.weight", 7, "layer 0 output"),
    ("model.layers.1.self_attn.q_proj.weight", 2, "layer 1 output")])
def test_F36_nan_in_a_weight_is_named(tmp_path, weight, row, place):
    poison(tmp_path / "model", weight, row)
    random_ids(tmp_path / "ids.npy", 2, 64)
    error = collect(tmp_path / "model", "-o", tmp_path / "a.acts", "--ids", tmp_path / "ids.npy", "--samples", 2, "--seqlen",
                    64, code=1).stderr
    assert place in error and "sample 0" in error and "token 0" in error and f"{weight} row {row}" in error


def test_F36_skip_leaves_the_sample_out(tmp_path):
    """Only samples with token 200 meet the NaN: the others are kept, and a later run knows."""
    poison(tmp_path / "model", "model.embed_tokens.weight", 200, dict(tie_word_embeddings=False))
    ids = random_ids(tmp_path / "ids.npy", 4, 64, vocab=200)
    ids[1, 30] = 200
    np.save(tmp_path / "ids.npy", ids)
    common = [tmp_path / "model", "-o", tmp_path / "a.acts", "--ids", tmp_path / "ids.npy", "--samples", 4, "--seqlen", 64]
    error = collect(*common, code=1).stderr
    assert "sample 1" in error and "token 30" in error
    assert len(list((tmp_path / "a.acts/s0000").glob("*.h5"))) == 3  # what was good before is kept
    report = json.loads(collect(*common, "--resume", "--on-nonfinite", "skip", "--json").stdout)
    assert report["samples"] == 3 and len(report["left_out"]) == 1 and "sample 1" in report["left_out"][0]
    manifest = json.loads((tmp_path / "a.acts/manifest.json").read_text())
    assert manifest["complete"] and [s["sample"] for s in manifest["left_out"]] == [1]
    before = contents(tmp_path / "a.acts")
    collect(*common, "--resume", "--on-nonfinite", "skip")
    assert contents(tmp_path / "a.acts") == before


def test_every_sample_left_out_is_an_error(tmp_path):
    poison(tmp_path / "model", "model.layers.0.mlp.up_proj.weight", 0)
    random_ids(tmp_path / "ids.npy", 2, 64)
    error = collect(tmp_path / "model", "-o", tmp_path / "a.acts", "--ids", tmp_path / "ids.npy", "--samples", 2, "--seqlen",
                    64, "--on-nonfinite", "skip", code=1).stderr
    assert "every sample was left out" in error


def test_F19_too_short_a_text(tiny):
    path, _, _, folder = tiny
    np.save(folder / "flat.npy", np.arange(100, dtype=np.int32))
    error = collect(path, "-o", folder / "a.acts", "--ids", folder / "flat.npy", "--seqlen", 128, code=3).stderr
    assert "needs >= 128 tokens, has 100" in error and not (folder / "a.acts").exists()
    collect(path, "-o", folder / "a.acts", "--ids", folder / "flat.npy", "--seqlen", 100)  # exactly one sample
    assert json.loads((folder / "a.acts/manifest.json").read_text())["settings"]["samples"] == 1


def test_F67_memory_is_estimated_before_the_run(tiny):
    path, _, _, folder = tiny
    np.save(folder / "long.npy", np.zeros(200_001, np.int32))
    common = [path, "-o", folder / "a.acts", "--ids", folder / "long.npy", "--samples", 1, "--seqlen", 200_000, "--beyond-context"]
    error = collect(*common, "--max-memory", "64MiB", code=4).stderr
    assert "64.0 MiB" in error and "--seqlen" in error and not (folder / "a.acts").exists()
    plan = json.loads(collect(*common, "--dry-run", "--json").stdout)
    assert plan["tokens"] == 200_000 and plan["disk_bytes"] > 200_000 * 3 * 2 * 32 * 4 * 4
    assert not (folder / "a.acts").exists()


def test_F67_self_sampling_is_estimated_too(tiny):
    """All samples are sampled together: many of them need more than the pass over one."""
    path, _, _, folder = tiny
    common = [path, "-o", folder / "a.acts", "--dataset", "self", "--seqlen", 512]
    few = json.loads(collect(*common, "--samples", 2, "--dry-run", "--json").stdout)["peak_memory_bytes"]
    many = json.loads(collect(*common, "--samples", 1000, "--dry-run", "--json").stdout)["peak_memory_bytes"]
    assert many > few + 900 * 512 * 3 * 2 * 2 * 32 * 4  # samples, tokens, layers, key and value, heads, channels, bytes
    error = collect(*common, "--samples", 1000, "--max-memory", few + (1 << 20), code=4).stderr
    assert "sampling" in error and "--samples" in error and "--seqlen" in error and "--max-memory" in error
    assert not (folder / "a.acts").exists()


def test_self_sampling_estimate_holds(tiny):
    path, _, _, folder = tiny
    arguments = [path, "-o", folder / "a.acts", "--dataset", "self", "--samples", 200, "--seqlen", 160, "--no-fisher"]
    plan = json.loads(collect(*arguments, "--dry-run", "--json").stdout)["peak_memory_bytes"]
    peak = peak_bytes(COLLECT, *arguments, "--quiet")
    assert 0.4 * plan < peak < 1.05 * plan, (plan, peak)


def limited(mib, *arguments, program=COLLECT):
    """Under `ulimit -v`, with as few threads as can be: each takes address space."""
    script = f'ulimit -v {mib * 1024}; exec "$0" "$@"'
    return subprocess.run(["bash", "-c", script, str(program), *map(str, arguments)], capture_output=True, text=True)


def address_space_of(*command):
    """Largest VmSize of a run, in MiB; sampled, so somewhat below the truth."""
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        try:
            status = open(f"/proc/{process.pid}/status").read()
            most = max([most] + [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmPeak")])
        except (FileNotFoundError, ProcessLookupError):
            break
        time.sleep(0.002)
    assert process.wait() == 0
    return most // 1024


def test_F68_collect_under_a_limit_on_the_address_space(tiny):
    path, _, _, folder = tiny
    common = ["--ids", folder / "ids.npy", "--samples", 3, "--seqlen", 96, "--threads", 1]
    needed = address_space_of(COLLECT, path, "-o", folder / "free.acts", *common)
    plan = json.loads(collect(path, "-o", folder / "x.acts", *common, "--dry-run", "--json").stdout)
    enough = needed + plan["peak_memory_bytes"] // (1 << 20)  # the estimate counts libraries that are mapped already
    done = limited(enough, path, "-o", folder / "enough.acts", *common)
    assert done.returncode == 0, done.stderr
    assert contents(folder / "enough.acts") == contents(folder / "free.acts")
    codes = []
    for less in (16, 64, 128):  # what was reserved need not have been needed
        done = limited(needed - less, path, "-o", folder / f"little{less}.acts", *common)
        codes.append(done.returncode)
        if done.returncode == 0:
            assert contents(folder / f"little{less}.acts") == contents(folder / "free.acts")
            continue
        assert done.returncode == 4, (needed, less, done.returncode, done.stderr)
        assert "memory" in done.stderr and "terminate" not in done.stderr
        assert not (folder / f"little{less}.acts").exists()
    assert codes[-1] == 4, (needed, codes)


def test_F68_fit_under_a_limit_on_the_address_space(tiny):
    path, _, _, folder = tiny
    random_ids(folder / "many.npy", 8, 512)
    collect(path, "-o", folder / "a.acts", "--ids", folder / "many.npy", "--samples", 8, "--seqlen", 512)
    fit = BUILD / "libexec/kvcc/kvcc-fit"
    arguments = [folder / "a.acts", "--scheme", "kvcc-nuq4-1%-sink1", "--threads", 2]
    needed = address_space_of(fit, *arguments, "-o", folder / "free.kvcb")
    done = limited(needed + 16, *arguments, "-o", folder / "enough.kvcb", program=fit)
    assert done.returncode == 0, done.stderr
    assert (folder / "enough.kvcb").read_bytes() == (folder / "free.kvcb").read_bytes()
    base = address_space_of(fit, "--version")
    refused = 0
    for limit in range(base + 4, needed, max(1, (needed - base) // 24)):
        name = f"little{limit}.kvcb"
        done = limited(limit, *arguments, "-o", folder / name, program=fit)
        if done.returncode == 0:  # what was sampled need not be needed
            assert (folder / name).read_bytes() == (folder / "free.kvcb").read_bytes()
            continue
        assert done.returncode == 4, (limit, needed, done.returncode, done.stderr)
        assert "memory" in done.stderr and not (folder / name).exists()
        refused += 1
    assert refused > 0, (base, needed)


def peak_bytes(*command):
    """Started from a small process: a child's peak counts that of the process it was forked from."""
    script = ("import os, subprocess, sys; p = subprocess.Popen(sys.argv[1:]); _, status, usage = os.wait4(p.pid, 0); "
              "print(usage.ru_maxrss * 1024); sys.exit(status != 0)")
    return int(subprocess.run([sys.executable, "-c", script, *map(str, command)], capture_output=True, text=True, check=True).stdout)


def test_dry_run_estimate_holds(tiny):
    """The estimate is at least what a run takes, and recompute lowers both."""
    path, _, _, folder = tiny
    model = tiny_llama(folder / "wide", hidden_size=256, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=8,
                       num_key_value_heads=4, head_dim=32, max_position_embeddings=1024)
    random_ids(folder / "one.npy", 1, 1024)
    peaks = {}
    for recompute in ("off", "on"):
        arguments = [folder / "wide", "-o", folder / f"{recompute}.acts", "--ids", folder / "one.npy", "--samples", 1, "--seqlen", 1024,
                     "--recompute", recompute]
        plan = json.loads(collect(*arguments, "--dry-run", "--json").stdout)
        peaks[recompute] = peak_bytes(COLLECT, *arguments, "--quiet")
        assert 0.5 * plan["peak_memory_bytes"] < peaks[recompute] < 1.05 * plan["peak_memory_bytes"], (recompute, plan, peaks)
    assert peaks["on"] < peaks["off"]


def test_self_samples_are_deterministic_and_kept(tiny):
    path, _, _, folder = tiny
    common = [path, "--dataset", "self", "--samples", 2, "--seqlen", 48]
    collect(*common, "-o", folder / "a.acts", "--seed", 3)
    collect(*common, "-o", folder / "b.acts", "--seed", 3, "--threads", 1)
    collect(*common, "-o", folder / "c.acts", "--seed", 4)
    ids = {name: np.load(folder / f"{name}.acts/self_ids.npy") for name in "abc"}
    assert ids["a"].shape == (2, 48) and np.array_equal(ids["a"], ids["b"]) and not np.array_equal(ids["a"], ids["c"])
    assert contents(folder / "a.acts") == contents(folder / "b.acts")
    settings = json.loads((folder / "a.acts/manifest.json").read_text())["settings"]
    assert settings["text_flavour"] == "self"
    assert (ids["a"][:, 0] == 1).all()  # begins with the BOS of the configuration
    next(iter((folder / "a.acts").glob("s0001/*.h5"))).unlink()
    collect(*common, "-o", folder / "a.acts", "--seed", 3, "--resume")
    assert contents(folder / "a.acts") == contents(folder / "b.acts")


def test_self_samples_follow_the_models_distribution(tmp_path):
    """A model of one token's memory: frequencies after a token against softmax of its logits."""
    model = tiny_llama(tmp_path / "model", num_hidden_layers=1, vocab_size=8, initializer_range=0.4, bos_token_id=1, eos_token_id=2,
                       pad_token_id=None)
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
    model.save_pretrained(tmp_path / "model")
    collect(tmp_path / "model", "-o", tmp_path / "a.acts", "--dataset", "self", "--samples", 64, "--seqlen", 256, "--no-fisher")
    ids = np.load(tmp_path / "a.acts/self_ids.npy")
    with torch.no_grad():
        logits = model(torch.arange(8)[:, None]).logits[:, 0]
    expected = torch.softmax(logits, -1).numpy()
    counts = np.zeros((8, 8))
    np.add.at(counts, (ids[:, :-1].ravel(), ids[:, 1:].ravel()), 1)
    for token in range(8):
        n = counts[token].sum()
        if n < 200:
            continue
        error = np.abs(counts[token] / n - expected[token])
        assert (error < 5 * np.sqrt(expected[token] * (1 - expected[token]) / n) + 1e-3).all()
    assert (counts.sum(1) >= 200).sum() >= 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_F17_what_fp16_cannot_hold_is_collected_in_full(tmp_path, dtype):
    """A norm of which fp16 would make infinity, as Gemma's: keys beyond 65,504 are kept, and the fit names them. Queries are small:
    with scores of 1e9 the gradients of PyTorch's own attention are NaN, and collect stops as it should."""
    model = tiny_llama(tmp_path / "model")
    with torch.no_grad():
        model.model.layers[1].input_layernorm.weight.fill_(2e5)
        model.model.layers[1].self_attn.q_proj.weight.mul_(1e-12)
    model.to(dtype).save_pretrained(tmp_path / "model")
    ids = random_ids(tmp_path / "ids.npy", 2, 64)
    arguments = [tmp_path / "model", "--ids", tmp_path / "ids.npy", "--samples", 2, "--seqlen", 64]
    collect(*arguments, "-o", tmp_path / "a.acts")
    # Loaded anew: to(bfloat16) rounds the rotation's frequencies too, which no file holds.
    assert_equals_autograd(type(model).from_pretrained(tmp_path / "model", dtype=torch.float32), tmp_path / "a.acts", ids)
    keys = collected(tmp_path / "a.acts", 0, 1)["key"]
    assert np.abs(keys).max() > 2 * 65504 and np.isfinite(keys).all()
    collect(*arguments, "-o", tmp_path / "b.acts", "--acts-dtype", "bf16")
    stored = torch.from_numpy(collected(tmp_path / "b.acts", 0, 1)["key"].astype(np.int32) << 16).view(torch.float32)
    np.testing.assert_allclose(stored, keys, rtol=2**-8)
    fit = subprocess.run([BUILD / "libexec/kvcc/kvcc-fit", tmp_path / "a.acts", "--scheme", "kvcc-nuq4-1%-sink1", "-o", tmp_path / "x.kvcb"],
                         capture_output=True, text=True)
    assert fit.returncode == 3 and re.search("layer 1 (key|value), sample 0, token", fit.stderr) and "65504" in fit.stderr, fit.stderr
    assert not (tmp_path / "x.kvcb").exists()


def test_F17_overflow_stops_at_the_first_layer_and_token(tmp_path):
    """Beyond f32 too: infinity in layer 1 is named there, not where NaN comes out."""
    model = tiny_llama(tmp_path / "model")
    with torch.no_grad():
        model.model.layers[1].input_layernorm.weight.fill_(3e38)
    model.save_pretrained(tmp_path / "model")
    random_ids(tmp_path / "ids.npy", 2, 64)
    error = collect(tmp_path / "model", "-o", tmp_path / "a.acts", "--ids", tmp_path / "ids.npy", "--samples", 2, "--seqlen", 64, code=1).stderr
    assert "layer 1 key" in error and "sample 0" in error and "token 0" in error


def test_F21_no_sample_enters_another(tiny):
    """There is no padding: samples are run one by one, and each is what it is alone."""
    path, _, ids, folder = tiny
    collect(path, "-o", folder / "all.acts", "--ids", folder / "ids.npy", "--samples", 3, "--seqlen", 96)
    for sample, row in enumerate(ids):
        np.save(folder / "one.npy", row[None])
        collect(path, "-o", folder / "one.acts", "--ids", folder / "one.npy", "--samples", 1, "--seqlen", 96, "--force")
        for layer in range(3):
            alone, among = collected(folder / "one.acts", 0, layer), collected(folder / "all.acts", sample, layer)
            for name in alone:
                assert np.array_equal(alone[name], among[name]), (sample, layer, name)
    # Rows of unequal lengths cannot be given, and of a text every sample is a whole window.
    np.save(folder / "flat.npy", ids.ravel()[:96 + 50])
    collect(path, "-o", folder / "flat.acts", "--ids", folder / "flat.npy", "--samples", 2, "--seqlen", 96)
    settings = json.loads((folder / "flat.acts/manifest.json").read_text())["settings"]
    assert settings["seqlen"] == 96 and len(settings["offsets"]) == 2 and all(0 <= offset <= 50 for offset in settings["offsets"])


def test_F53_json_alone_on_stdout(tiny):
    path, _, _, folder = tiny
    done = collect(path, "-o", folder / "a.acts", "--ids", folder / "ids.npy", "--samples", 2, "--seqlen", 96, "--json")
    assert json.loads(done.stdout)["samples"] == 2


def test_wrong_usage(tiny):
    path, _, _, folder = tiny
    for arguments in (["--recompute", "maybe"], ["--samples", 0], ["--device", "cuda"], ["--dataset", "self", "--text", "x"],
                      ["--dtype", "f16"], ["--max-memory", "lots"]):
        collect(path, "-o", folder / "a.acts", "--seqlen", 96, *arguments, code=2)
        assert not (folder / "a.acts").exists()


def test_fewer_samples_than_asked_for_are_not_passed_over(tiny):
    path, _, _, folder = tiny
    common = [path, "--ids", folder / "ids.npy", "--seqlen", 96, "--no-fisher"]
    assert "ids.npy has 3 samples only, 5 were asked for" in collect(*common, "-o", folder / "a.acts", "--samples", 5).stderr
    assert "asked for" not in collect(*common, "-o", folder / "b.acts", "--samples", 3).stderr


def test_F14_longer_than_the_model_keeps_its_own_rope(tmp_path):
    """Only when asked for, and no scaling is put in silently: the keys of a long sample equal those of transformers'
    unscaled model, and it warns."""
    model = tiny_llama(tmp_path / "model", max_position_embeddings=32)
    ids = random_ids(tmp_path / "ids.npy", 1, 96)
    arguments = [tmp_path / "model", "-o", tmp_path / "a.acts", "--ids", tmp_path / "ids.npy", "--samples", 1, "--seqlen", 96]
    error = collect(*arguments, code=2).stderr
    assert "--seqlen 96" in error and "at most 32" in error and "--beyond-context" in error
    assert not (tmp_path / "a.acts").exists()
    done = collect(*arguments, "--beyond-context")
    assert "more than the model was made for (32)" in done.stderr
    assert_equals_autograd(model, tmp_path / "a.acts", ids)


def add_tokenizer(folder):
    """A byte-level tokenizer of 256 tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    oracle = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    oracle.save(str(folder / "tokenizer.json"))


def test_F18_tokenising_shows_its_progress(tiny):
    """Two files: the bar is of the bytes of both."""
    path, _, _, folder = tiny
    add_tokenizer(path)
    (folder / "a.txt").write_text("words and words\n" * 200_000)
    (folder / "b.txt").write_text("more words\n" * 1000)
    total = sum((folder / name).stat().st_size for name in ("a.txt", "b.txt"))
    text, code = on_a_terminal(COLLECT, path, "-o", folder / "a.acts", "--text", folder / "a.txt", folder / "b.txt", "--samples", 1,
                               "--seqlen", 32)
    assert code == 0, text
    bars = re.findall(r"tokenise, bytes \[=* *\] (\d+)/(\d+)", text)
    assert len(bars) >= 2 and all(int(whole) == total for _, whole in bars), text
    assert int(bars[0][0]) < total and int(bars[-1][0]) == total
