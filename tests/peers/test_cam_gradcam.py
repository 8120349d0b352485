"""CAMs against PyPI's grad-cam on ten architectures fixed by name, six of them not plain CNNs.

The oracle gets its layer and its reshape by hand from the table; ours finds both by itself. Random
weights: equality does not depend on what a network has learnt. In double precision: an untrained
network's maps can be almost flat, and scaling them to [0, 1] magnifies rounding.
"""

import numpy as np
import pytest
import torch

from counterlens.classifier import Classifier, numbered
from counterlens.explanations.cam import class_cam
from counterlens.models.parts import CamLayer, cam_layer
from counterlens.types import Preprocess

timm = pytest.importorskip("timm")
gradcam = pytest.importorskip("pytorch_grad_cam")


def as_is(output: torch.Tensor) -> torch.Tensor:
    return output


def last(output: torch.Tensor) -> torch.Tensor:
    return output.permute(0, 3, 1, 2)


def patches(prefix: int, side: int):
    def reshape(output: torch.Tensor) -> torch.Tensor:
        kept = output[:, prefix:, :].reshape(len(output), side, side, output.shape[2])
        return kept.transpose(2, 3).transpose(1, 2)

    return reshape


ROSTER = {
    "resnet18": ("layer4", as_is),
    "mobilenetv2_050": ("bn2", as_is),
    "tf_efficientnet_lite0": ("bn2", as_is),
    "convnext_atto": ("stages", as_is),
    "vit_tiny_patch16_224": ("blocks.11.norm1", patches(1, 14)),
    "deit_tiny_distilled_patch16_224": ("blocks.11.norm1", patches(2, 14)),
    "vit_base_patch32_clip_224": ("blocks.11.norm1", patches(1, 7)),
    "swin_tiny_patch4_window7_224": ("norm", last),
    "mobilevit_xxs": ("final_conv", as_is),
    "coatnet_pico_rw_224": ("norm", as_is),
}
"""Name → layer and reshape, both written by hand. ViTs, Swin and the last two are no plain CNNs."""


def model_of(name: str) -> Classifier:
    torch.manual_seed(0)
    net = timm.create_model(name, pretrained=False, num_classes=10)
    size = tuple(net.pretrained_cfg["input_size"][1:])
    return Classifier(net, numbered(10), preprocess=Preprocess(size)).eval().double()


def peer_map(model, layer: str, reshape, x: torch.Tensor, target: int, kind) -> np.ndarray:
    targets = [gradcam.utils.model_targets.ClassifierOutputTarget(target)] * len(x)
    module = model.net.get_submodule(layer)
    shape = None if reshape is as_is else reshape
    with kind(model=model, target_layers=[module], reshape_transform=shape) as peer:
        return peer(input_tensor=x.clone(), targets=targets)


@pytest.mark.parametrize("name", ROSTER)
def test_both_maps_equal_the_peers_to_1e_5(name):
    from pytorch_grad_cam import GradCAM, HiResCAM

    model = model_of(name)
    layer, reshape = ROSTER[name]
    found = cam_layer(model)
    assert found.name == layer
    x = torch.rand(
        2, 3, *model.preprocess.size, generator=torch.Generator().manual_seed(1)
    ).double()
    for method, kind in (("grad-cam", GradCAM), ("hires-cam", HiResCAM)):
        target = next(
            k
            for k in range(10)
            if class_cam(model, x, torch.tensor([k] * 2), method=method, layer=found)
            .maps.amax((1, 2))
            .min()
            > 0
        )
        ours = class_cam(model, x, torch.tensor([target] * 2), method=method, layer=found).picture
        theirs = peer_map(model, layer, reshape, x, target, kind)
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "place", "reshape"),
    [
        ("resnet18", CamLayer("layer4.1", "channels first", (7, 7)), as_is),
        (
            "swin_tiny_patch4_window7_224",
            CamLayer("layers.3.blocks.1.norm1", "channels last", (7, 7)),
            last,
        ),
    ],
)
def test_layers_chosen_by_hand_agree_too(name, place, reshape):
    from pytorch_grad_cam import GradCAM

    model = model_of(name)
    x = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(2)).double()
    for target in (1, 4):
        ours = class_cam(model, x, torch.tensor([target]), layer=place).picture.numpy()
        theirs = peer_map(model, place.name, reshape, x, target, GradCAM)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
