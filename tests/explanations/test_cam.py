"""CAMs against the closed form of a network that pools and then votes, and against plain autograd.

For logits = W · mean over places of A, Grad-CAM and HiResCAM are both ReLU(Σ_k W_tk A_k) / places.
"""

import gc
import resource

import pytest
import timm
import torch
from torch import nn

from counterlens.classifier import Classifier, numbered
from counterlens.errors import InputError
from counterlens.explanations.cam import cam, class_cam, feature_maps, neuron_cam, overlay
from counterlens.models.parts import CamLayer, cam_layer, features, head
from counterlens.types import Preprocess

LAYER = CamLayer("1", "channels first", (8, 8))


def voting(seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    )
    return Classifier(net, numbered(5), preprocess=Preprocess((16, 16))).eval()


def hooks(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._backward_hooks) for m in module.modules())


def test_both_maps_have_the_closed_form_of_a_pooling_network(rng):
    model, x = voting(), torch.rand(3, 3, 16, 16, generator=rng)
    acts = model.net[:2](x).detach()
    target = torch.tensor([0, 3, 4])
    votes = model.net[4].weight[target].detach()
    expected = torch.einsum("bk,bkhw->bhw", votes, acts).relu() / 64
    for method in ("grad-cam", "hires-cam"):
        saliency = class_cam(model, x, target, method=method)
        torch.testing.assert_close(saliency.maps, expected)
        assert saliency.picture.shape == (3, 16, 16)
        assert saliency.picture.amin() == 0 and saliency.picture.amax() == 1


def test_neuron_maps_have_their_closed_form_too(rng):
    model, x = voting(), torch.rand(2, 3, 16, 16, generator=rng)
    acts = model.net[:2](x).detach()
    torch.testing.assert_close(neuron_cam(model, x, 4).maps, acts[:, 4].relu() / 64)
    with pytest.raises(InputError, match="units 0 … 5"):
        neuron_cam(model, x, 6)


def test_activations_are_kept_from_in_place_layers(rng):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, 5),
    )  # fmt: skip
    model = Classifier(net, numbered(5), preprocess=Preprocess((16, 16))).eval()
    x = torch.rand(1, 3, 16, 16, generator=rng)
    before = net[0](x).detach().clone()
    first = CamLayer("0", "channels first", (8, 8))
    saliency = class_cam(model, x, torch.tensor([1]), layer=first, method="hires-cam")
    gradient = net[4].weight[1].detach().view(1, 6, 1, 1) / 64 * (before > 0)
    torch.testing.assert_close(saliency.maps, (gradient * before).sum(1).relu())


def test_no_hook_and_no_flag_is_left_behind_even_after_an_error(rng):
    model, x = voting().train(), torch.rand(1, 3, 16, 16, generator=rng)
    class_cam(model, x, torch.tensor([1]))
    assert hooks(model) == 0 and model.training
    assert all(w.requires_grad and w.grad is None for w in model.parameters())

    def fails(z: torch.Tensor) -> torch.Tensor:
        model(z)
        raise ValueError("from the score")

    with pytest.raises(ValueError, match="from the score"):
        cam(model, x, fails, layer=LAYER)
    assert hooks(model) == 0
    with pytest.raises(InputError, match="no layer 'nowhere'"):
        class_cam(model, x, torch.tensor([0]), layer=CamLayer("nowhere", "tokens", (2, 2)))
    with pytest.raises(InputError, match="expected one of"):
        class_cam(model, x, torch.tensor([0]), method="cam")  # type: ignore[arg-type]


def test_a_thousand_images_leave_no_tensor_and_no_memory_behind(rng):
    model, x = voting(), torch.rand(1, 3, 16, 16, generator=rng)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    def once() -> None:
        class_cam(model, x, torch.tensor([1]), layer=LAYER)

    for _ in range(50):
        once()
    count, memory = tensors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(1000):
        once()
    assert tensors() <= count
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 20_000  # kilobytes


@pytest.mark.parametrize(
    ("name", "layout", "prefix"),
    [
        ("test_resnet", "channels first", 0),
        ("test_efficientnet", "channels first", 0),
        ("test_convnext", "channels first", 0),
        ("test_mambaout", "channels last", 0),
        ("test_vit", "tokens", 1),
        ("test_vit2", "tokens", 1),
    ],
)
def test_layer_and_layout_are_found_for_timms_families(name, layout, prefix, rng):
    torch.manual_seed(0)
    net = timm.create_model(name, pretrained=False, num_classes=7)
    size = net.pretrained_cfg["input_size"][1:]
    model = Classifier(net, numbered(7), preprocess=Preprocess(size)).eval()
    place = cam_layer(model)
    assert (place.layout, place.prefix) == (layout, prefix)
    x = torch.rand(2, 3, *size, generator=rng)
    for method in ("grad-cam", "hires-cam"):
        saliency = class_cam(model, x, torch.tensor([1, 2]), method=method, layer=place)
        assert saliency.maps.shape[1:] == place.grid
        assert torch.isfinite(saliency.picture).all() and saliency.picture.shape == (2, *size)


def test_an_overlay_keeps_hot_places_and_stays_in_the_box(rng):
    x = torch.rand(1, 3, 4, 4, generator=rng)
    saliency = torch.zeros(1, 4, 4)
    saliency[0, 1, 2] = 1
    seen = overlay(x, saliency)
    torch.testing.assert_close(seen[..., 1, 2], x[..., 1, 2])
    assert seen.min() >= 0 and seen.max() <= 1
    assert (seen[0, 0, 0, 0] - seen[0, 2, 0, 0]).abs() < 1e-6  # cold places are grey


def test_a_line_runs_around_the_strong_half_of_a_large_overlay():
    x = torch.full((2, 3, 112, 112), 0.5)
    saliency = torch.zeros(2, 112, 112)
    saliency[0, 20:60, 30:70] = 1.0
    saliency[0, 80:90, 80:90] = 0.4
    seen = overlay(x, saliency)
    lined = (seen - torch.tensor((1.0, 0.62, 0.1)).view(3, 1, 1)).abs().amax(1) < 1e-6
    expected = torch.zeros(112, 112, dtype=torch.bool)
    expected[20:60, 30:70] = True
    expected[21:59, 31:69] = False
    assert torch.equal(lined[0], expected)
    assert not lined[1].any()  # an empty map has no half


def test_many_maps_at_once_equal_those_one_by_one(rng):
    pooling = voting()
    flat = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(256, 5)),
        nn.Linear(5, 2),
    )  # fmt: skip
    other = Classifier(flat, ("a", "b"), preprocess=Preprocess((8, 8))).eval()
    for model in (pooling, other):
        high, wide = model.preprocess.size
        x = torch.rand(3, 3, high, wide, generator=rng)
        weights = torch.randn(6, head(model).in_features, generator=rng)
        many = feature_maps(model, x, weights)
        for k, weight in enumerate(weights):
            one = cam(model, x, lambda z, m=model, w=weight: features(m, z) @ w, method="hires-cam")
            torch.testing.assert_close(many[:, k], one.maps, rtol=1e-4, atol=1e-6)
