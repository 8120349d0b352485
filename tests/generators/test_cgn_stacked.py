"""Convolutions of a stack as matrix products, and what half precision costs.

Oracles: PyTorch's grouped convolutions with their own derivatives, in float64; float32 for half
precision. Narrow networks; with the weights of VGG-16 itself, at the start of Coloured MNIST, the
gradient's cosine to float32 was 0.9996 for VGG-16 in bfloat16 and 0.993 for all convolutions.
"""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, interpolate

from counterlens.errors import InputError
from counterlens.generators.cgn import critics
from counterlens.generators.cgn.model import CGN
from counterlens.generators.cgn.stacked import StackConv, StackUp, arrange, conv
from counterlens.losses.cgn import Game
from counterlens.models.nets.vgg import VGG16
from counterlens.workflows.cgn.networks import dtypes
from counterlens.workflows.cgn.settings import SETS

pytestmark = pytest.mark.usefixtures("one_thread")


def value_and_slopes(layer: nn.Module, made: Tensor, x: Tensor) -> list[Tensor]:
    return [made, *torch.autograd.grad(made.sin().sum(), [x, *layer.parameters()])]


def same(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["matmul", "apart"])
@pytest.mark.parametrize(
    "cin, cout, size, stride, pad",
    [(5, 7, 3, 1, 1), (7, 2, 3, 1, 1), (6, 3, 3, 1, 0), (4, 6, 4, 2, 0), (3, 8, 5, 1, 2)],
)
def test_every_form_is_the_grouped_convolution(form, cin, cout, size, stride, pad, rng):
    layer = StackConv(3 * cin, 3 * cout, size, stride, pad, groups=3).double()
    x = torch.randn(2, 3 * cin, 9, 10, generator=rng, dtype=torch.float64, requires_grad=True)
    wanted = value_and_slopes(layer, layer(x), x)
    arrange(layer, form, torch.float64)
    same(value_and_slopes(layer, layer(x), x), wanted)


@pytest.mark.parametrize("form", ["matmul", "apart"])
@pytest.mark.parametrize("stride, pad", [(1, 0), (2, 1)])
def test_every_form_is_the_transposed_convolution(form, stride, pad, rng):
    layer = StackUp(8, 6, 4, stride, pad, groups=2, bias=False).double()
    x = torch.randn(2, 8, 4, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    wanted = value_and_slopes(layer, layer(x), x)
    arrange(layer, form, torch.float64)
    same(value_and_slopes(layer, layer(x), x), wanted)


@pytest.mark.parametrize("cout", [4, 1])
def test_a_convolution_at_twice_the_size_needs_no_larger_picture(cout, rng):
    layer = conv(3, 5, cout, 3, 1, 1).double()
    x = torch.randn(2, 15, 4, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    large = interpolate(x, scale_factor=2.0, mode="nearest")
    wanted = value_and_slopes(layer, nn.Conv2d.forward(layer, large), x)
    arrange(layer, "matmul", torch.float64)
    same(value_and_slopes(layer, layer.twice(x), x), wanted)


def test_half_precision_leaves_the_direction_of_learning(rng):
    widths = (3, 8, 8, 12, 12, 16, 16, 16, 20, 20, 20)
    weights = [torch.randn(b, a, 3, 3, generator=rng) / 6 for a, b in itertools.pairwise(widths)]
    full = VGG16(weights, [torch.zeros(len(w)) for w in weights])
    net, critic = CGN(2, width=8), critics.build("conv", 2, 8)
    batch = {
        "u": torch.randn(16, 2, 32, generator=rng),
        "y": torch.randint(10, (16, 2), generator=rng),
        "places": torch.rand(16, 2, 2, 16, generator=rng),
        "x": (torch.rand(16, 2, 3, 1, 1, generator=rng) * 2 - 1).repeat(1, 1, 1, 32, 32),
        "keep": torch.ones(6, 16, 2, 1, dtype=torch.bool),
    }

    def learnt(form: str, fixed: torch.dtype, ours: torch.dtype) -> tuple[Tensor, Tensor]:
        for one in (net, critic):
            arrange(one, form, ours)
        features = copy.deepcopy(full).to(fixed)
        terms = Game(critic, features, (0.05, 0.1, 0.01, 0.02), 0.1, 1.0).generator_terms(
            net, batch, 0
        )
        values = torch.stack(list(terms.values()))
        slopes = torch.autograd.grad(values.sum(), list(net.parameters()))
        return values.detach(), torch.cat([one.flatten() for one in slopes])

    low, high = torch.bfloat16, torch.float32
    values, slopes = learnt("grouped", high, high)
    for form, fixed, ours, cosine in (
        ("matmul", high, high, 0.9999),
        ("matmul", low, high, 0.98),
        ("matmul", low, low, 0.96),
    ):
        found, other = learnt(form, fixed, ours)
        torch.testing.assert_close(found, values, rtol=0.02, atol=1e-3)
        assert cosine_similarity(other, slopes, 0) > cosine, (fixed, ours)
        assert found.dtype == other.dtype == high


def test_unknown_forms_and_precisions_are_refused():
    with pytest.raises(InputError, match="expected auto, grouped"):
        arrange(CGN(2, width=4), "fast")
    with pytest.raises(InputError, match="expected one of auto"):
        dtypes(replace(SETS["wildlife"], precision="fp8"), torch.device("cpu"))
    assert dtypes(SETS["wildlife"], torch.device("cpu")) == (torch.float32, torch.float32)
