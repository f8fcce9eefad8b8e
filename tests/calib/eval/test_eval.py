"""kvcc eval against quantised caches simulated in numpy inside transformers, and its manners as a program."""
import json
import math
import subprocess

import h5py
import numpy as np
import pytest
import torch

import oracle
from support import BUILD, random_ids, tiny_llama

PROGRAMS = BUILD / "libexec/kvcc"


def run(verb, *arguments, code=0):
    done = subprocess.run([str(PROGRAMS / f"kvcc-{verb}"), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def evaluate(*arguments, **keywords):
    return json.loads(run("eval", *arguments, "--json", **keywords).stdout)


def without_time(document):
    for row in document["results"]:
        assert row.pop("seconds") > 0
    return document


# Weights small enough that a flipped rounding does not grow into another answer.
CALM = dict(initializer_range=0.12)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval")
    model = tiny_llama(folder / "model", **CALM)
    random_ids(folder / "calibration.npy", 4, 128)
    return folder, model, random_ids(folder / "windows.npy", 3, 80, seed=1)


def assert_row(row, expected):
    """Tolerances: a value on the edge of two levels may fall on either side."""
    nll, kl, agreement = (np.array(x) for x in zip(*expected))
    assert row["nll"] == pytest.approx(nll.mean(), rel=2e-4)
    assert row["perplexity"] == pytest.approx(math.exp(row["nll"]), rel=1e-12)
    assert row["kl"] == pytest.approx(kl.mean(), rel=5e-3)
    assert row["kl_se"] == pytest.approx(kl.std(ddof=1) / math.sqrt(len(kl)), rel=2e-2)
    assert row["top1_agreement"] == pytest.approx(agreement.mean(), abs=0.01)
    assert row["window_nll"] == pytest.approx(nll.tolist(), rel=5e-4)


@pytest.mark.parametrize("bits", (4, 3, 2))
def test_integer_baselines(tiny, bits):
    folder, model, windows = tiny
    levels = np.tile(oracle.integer_levels(bits), (2, 1))

    def quantise(layer, kind, x):
        return oracle.token(x, levels, 0)

    expected, full_nll = [], []
    for ids in windows:
        full = oracle.simulate(model, ids)
        full_nll.append(-full[np.arange(79), ids[1:]].mean())
        scheme = oracle.simulate(model, ids, before=lambda l, kind, x: quantise(l, kind, x) if kind == "value" else x,
                                 after=quantise)
        expected.append(oracle.compare(full, scheme, ids))
    document = evaluate(folder / "model", "--ids", folder / "windows.npy", "--seqlen", 80, "--scheme", f"int{bits}")
    fp, row = document["results"]
    assert fp["scheme"] == "fp" and fp["effective_bits"] == 16
    assert fp["nll"] == pytest.approx(np.mean(full_nll), rel=1e-5)
    assert row["scheme"] == f"int{bits}" and row["mode"] == "full" and row["nominal_bits"] == bits
    assert row["effective_bits"] == pytest.approx(bits + 32 / 64)  # fp16 scale and zero for 2 heads of 32
    assert_row(row, expected)
    difference = np.array([e[0] for e in expected]) - full_nll
    assert row["dnll"] == pytest.approx(difference.mean(), rel=1e-2)
    assert row["dnll_se"] == pytest.approx(difference.std(ddof=1) / math.sqrt(3), rel=3e-2)


@pytest.fixture(scope="module")
def artifacts(tiny):
    folder, _, _ = tiny
    run("collect", folder / "model", "-o", folder / "t.acts", "--ids", folder / "calibration.npy", "--samples", 4, "--seqlen", 128)
    schemes = ["kvcc-nuq3-1%-sink1", "kvquant-nuq2", "kvcc-nuq4-1%",
               "k=nuq3@prerope/channel,v=nuq2@token,sparse=2%,sink=2,residual=7,codebook=head,weight=f,"
               "first-thresholds=in,first-kmeans=out"]
    arguments = ["fit", folder / "t.acts", "-o", folder / "t"]
    for scheme in schemes:
        arguments += ["--scheme", scheme]
    run(*arguments)
    found = sorted(folder.glob("t.*.kvcb"))
    assert len(found) == len(schemes)
    return found


def test_artifacts_drive_the_cache(tiny, artifacts):
    """Everything the oracle uses comes out of the file with h5py."""
    folder, model, windows = tiny
    arguments = [folder / "model", "--ids", folder / "windows.npy", "--seqlen", 80]
    for path in artifacts:
        arguments += ["--codebook", path]
    rows = {row["codebook"]: row for row in evaluate(*arguments)["results"][1:]}
    assert len(rows) == len(artifacts)
    for path in artifacts:
        with h5py.File(path) as file:
            text = file.attrs["scheme"]
            text = text.decode() if isinstance(text, bytes) else text
            part = dict(p.split("=", 1) for p in text.split(","))
            key, value = ({name: item[()] for name, item in file[kind].items() if isinstance(item, h5py.Dataset)}
                          for kind in ("key", "value"))
        sparse = float(part["sparse"].rstrip("%")) / 100
        sink, residual = int(part["sink"]), int(part["residual"])

        def quantise(layer, kind, x):
            levels = (key if kind == "key" else value)["codebook"][layer]
            levels = levels[:, :1 << int((key if kind == "key" else value)["bits"][layer][0])]
            if kind == "key":
                lower = key["threshold_lower"][layer] if "threshold_lower" in key else None
                upper = key["threshold_upper"][layer] if "threshold_upper" in key else None
                out = oracle.channel(x, levels, key["scale"][layer], key["zero"][layer], lower, upper)
            else:
                out = oracle.token(x, levels, oracle.tail_of(sparse, 64))
            out[:sink] = oracle.half(x[:sink])
            if residual:
                out[-residual:] = oracle.half(x[-residual:])
            return out

        expected = []
        for ids in windows:
            full = oracle.simulate(model, ids)
            expected.append(oracle.compare(full, oracle.simulate(model, ids, before=quantise), ids))
        row = rows[str(path)]
        print(text, row["nll"], row["kl"])
        assert_row(row, expected)
        assert row["artifact_bytes"] == path.stat().st_size
        assert row["effective_bits"] > row["nominal_bits"]


def test_full_precision_cache_is_full_precision(tiny):
    """No perplexity is lost where nothing is quantised; keys and values in fp16 lose next to nothing."""
    folder, _, _ = tiny
    document = evaluate(folder / "model", "--ids", folder / "windows.npy", "--seqlen", 80, "--scheme", "fp", "--scheme",
                        "int8", "--scheme", "int8")
    assert [row["scheme"] for row in document["results"]] == ["fp", "int8"]  # each once
    assert 0 < document["results"][1]["kl"] < 1e-3


def test_threads_do_not_change_the_result(tiny, artifacts):
    folder, _, _ = tiny
    arguments = [folder / "model", "--ids", folder / "windows.npy", "--seqlen", 80, "--scheme", "int3", "--codebook", artifacts[0]]
    one, three = (without_time(evaluate(*arguments, "--threads", n)) for n in (1, 3))
    assert one == three


def test_F21_no_window_reads_another(tiny):
    """A window's result does not depend on the windows beside it."""
    folder, _, windows = tiny
    both = evaluate(folder / "model", "--ids", folder / "windows.npy", "--seqlen", 80, "--scheme", "int3")
    for w, ids in enumerate(windows):
        np.save(folder / "one.npy", ids)
        one = evaluate(folder / "model", "--ids", folder / "one.npy", "--seqlen", 80, "--scheme", "int3")
        for i in range(2):
            assert one["results"][i]["window_nll"] == [both["results"][i]["window_nll"][w]]
        assert one["results"][1]["kl_se"] is None and one["windows"] == 1  # no standard error of one window


def test_document(tiny):
    import hashlib
    folder, _, _ = tiny
    done = run("eval", folder / "model", "--ids", folder / "windows.npy", "--seqlen", 64, "--windows", 2, "--json")
    document = json.loads(done.stdout)
    assert next(iter(document)) == "schema_version"
    assert document["windows"] == 2 and document["seqlen"] == 64 and document["model"] == str(folder / "model")
    assert document["dataset"] == {"name": "windows.npy", "tokens": 240,
                                   "sha256": hashlib.sha256((folder / "windows.npy").read_bytes()).hexdigest()}
    table = run("eval", folder / "model", "--ids", folder / "windows.npy", "--seqlen", 64, "--windows", 2, "--scheme", "int4").stdout
    assert table.splitlines()[0].split("  ")[0] == "scheme"
    assert table.splitlines()[0].split() == ["scheme", "fit", "bits", "at", "2K", "at", "32K", "at", "128K", "exact",
                                             "perplexity", "dNLL", "KL", "top-1", "E_M", "1%", "s"]
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["fp", "int4"]


def test_limit_on_perplexity(tiny):
    folder, _, _ = tiny
    common = [folder / "model", "--ids", folder / "windows.npy", "--seqlen", 80, "--scheme", "int4"]
    value = evaluate(*common)["results"][1]["perplexity"]
    evaluate(*common, "--max-ppl", value * 1.001)
    done = run("eval", *common, "--max-ppl", value * 0.999, "--json", code=5)
    assert json.loads(done.stdout)["results"] and "int4" in done.stderr and "--max-ppl" in done.stderr


def test_artifact_of_another_geometry_is_refused(tiny, artifacts, tmp_path):
    folder, _, _ = tiny
    tiny_llama(tmp_path / "other", num_key_value_heads=4, num_hidden_layers=2)
    error = run("eval", tmp_path / "other", "--ids", folder / "windows.npy", "--seqlen", 80, "--codebook", artifacts[0], code=3).stderr
    assert "kv_heads: artifact 2, model 4" in error and "layers: artifact 3, model 2" in error and str(artifacts[0]) in error
    tiny_llama(tmp_path / "theta", rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, **CALM)
    error = run("eval", tmp_path / "theta", "--ids", folder / "windows.npy", "--seqlen", 80, "--codebook", artifacts[0], code=3).stderr
    assert "rope theta: artifact 10000, model 5000" in error


def edited(artifact, path, edit):
    """A copy of an artifact with one edit, and the checksum right again (formats/spec/codebook.md)."""
    import shutil
    from formats.store.test_codebook_h5py import content_sha256
    shutil.copy(artifact, path)
    with h5py.File(path, "r+") as file:
        edit(file)
    checksum = content_sha256(path)
    with h5py.File(path, "r+") as file:
        file.attrs["content_sha256"] = checksum
    return path


def test_artifact_of_a_layer_that_the_model_lacks_is_refused(tiny, artifacts, tmp_path):
    folder, _, _ = tiny

    def move(file):
        file["layer_index"][2] = 7
    broken = edited(artifacts[0], tmp_path / "a.kvcb", move)
    error = run("eval", folder / "model", "--ids", folder / "windows.npy", "--seqlen", 80, "--codebook", broken, code=3).stderr
    assert "layer_index: artifact has layer 7, the model layers 0 to 2" in error and str(broken) in error


def test_F47_artifact_of_another_scaling_of_rope_is_refused(tmp_path):
    """Both are scaled linearly; the factors differ."""
    random_ids(tmp_path / "ids.npy", 2, 64)
    for factor in (2.0, 4.0):
        tiny_llama(tmp_path / f"m{factor}", rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": factor}, **CALM)
    run("collect", tmp_path / "m2.0", "-o", tmp_path / "a.acts", "--ids", tmp_path / "ids.npy", "--samples", 2, "--seqlen", 64)
    run("fit", tmp_path / "a.acts", "-o", tmp_path / "a.kvcb", "--scheme", "kvcc-nuq4-1%")
    common = ["--ids", tmp_path / "ids.npy", "--seqlen", 64, "--codebook", tmp_path / "a.kvcb"]
    run("eval", tmp_path / "m2.0", *common)
    error = run("eval", tmp_path / "m4.0", *common, code=3).stderr
    assert "rope scaling parameters" in error and "rope theta" not in error


def test_artifact_of_other_weights_warns(tiny, artifacts, tmp_path):
    folder, _, _ = tiny
    tiny_llama(tmp_path / "finetuned", seed=9, **CALM)
    common = ["--ids", folder / "windows.npy", "--seqlen", 80, "--codebook", artifacts[0]]
    assert "other weights" in run("eval", tmp_path / "finetuned", *common).stderr
    assert "other weights" not in run("eval", folder / "model", *common).stderr


def test_nan_in_the_model_is_named(tmp_path):
    model = tiny_llama(tmp_path / "model")
    with torch.no_grad():
        model.model.layers[1].mlp.gate_proj.weight[4] = float("inf")
    model.save_pretrained(tmp_path / "model")
    random_ids(tmp_path / "ids.npy", 1, 64)
    error = run("eval", tmp_path / "model", "--ids", tmp_path / "ids.npy", "--seqlen", 64, code=1).stderr
    assert "model.layers.1.mlp.gate_proj.weight row 4" in error


def test_self_text(tiny):
    folder, _, _ = tiny
    first = evaluate(folder / "model", "--dataset", "self", "--windows", 2, "--seqlen", 40)
    assert first["dataset"]["name"] == "self" and first["windows"] == 2
    again = evaluate(folder / "model", "--dataset", "self", "--windows", 2, "--seqlen", 40)
    assert without_time(first) == without_time(again)


def test_dry_run(tiny):
    folder, _, _ = tiny
    common = [folder / "model", "--seqlen", 80, "--scheme", "int4", "--dry-run"]
    plan = evaluate(*common, "--ids", folder / "windows.npy")
    assert plan["windows"] == 3 and plan["schemes"] == ["fp", "int4"] and plan["forward_passes"] == 6 and "results" not in plan
    assert evaluate(*common, "--dataset", "self", "--windows", 0)["windows"] == 8  # as the help says
    assert "peak memory" in run("eval", *common, "--ids", folder / "windows.npy").stdout


def test_F67_memory_is_estimated_before_the_run(tiny):
    folder, _, _ = tiny
    np.save(folder / "long.npy", np.zeros(10, np.int32))  # refused before any text is read
    common = [folder / "model", "--beyond-context", "--seqlen", 1 << 24]
    error = run("eval", *common, "--ids", folder / "long.npy", code=4).stderr
    assert "of memory; wanted at most" in error and "--seqlen" in error
    error = run("eval", folder / "model", "--dataset", "self", "--windows", 1 << 20, "--seqlen", 512, code=4).stderr
    assert "sampling: needs about" in error and "--windows" in error


def test_F67_estimate_holds(tmp_path):
    import sys
    tiny_llama(tmp_path / "wide", hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
               num_key_value_heads=4, head_dim=32, max_position_embeddings=4096, vocab_size=8192)
    random_ids(tmp_path / "ids.npy", 1, 4096)
    arguments = [tmp_path / "wide", "--ids", tmp_path / "ids.npy", "--seqlen", 4096, "--scheme", "int4", "--scheme", "int3"]
    plan = evaluate(*arguments, "--dry-run")["peak_memory_bytes"]
    script = ("import os, subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL); "
              "_, status, usage = os.wait4(p.pid, 0); print(usage.ru_maxrss * 1024); sys.exit(status != 0)")
    peak = int(subprocess.run([sys.executable, "-c", script, str(PROGRAMS / "kvcc-eval"), *map(str, arguments), "--quiet"],
                              capture_output=True, text=True, check=True).stdout)
    assert 0.4 * plan < peak < 1.05 * plan, (plan, peak)


def test_F14_longer_than_the_model_needs_a_flag(tmp_path):
    tiny_llama(tmp_path / "model", max_position_embeddings=32)
    random_ids(tmp_path / "ids.npy", 1, 64)
    common = [tmp_path / "model", "--ids", tmp_path / "ids.npy", "--seqlen", 64]
    error = run("eval", *common, code=2).stderr
    assert "--seqlen 64" in error and "at most 32" in error and "--beyond-context" in error
    assert "more than the model was made for (32)" in run("eval", *common, "--beyond-context").stderr


def test_fewer_windows_than_asked_for_are_not_passed_over(tiny):
    folder, _, _ = tiny
    common = [folder / "model", "--ids", folder / "windows.npy", "--seqlen", 80]
    assert "windows.npy has 3 windows only, 8 were asked for" in run("eval", *common).stderr
    for windows in (0, 3):
        assert "asked for" not in run("eval", *common, "--windows", windows).stderr


def test_wrong_usage(tiny, artifacts):
    folder, _, _ = tiny
    common = [folder / "model", "--ids", folder / "windows.npy", "--seqlen", 80]
    assert "kvcc calibrate" in run("eval", *common, "--scheme", "kvcc-nuq3-1%", code=2).stderr
    for arguments in (["--mode", "decode"], ["--max-ppl", -1], ["--max-ppl", 0], ["--scheme", "imt4"], ["--device", "cuda"], ["--text", "x"]):
        run("eval", *common, *arguments, code=2)
    run("eval", *common, "--codebook", folder / "none.kvcb", code=3)
    assert "needs >= 500 tokens" in run("eval", *common[:3], "--seqlen", 500, code=3).stderr


def test_html_report(tiny, tmp_path):
    """The page draws this run's document; a name that cannot be written is refused before anything is run."""
    from browser import Browser
    folder, *_ = tiny
    common = (folder / "model", "--ids", folder / "windows.npy", "--seqlen", 64, "--windows", 2, "--scheme", "int4", "--scheme", "int2",
              "--mode", "full", "--mode", "pseudo-decode", "--block", 16, "--repair", 10, "--attention", 2)
    document = evaluate(*common, "--html", tmp_path / "e.html")
    browser = Browser()
    try:
        browser.view(1280)
        browser.open(tmp_path / "e.html")
        points = dict(browser.evaluate("[...document.querySelectorAll('#pareto [data-name]')].map((p) => [p.dataset.name, p.getAttribute('aria-label')])"))
        rows = {row["scheme"]: row for row in document["results"] if row.get("mode") == "full"}
        assert set(points) == set(rows) == {"int4", "int2"}
        for scheme, label in points.items():
            assert float(label.split("Perplexity ")[1].split(",")[0]) == pytest.approx(rows[scheme]["perplexity"], rel=1e-5)
        cards = browser.evaluate("[...document.querySelectorAll('.card')].map((c) => c.id)")
        assert cards == ["pareto", "position", "magnitude", "repair", "context", "attention", "results", "provenance"]
        assert browser.errors == []
    finally:
        browser.close()
    assert "folder" in run("eval", *common, "--html", tmp_path / "no/e.html", code=3).stderr
