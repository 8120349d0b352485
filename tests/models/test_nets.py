"""Networks against published sizes and hand-counted work.

Oracle: parameter counts of the public definitions (ResNet-18 and -50 for CIFAR, WideResNet-28-10
and -34-10), multiply-adds counted on paper.
"""

import pytest
import torch

from counterlens.errors import InputError
from counterlens.models.nets.resnets import build, flops

SIZES = [
    ({"kind": "resnet18"}, 11_173_962),
    ({"kind": "resnet34"}, 21_282_122),
    ({"kind": "resnet50"}, 23_520_842),
    ({"kind": "wideresnet", "depth": 28, "width": 10}, 36_479_194),
    ({"kind": "wideresnet", "depth": 34, "width": 10}, 46_160_474),
]


@pytest.mark.parametrize(("architecture", "size"), SIZES, ids=lambda v: str(v))
def test_sizes_are_the_published_ones(architecture, size):
    with torch.device("meta"):
        net = build(architecture, 10)
    assert sum(p.numel() for p in net.parameters()) == size


def test_the_shipped_widths_fit_their_limits_in_half_precision():
    for widths, limit in (([48, 96, 192, 192], 6e6), ([64, 128, 256, 320], 13e6)):
        with torch.device("meta"):
            net = build({"kind": "resnet18", "widths": widths, "activation": "silu"}, 10)
        stored = 2 * sum(v.numel() for v in net.state_dict().values())
        assert stored + 20_000 < limit


@pytest.mark.parametrize(
    "architecture",
    [
        {"kind": "resnet18", "widths": [4, 6, 8, 10], "activation": "silu"},
        {"kind": "resnext29", "widths": [16, 16, 16], "gated": True},
        {"kind": "wideresnet", "depth": 10, "width": 1},
        {"kind": "timm:resnet18"},
    ],
    ids=lambda a: a["kind"],
)
def test_networks_give_one_finite_row_of_logits_per_image(architecture):
    net = build(architecture, 7).eval()
    out = net(torch.rand(2, 3, 32, 32))
    assert out.shape == (2, 7) and out.isfinite().all()
    assert not torch.equal(out[0], out[1])


def test_work_is_counted_as_on_paper():
    net = build({"kind": "resnet18", "widths": [4, 8, 8, 8]}, 10)
    stage = [4 * 4 * 9 * 4 * 1024]
    for cin, cout, pixels in ((4, 8, 256), (8, 8, 64), (8, 8, 16)):
        stage.append((cin * cout * 9 + 3 * cout * cout * 9 + cin * cout) * pixels)
    wanted = 3 * 4 * 9 * 1024 + sum(stage) + 8 * 10
    assert flops(net, (3, 32, 32)) == 2 * wanted
    assert net.training  # counting leaves the network as it was


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ({"kind": "resnet19"}, "kind is 'resnet19', expected one of resnet18"),
        ({"kind": "resnet18", "width": 3}, "resnet18 does not take these options"),
        ({"kind": "resnet18", "widths": [1, 2]}, "widths has 2 entries, expected 4"),
        ({"kind": "resnet18", "activation": "tanh"}, "activation is 'tanh'"),
        ({"kind": "wideresnet", "depth": 29}, "depth is 29, expected 6n"),
        ({"kind": "timm:resnet18000"}, "timm has no architecture 'resnet18000'"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_architectures_that_do_not_exist_are_refused(architecture, words):
    with pytest.raises(InputError, match=words):
        build(architecture, 10)


@pytest.mark.parametrize(("stem", "side"), [(1, 16), (2, 8), (4, 4)])
def test_a_stem_of_stride_s_makes_the_first_stage_s_times_smaller(stem, side):
    net = build({"kind": "resnet18", "widths": [4, 4, 4, 4], "stem": stem}, 3).eval()
    seen = []
    net.layer1.register_forward_hook(lambda module, given, out: seen.append(out.shape[2:]))
    net(torch.zeros(1, 3, 16, 16))
    assert seen == [(side, side)]


def test_a_stem_of_another_stride_is_refused():
    with pytest.raises(InputError, match="stem is 3, expected a stride of 1, 2 or 4"):
        build({"kind": "resnet18", "stem": 3}, 3)
