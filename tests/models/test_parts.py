"""Head, features and CAM layer over a roster of families: logits must be head(features); a token
or a cell must answer to its own patch of the picture and to no other."""

import pytest
import timm
import torch
from torch import nn
from torchvision import models

from counterlens.classifier import Classifier, numbered
from counterlens.errors import InputError
from counterlens.models import parts
from counterlens.types import Preprocess

SWIN = {"embed_dim": 16, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 4), "window_size": 4}
TOKENS = {"depth": 2, "embed_dim": 32, "num_heads": 2}

ROSTER = [  # name, options, size, CAM layer, layout
    ("test_resnet", {}, 64, "layer4", "channels first"),
    ("test_efficientnet", {}, 64, "bn2", "channels first"),
    ("tf_efficientnet_lite0", {}, 64, "bn2", "channels first"),
    ("mobilenetv3_small_050", {}, 64, "blocks", "channels first"),
    ("regnety_002", {}, 64, "s4", "channels first"),
    ("densenet121", {"block_config": (2, 2, 2, 2)}, 64, "features", "channels first"),
    ("test_byobnet", {}, 64, "stages", "channels first"),
    ("test_nfnet", {}, 64, "final_act", "channels first"),
    ("test_convnext", {}, 64, "stages", "channels first"),
    ("convnextv2_atto", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}, 64, "stages", None),
    ("swin_tiny_patch4_window7_224", {"img_size": 64, **SWIN}, 64, "norm", "channels last"),
    ("swinv2_tiny_window8_256", {"img_size": 64, **SWIN}, 64, "norm", "channels last"),
    ("vit_tiny_patch16_224", {"img_size": 64, **TOKENS}, 64, "blocks.1.norm1", "tokens"),
    ("deit_tiny_patch16_224", {"img_size": 64, **TOKENS}, 64, "blocks.1.norm1", "tokens"),
    ("vit_small_patch14_reg4_dinov2", {"img_size": 56, **TOKENS}, 56, "blocks.1.norm1", "tokens"),
    ("vit_base_patch16_siglip_gap_224", {"img_size": 64, **TOKENS}, 64, "norm", "tokens"),
    ("beit_base_patch16_224", {"img_size": 64, **TOKENS}, 64, "blocks.1", "tokens"),
    ("vit_tiny_r_s16_p8_224", {"img_size": 64, **TOKENS}, 64, "blocks.1.norm1", "tokens"),
    ("cait_xxs24_224", {"img_size": 64, "depth": 2}, 64, "blocks_token_only.1.norm1", "tokens"),
    ("coatnet_nano_rw_224", {"img_size": 64}, 64, "norm", "channels first"),
    ("mobilevit_xxs", {}, 64, "final_conv", "channels first"),
    ("edgenext_xx_small", {}, 64, "stages", "channels first"),
    ("pvt_v2_b0", {}, 64, "stages", "channels first"),
]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Nets this small only lose by a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _wrap(net: nn.Module, size: tuple[int, int], classes: int = 11) -> Classifier:
    size_and_colours = {"preprocess": Preprocess(size), "mean": (0.5,) * 3, "std": (0.2,) * 3}
    return Classifier(net, numbered(classes), **size_and_colours).eval().requires_grad_(False)


def _hooks(net: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())


def _check(classifier: Classifier) -> parts.CamLayer:
    """The laws every family obeys."""
    before = {k: v.clone() for k, v in classifier.state_dict().items()}
    x = torch.rand(2, 3, *classifier.preprocess.size).requires_grad_()
    features = parts.features(classifier, x)
    head = parts.head(classifier)
    assert isinstance(head, nn.Linear)
    assert features.shape == (2, head.in_features)
    torch.testing.assert_close(head(features), classifier(x), rtol=0, atol=1e-5)
    (gradient,) = torch.autograd.grad(features.sum(), x)
    assert gradient.isfinite().all()
    cam = parts.cam_layer(classifier)
    assert _hooks(classifier) == 0
    assert not classifier.training
    assert all(p.grad is None for p in classifier.parameters())
    assert all(torch.equal(v, before[k]) for k, v in classifier.state_dict().items())

    seen = []
    layer = classifier.net.get_submodule(cam.name)
    hook = layer.register_forward_hook(lambda _, __, out: seen.append(out))
    classifier(x)
    hook.remove()
    maps = cam.maps(seen[0])
    assert maps.shape[0] == 2
    assert maps.shape[2:] == cam.grid
    return cam


@pytest.mark.parametrize(
    ("name", "options", "size", "layer", "layout"), ROSTER, ids=[r[0] for r in ROSTER]
)
def test_timm_families(name, options, size, layer, layout):
    torch.manual_seed(0)
    net = timm.create_model(name, pretrained=False, num_classes=11, **options)
    cam = _check(_wrap(net, (size, size)))
    assert cam.name == layer
    assert layout is None or cam.layout == layout


@pytest.mark.parametrize(
    ("name", "size", "layer"),
    [
        ("shufflenet_v2_x0_5", 64, "conv5"),
        ("mobilenet_v2", 64, "features"),
        ("googlenet", 64, "inception5b"),
        ("regnet_x_400mf", 64, "trunk_output"),
    ],
)
def test_torchvision_families(name, size, layer):
    options = {"init_weights": False} if name == "googlenet" else {}
    net = models.get_model(name, weights=None, num_classes=11, **options)
    assert _check(_wrap(net, (size, size))).name == layer


def test_torchvision_transformers():
    torch.manual_seed(0)
    vit = models.VisionTransformer(64, 16, 2, 2, 32, 64, num_classes=11)
    nn.init.normal_(vit.heads.head.weight)
    cam = _check(_wrap(vit, (64, 64)))
    assert (cam.name, cam.layout, cam.prefix) == (
        "encoder.layers.encoder_layer_1.ln_1",
        "tokens",
        1,
    )
    swin = models.SwinTransformer([4, 4], 16, [1, 1], [2, 2], [4, 4], num_classes=11)
    assert _check(_wrap(swin, (64, 64))).grid == (8, 8)


def test_a_head_written_as_a_convolution_is_given_as_a_linear_layer():
    net = timm.create_model("resnetv2_50x1_bit", num_classes=11)
    nn.init.normal_(net.head.fc.weight, std=0.02)
    assert isinstance(net.head.fc, nn.Conv2d)
    _check(_wrap(net, (32, 32)))


def test_dropout_and_flatten_between_features_and_head_do_no_harm():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Dropout(0.5), nn.Linear(32, 11),
    )  # fmt: skip
    cam = _check(_wrap(net, (16, 16)))
    assert cam == parts.CamLayer("1", "channels first", (4, 4))


@pytest.mark.parametrize("size", [(64, 64), (64, 96), (96, 64)])
def test_a_token_answers_to_its_own_patch(size):
    torch.manual_seed(0)
    options = {"img_size": size, "depth": 1, "embed_dim": 32, "num_heads": 2}
    net = timm.create_model("vit_tiny_patch16_224", num_classes=11, **options)
    classifier = _wrap(net, size)
    cam = parts.cam_layer(classifier)
    assert cam == parts.CamLayer("blocks.0.norm1", "tokens", (size[0] // 16, size[1] // 16), 1)
    assert _changed(classifier, cam, row=2, column=3, patch=16) == [(2, 3)]


def test_a_cell_of_a_channels_last_layer_answers_to_its_own_patch():
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm, self.head = (
                nn.Conv2d(3, 5, 8, 8),
                nn.LayerNorm(5),
                nn.Linear(5, 4),
            )

        def forward(self, x):
            return self.head(self.norm(self.embed(x).permute(0, 2, 3, 1)).mean((1, 2)))

    torch.manual_seed(0)
    classifier = _wrap(Last(), (40, 40), classes=4)  # grid 5 × 5 of 5 channels: only the norm tells
    cam = parts.cam_layer(classifier)
    assert cam == parts.CamLayer("norm", "channels last", (5, 5))
    assert _changed(classifier, cam, row=1, column=4, patch=8) == [(1, 4)]


def _changed(classifier, cam, *, row, column, patch):
    """Cells of the CAM layer's maps that change with one patch of the picture."""
    seen = []
    layer = classifier.net.get_submodule(cam.name)
    hook = layer.register_forward_hook(lambda _, __, out: seen.append(cam.maps(out)))
    x = torch.rand(1, 3, *classifier.preprocess.size)
    z = x.clone()
    z[..., row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] = 0
    classifier(x)
    classifier(z)
    hook.remove()
    return [tuple(cell) for cell in (seen[0] != seen[1]).any(1)[0].nonzero().tolist()]


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "levit_128s"])
def test_the_mean_of_two_heads_has_no_features_but_a_cam_layer(name):
    options = {"img_size": 64, "depth": 2} if name.startswith("deit") else {}
    size = 64 if name.startswith("deit") else 224
    net = timm.create_model(name, num_classes=11, **options)
    classifier = _wrap(net, (size, size))
    with pytest.raises(InputError, match="not the output of its last linear layer"):
        parts.features(classifier, torch.rand(1, 3, size, size))
    assert parts.cam_layer(classifier).layout == "tokens"
    assert _hooks(net) == 0


def test_a_network_without_grid_or_head_is_refused():
    flat = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    with pytest.raises(InputError, match="no layer whose output lies on a grid"):
        parts.cam_layer(_wrap(flat, (4, 4), classes=3))
    with pytest.raises(InputError, match="no linear layer of 5 outputs"):
        parts.head(_wrap(flat, (4, 4), classes=5))


def test_hooks_are_gone_after_a_failing_forward():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(7, 3))
    classifier = _wrap(net, (8, 8), classes=3)
    with pytest.raises(RuntimeError):
        parts.cam_layer(classifier)
    with pytest.raises(RuntimeError):
        parts.features(classifier, torch.rand(1, 3, 8, 8))
    assert _hooks(net) == 0


def test_a_finer_layer_is_one_that_everything_passes_through():
    class Block(nn.Module):
        """Its inner convolution is fine, but the shortcut passes it by."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.coarse = nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 2, 1)
            self.shortcut = nn.Conv2d(4, 4, 1, 2)

        def forward(self, x):
            return torch.relu(self.coarse(torch.relu(self.inner(x))) + self.shortcut(x))

    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.SiLU())
    net = nn.Sequential(stem, Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    model = Classifier(net, numbered(3), preprocess=Preprocess((16, 16))).eval()
    assert parts.cam_layer(model).grid == (4, 4)
    fine = parts.cam_layer(model, least=7)
    assert fine.name in ("0", "0.1") and fine.grid == (8, 8)
    assert parts.cam_layer(model, least=100) == parts.cam_layer(model)  # none so fine: the last one
