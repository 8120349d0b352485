"""torchvision classifiers: its own transforms and networks are the oracle."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import models

from counterlens import images
from counterlens.errors import InputError
from counterlens.label_spaces import imagenet_names
from counterlens.models import load
from counterlens.models.sources import torchvision as torchvision_models


@pytest.fixture
def weights(tmp_path):
    """Random weights of a small torchvision model, as a file."""
    torch.manual_seed(0)
    net = models.shufflenet_v2_x0_5().eval()
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, tmp_path / "w.pth"
    )
    return net, tmp_path / "w.pth"


def test_a_local_file_gives_its_weights_and_says_whose_preprocessing_it_took(weights):
    net, file = weights
    classifier = load(f"torchvision:shufflenet_v2_x0_5@{file}", device="cpu")
    x = torch.rand(1, 3, 224, 224)
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    assert torch.allclose(classifier(x), net((x - mean) / std), atol=1e-6)
    assert classifier.classes == imagenet_names()
    assert "none of torchvision's own" in classifier.card["notes"][0]


def test_a_file_of_torchvisions_own_is_known_by_its_hash(weights, monkeypatch):
    _, file = weights
    monkeypatch.setattr(torchvision_models, "file_hash", lambda _: "f707e712" + "0" * 56)
    classifier = load(f"torchvision:shufflenet_v2_x0_5@{file}", device="cpu")
    assert "notes" not in classifier.card
    assert classifier.card["tag"] == "IMAGENET1K_V1"


def test_another_class_count_is_read_off_the_file(tmp_path):
    torch.save(models.squeezenet1_1(num_classes=7).state_dict(), tmp_path / "w.pth")
    classifier = load(f"torchvision:squeezenet1_1@{tmp_path}/w.pth", device="cpu")
    assert classifier.classes == tuple("0123456")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("torchvision:resnet81", r"no classifier 'resnet81' \(did you mean torchvision:resnet"),
        ("torchvision:fcn_resnet50", "no classifier"),
        ("torchvision:resnet18@IMAGENET1K_V9", "did you mean IMAGENET1K_V1"),
        ("torchvision:resnet18@gone.pth", r"gone.pth does not exist"),
        ("torchvision:vgg16@IMAGENET1K_FEATURES", "features without classes"),
    ],
)
def test_a_name_torchvision_does_not_know_is_refused_with_a_near_one(spec, says):
    with pytest.raises(InputError, match=says):
        load(spec)


def test_without_a_network_the_reason_comes_in_one_line(tmp_path, monkeypatch):
    def unreachable(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", unreachable)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", unreachable)
    with pytest.raises(InputError, match=r"neither in the local cache nor to be fetched .*@FILE"):
        load("torchvision:resnet18")


@pytest.mark.parametrize(
    "entry",
    [
        "ResNet50_Weights.IMAGENET1K_V1",
        "ResNet50_Weights.IMAGENET1K_V2",
        "Inception_V3_Weights.DEFAULT",
        "EfficientNet_B1_Weights.IMAGENET1K_V2",
        "ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1",
    ],
)
@pytest.mark.parametrize("shape", [(300, 411), (411, 300), (200, 200)])
def test_pixels_are_those_of_torchvisions_own_transform(entry, shape):
    transforms = models.get_weight(entry).transforms()
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    theirs = transforms(Image.fromarray(pixels))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (transforms.mean, transforms.std))
    ours = images.prepare(pixels, torchvision_models.preprocess_of(transforms))
    assert torch.equal((torch.from_numpy(ours).float() / 255 - mean) / std, theirs)
