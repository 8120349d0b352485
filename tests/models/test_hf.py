"""Hugging Face classifiers: tiny random networks built from configurations (no real weights), the
library's own image processors and forward passes as oracle."""

import json

import numpy as np
import pytest
import torch

from counterlens import images
from counterlens.errors import InputError, MissingExtra
from counterlens.models import load, parts
from counterlens.models.sources import hf as hf_models
from counterlens.models.sources import hub
from counterlens.types import Preprocess

transformers = pytest.importorskip("transformers", reason="needs counterlens[diffusion]")

LABELS = {"num_labels": 4, "id2label": dict(enumerate(["ant", "bee", "cat", "dog"]))}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, **LABELS}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Nets this small only lose by a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _vit():
    config = transformers.ViTConfig(image_size=32, patch_size=8, intermediate_size=64, **SMALL)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    return transformers.ViTForImageClassification(config), processor


def _deit():
    config = transformers.DeiTConfig(image_size=32, patch_size=8, intermediate_size=64, **SMALL)
    processor = transformers.DeiTImageProcessor(
        size={"height": 36, "width": 36}, crop_size={"height": 32, "width": 32}
    )
    return transformers.DeiTForImageClassification(config), processor


def _swin():
    config = transformers.SwinConfig(
        image_size=64, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4, **LABELS
    )
    processor = transformers.ViTImageProcessor(
        size={"height": 64, "width": 64},
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
        resample=3,
    )
    return transformers.SwinForImageClassification(config), processor


def _convnext():
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], **LABELS
    )
    processor = transformers.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.875)
    return transformers.ConvNextForImageClassification(config), processor


def _resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], **LABELS
    )
    processor = transformers.ConvNextImageProcessor(size={"shortest_edge": 384})
    return transformers.ResNetForImageClassification(config), processor


def _dinov2():
    config = transformers.Dinov2Config(image_size=28, patch_size=7, **SMALL)
    processor = transformers.BitImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 28, "width": 28}
    )
    return transformers.Dinov2ForImageClassification(config), processor


def _levit():
    config = transformers.LevitConfig(
        image_size=64,
        hidden_sizes=[16, 32, 48],
        num_attention_heads=[1, 2, 3],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        **LABELS,
    )
    processor = transformers.LevitImageProcessor(
        size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64}
    )
    return transformers.LevitForImageClassification(config), processor


def _efficientnet():
    config = transformers.EfficientNetConfig(
        image_size=64, width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320, **LABELS
    )
    processor = transformers.EfficientNetImageProcessor(
        size={"height": 64, "width": 64}, resample=2, include_top=True, rescale_offset=False
    )
    return transformers.EfficientNetForImageClassification(config), processor


FAMILIES = {
    "vit": (_vit, Preprocess((32, 32), None, "bilinear")),
    "deit": (_deit, Preprocess((32, 32), 32 / 36, "bicubic", squash=True)),
    "swin": (_swin, Preprocess((64, 64), None, "bicubic")),
    "convnext": (_convnext, Preprocess((64, 64), 0.875, "bicubic")),
    "resnet": (_resnet, Preprocess((384, 384), None, "bicubic")),
    "dinov2": (_dinov2, Preprocess((28, 28), 0.875, "bicubic")),
    "levit": (_levit, Preprocess((64, 64), 64 / 73, "bicubic")),
    "efficientnet": (_efficientnet, Preprocess((64, 64), None, "bilinear")),
}


def _save(folder, made):
    net, processor = made
    net.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


@pytest.mark.filterwarnings("ignore")  # of the library, while it builds and saves
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_pixels_and_names_are_those_of_the_library(tmp_path, family):
    build, preprocess = FAMILIES[family]
    torch.manual_seed(0)
    net, processor = build()
    classifier = load(f"hf:{_save(tmp_path / family, (net, processor))}", device="cpu")
    assert classifier.preprocess == preprocess
    assert classifier.classes == ("ant", "bee", "cat", "dog")
    assert classifier.name == family

    picture = np.random.default_rng(0).integers(0, 256, (90, 140, 3), dtype=np.uint8)
    # smooth, since resizers differ on noise; of a width whose centre both libraries see alike
    picture = images.resize(picture, (400, 520), "bicubic")
    theirs = processor(images=picture, return_tensors="pt")["pixel_values"]
    ours = torch.from_numpy(images.prepare(picture, classifier.preprocess))[None].float() / 255
    levels = ((ours - classifier.mean) / classifier.std - theirs) * classifier.std * 255
    assert levels.abs().max() < 2.5  # grey levels

    x = torch.rand(2, 3, *preprocess.size)
    with torch.no_grad():
        expected = net.eval()((x - classifier.mean) / classifier.std).logits
    torch.testing.assert_close(classifier(x), expected)
    torch.testing.assert_close(parts.head(classifier)(parts.features(classifier, x)), expected)
    cam = parts.cam_layer(classifier)
    assert cam.grid[0] > 1


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return _save(tmp_path_factory.mktemp("hf") / "vit", _vit())


def _edit(source, target, name, **facts):
    """A copy of a model folder with one JSON file changed."""
    import shutil

    shutil.copytree(source, target)
    stored = json.loads((target / name).read_text())
    (target / name).write_text(json.dumps({**stored, **facts}))
    return f"hf:{target}"


@pytest.mark.parametrize(
    ("name", "facts", "says"),
    [
        (
            "config.json",
            {"num_labels": 2, "id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}},
            r"classifier.bias \(4,\) instead of \(2,\)",
        ),
        ("config.json", {"problem_type": "regression"}, "expected a classifier"),
        ("config.json", {"model_type": "bert"}, "cannot be read as an image classifier"),
        ("preprocessor_config.json", {"do_resize": False}, "does not say to what size"),
        ("preprocessor_config.json", {"rescale_factor": 0.01, "do_rescale": True}, None),
    ],
)
def test_a_folder_that_is_no_classifier_is_refused(tmp_path, vit, name, facts, says):
    spec = _edit(vit, tmp_path / "copy", name, **facts)
    if says is None:  # an odd scale is no mistake: it becomes part of mean and std
        classifier = load(spec, device="cpu")
        assert classifier.std.flatten().tolist() == pytest.approx([0.5 / 2.55] * 3)
        return
    with pytest.raises(InputError, match=says) as refused:
        load(spec)
    assert "\n" not in str(refused.value)


def test_a_processor_read_wrongly_is_refused_not_trusted(vit, monkeypatch):
    wrong = (Preprocess((32, 32), 0.5, "bilinear"), ((0.5,) * 3, (0.5,) * 3), [])
    monkeypatch.setattr(hf_models, "read_processor", lambda *_: wrong)
    with pytest.raises(InputError, match="in a way Preprocess cannot say"):
        load(f"hf:{vit}")


@pytest.mark.filterwarnings("ignore")
def test_one_logit_becomes_two_classes(tmp_path):
    facts = {"num_labels": 1, "id2label": {0: "ill"}}
    config = transformers.ViTConfig(image_size=32, patch_size=8, **{**SMALL, **facts})
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    net = transformers.ViTForImageClassification(config).eval()
    _save(tmp_path, (net, processor))
    classifier = load(f"hf:{tmp_path}", device="cpu")
    assert classifier.classes == ("not ill", "ill")
    x = torch.rand(3, 3, 32, 32)
    z = net((x - 0.5) / 0.5).logits[:, 0]
    assert torch.allclose(classifier(x).diff(dim=1)[:, 0], z, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_several_labels_per_image_are_read_from_the_configuration(tmp_path):
    facts = {"problem_type": "multi_label_classification"}
    config = transformers.ViTConfig(image_size=32, patch_size=8, **SMALL, **facts)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    _save(tmp_path, (transformers.ViTForImageClassification(config), processor))
    classifier = load(f"hf:{tmp_path}", device="cpu")
    assert classifier.multilabel
    assert classifier.classes == ("ant", "bee", "cat", "dog")


@pytest.mark.filterwarnings("ignore")
def test_a_backbone_without_a_head_is_refused(tmp_path):
    net, processor = _vit()
    net.vit.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="a backbone, to be fine-tuned first"):
        load(f"hf:{tmp_path}")


def test_code_that_comes_with_a_model_is_not_run(tmp_path, vit):
    spec = _edit(
        vit,
        tmp_path / "copy",
        "config.json",
        model_type="mine",
        auto_map={
            "AutoConfig": "mine.Config",
            "AutoModelForImageClassification": "mine.Net",
        },
    )
    mark = tmp_path / "ran"
    (tmp_path / "copy" / "mine.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    with pytest.raises(InputError, match="say trust_remote_code=True"):
        load(spec)
    assert not mark.exists()


def test_missing_folders_and_hub_names_without_a_network_are_refused(tmp_path, monkeypatch):
    from huggingface_hub import constants

    with pytest.raises(InputError, match=r"the folder .* does not exist"):
        load(f"hf:{tmp_path}/nothing")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "_resolves", lambda _: False)
    with pytest.raises(InputError, match=r"\(no network\).*hf:FOLDER"):
        load("hf:nobody/nothing")


def test_without_the_library_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'counterlens\[diffusion\]'"):
        load("hf:org/name")
