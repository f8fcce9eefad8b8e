"""Models with images: the decoder is found under all names that files have for it, the images are left out by name, and what is
neither is refused. Against transformers: tests/calib/model/test_architectures.py."""
import json

import numpy as np
import pytest
from tiny_llama import config, dump, refusal, tensors, write_directory

from support import kvcc

IMAGES = {"vision_tower.a.weight": np.ones((3, 5), np.float32), "multi_modal_projector.b.weight": np.ones(7, np.float32)}


def wrapped(inner, **top):
    return {"model_type": "llava", "text_config": inner, "vision_config": {"model_type": "clip_vision_model"}, **top}


def renamed(weights, before):
    """`before` takes the place of the names' "model."; of the head where it has a name of its own there."""
    head = before.removesuffix("model.") + "lm_head" if before == "language_model.model." else "lm_head"
    return {(n.replace("lm_head", head) if n.startswith("lm_head") else before + n.removeprefix("model.")): w
            for n, w in weights.items()}


@pytest.mark.parametrize("before, images", [("language_model.model.", ""), ("model.language_model.", "model."),
                                            ("model.text_model.", "model.")])
@pytest.mark.parametrize("shards", (1, 3))
def test_the_decoder_under_each_name(tmp_path, before, images, shards):
    c = config()
    weights = tensors(c)
    plain = dump(write_directory(tmp_path / "plain", c, weights))
    files = renamed(weights, before) | {images + n: w for n, w in IMAGES.items()}
    folder = write_directory(tmp_path / "images", wrapped(c, bos_token_id=7, eos_token_id=[9, 8]), files, shards)
    seen = dump(folder)
    assert seen["tensors"] == plain["tensors"] and seen["order"] == plain["order"]
    assert (seen["architecture"], seen["bos"], seen["eos"]) == ("llama", 7, 9)
    np.save(tmp_path / "ids.npy", np.arange(40, dtype=np.int32).reshape(2, 20))
    _, said = kvcc("validate", folder)
    assert "the text decoder (llama) of llava; 2 tensors of images are left out" in said


def test_what_text_config_leaves_out(tmp_path):
    """LLaVA's names the model type and the vocabulary: the rest are the configuration class's."""
    folder = write_directory(tmp_path / "m", wrapped({"model_type": "llama", "vocab_size": 32064}), dict(IMAGES))
    message = refusal(folder)
    assert "model.embed_tokens.weight [32064, 4096]" in message and "model.layers.0.mlp.up_proj.weight [11008, 4096]" in message


@pytest.mark.parametrize("top, head, tied", [({}, True, False), ({"tie_word_embeddings": True}, True, False),
                                             ({"tie_word_embeddings": True}, False, True)])
def test_the_head_is_the_embedding_where_there_is_none(tmp_path, top, head, tied):
    c = config()
    weights = {n: w for n, w in tensors(c).items() if head or not n.startswith("lm_head")}
    assert dump(write_directory(tmp_path, wrapped(c, **top), renamed(weights, "model.language_model.")))["tied"] == tied


def test_refusals(tmp_path):
    c = config()
    files = renamed(tensors(c), "language_model.model.")
    cases = {
        "no text": ({"model_type": "llava"}, files, "text_config is absent"),
        "text of another kind": (wrapped([1]), files, "text_config is"),
        "unknown text": (wrapped(config(model_type="mamba")), files, "text_config: architecture mamba"),
        "unknown model": (wrapped(c) | {"model_type": "blip"}, files, "architecture blip"),
        "bad size": (wrapped(config(hidden_size="x")), files, "text_config: hidden_size is"),
        "an audio tower": (wrapped(c), files | {"audio_tower.a": IMAGES["vision_tower.a.weight"]}, "does not use: audio_tower.a"),
        "no head": (wrapped(c), {n: w for n, w in files.items() if "lm_head" not in n}, "missing tensors: lm_head.weight"),
        "twice": (wrapped(c), files | {"lm_head.weight": files["language_model.lm_head.weight"]}, "too"),
    }
    for name, (top, weights, word) in cases.items():
        assert word in refusal(write_directory(tmp_path / name, top, weights)), name
    known = refusal(write_directory(tmp_path / "list", {"model_type": "blip"}, files))
    assert all(w["model_type"] in known for w in json.loads(kvcc("models", "--json")[0])["with_images"])
