"""Zero-shot classifiers against open_clip's own functions, on a tiny model with random weights.

Oracle: open_clip's encode_image and build_zero_shot_classifier. With real weights nothing is
measured here.
"""

import json

import pytest
import torch

from counterlens.errors import InputError
from counterlens.models import load
from counterlens.models.parts import features, head
from counterlens.models.sources.clip import words_of

open_clip = pytest.importorskip("open_clip")

CONFIG = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "patch_size": 16, "head_width": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    (folder / "tiny-clip.json").write_text(json.dumps(CONFIG))
    open_clip.add_model_config(folder / "tiny-clip.json")
    torch.manual_seed(0)
    model = open_clip.create_model("tiny-clip")
    torch.save(model.state_dict(), folder / "tiny.pt")
    return folder / "tiny.pt"


@pytest.fixture(scope="module")
def peer(weights):
    return open_clip.create_model("tiny-clip", pretrained=str(weights)).eval()


def test_logits_are_scaled_cosines_with_the_eighty_prompts(weights, peer, rng):
    ours = load(f"clip:tiny-clip@{weights}#cat,steel arch bridge,dog", device="cpu")
    assert ours.classes == ("cat", "steel arch bridge", "dog")
    x = torch.rand(3, 3, 32, 32, generator=rng)
    tokenizer = open_clip.get_tokenizer("tiny-clip")
    table = open_clip.build_zero_shot_classifier(
        peer, tokenizer, list(ours.classes), open_clip.OPENAI_IMAGENET_TEMPLATES
    )
    with torch.no_grad():
        seen = peer.encode_image((x - ours.mean) / ours.std, normalize=True)
        wanted = peer.logit_scale.exp() * seen @ table
    torch.testing.assert_close(ours(x), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(features(ours, x), seen)
    assert head(ours).weight.shape == (3, 16)


def test_attributes_are_raw_cosines_of_texts_as_they_are(weights, peer, rng):
    ours = load(f"clip:tiny-clip@{weights}#=a smiling face|a sad face", device="cpu")
    x = torch.rand(2, 3, 32, 32, generator=rng)
    ids = open_clip.get_tokenizer("tiny-clip")(["a smiling face", "a sad face"])
    with torch.no_grad():
        seen = peer.encode_image((x - ours.mean) / ours.std, normalize=True)
        wanted = seen @ peer.encode_text(ids, normalize=True).T
    torch.testing.assert_close(ours(x), wanted, rtol=1e-4, atol=1e-5)
    assert ours(x).abs().max() <= 1


def test_class_lists_have_names():
    assert len(words_of("")[0]) == 1000
    assert words_of("cifar10")[1][:2] == ("airplane", "automobile")
    for text in ("cat", "=one", "cat,cat"):
        with pytest.raises(InputError, match="expected two or more different ones"):
            words_of(text)


def test_what_cannot_be_had_is_said(weights, tmp_path):
    with pytest.raises(InputError, match=r"no architecture 'ViT-B-61'.*did you mean"):
        load("clip:ViT-B-61@openai", device="cpu")
    with pytest.raises(InputError, match="names no weights"):
        load("clip:ViT-B-16", device="cpu")
    with pytest.raises(InputError, match="cannot be had"):
        load(f"clip:tiny-clip@{tmp_path / 'none.pt'}", device="cpu")
