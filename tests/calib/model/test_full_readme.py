"""calib/model/README.md followed to the letter: its blocks added to a copy of the table give a decoder of Qwen3's."""
import json
import re
import shlex
import subprocess

import numpy as np
import safetensors.torch

from calib.model.tiny_models import TOKENS, autograd, make
from support import BUILD, SOURCE

NAMES = [("model.embed_tokens.", "wte."), ("model.norm.", "ln_f."), ("model.layers.", "h."), ("input_layernorm", "ln_1"),
         ("post_attention_layernorm", "ln_2"), ("self_attn.", "attn."), ("mlp.", "mlp."), ("_proj.", ".")]


def build_with_example(folder):
    """pass_probe with the table that the README tells to write, by the compiler and link commands of the build."""
    tensors, row = re.findall(r"```cpp\n(.*?)```", (SOURCE / "calib/model/README.md").read_text(), re.S)
    table = (SOURCE / "formats/weights/architectures.cc").read_text()
    mark = "constexpr Architecture kArchitectures[] = {\n"
    assert table.count(mark) == 1
    (folder / "architectures.cc").write_text(table.replace(mark, tensors + "\n" + mark + row))
    subprocess.run(["c++", "-std=c++20", "-O1", "-ffp-contract=off", f"-I{SOURCE}", "-c", "architectures.cc", "-o", "table.o"],
                   cwd=folder, check=True)
    commands = subprocess.run(["ninja", "-t", "commands", "pass_probe"], cwd=BUILD, capture_output=True, text=True, check=True)
    link = next(c for c in reversed(commands.stdout.splitlines()) if " -o tests/bin/pass_probe" in c)
    link = re.search(r"(\S*(?:c\+\+|g\+\+|clang\+\+)\S* .*? -o tests/bin/pass_probe .*?)( &&|$)", link).group(1)
    words = [str(folder / "example_probe") if w == "tests/bin/pass_probe" else w for w in shlex.split(link)]
    words.insert(words.index("-o"), str(folder / "table.o"))  # before the libraries, which then need no table
    subprocess.run([*words, f"-Wl,-rpath,{BUILD}/lib/kvcc"], cwd=BUILD, check=True)
    return folder / "example_probe"


def test_an_architecture_added_by_the_readme(tmp_path):
    program = build_with_example(tmp_path)
    model = make("qwen3", tmp_path / "model")
    ids = np.random.default_rng(7).integers(0, 101, TOKENS)
    logits, layers = autograd(model, ids)
    file = tmp_path / "model/model.safetensors"
    renamed = {}
    for name, tensor in safetensors.torch.load_file(file).items():
        for old, new in NAMES:
            name = name.replace(old, new)
        renamed[name] = tensor
    safetensors.torch.save_file(renamed, file)
    config = json.loads((tmp_path / "model/config.json").read_text()) | {"model_type": "example"}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    ids.astype("<i4").tofile(tmp_path / "ids")
    (tmp_path / "out").mkdir()
    subprocess.run([program, tmp_path / "ids", tmp_path / "model", tmp_path / "out"], check=True)
    found = np.fromfile(tmp_path / "out/logits", "<f4").reshape(logits.shape)
    assert np.abs(found - logits).max() < 1e-4 * np.abs(logits).max()
    for number, tensors in layers.items():
        for kind, theirs in tensors.items():
            ours = np.fromfile(tmp_path / f"out/{number}.{kind}", "<f4").reshape(theirs.shape)
            assert np.abs(ours - theirs).max() < 1e-4 * np.abs(theirs).max(), (number, kind)
