"""Mechanisms of photographs and their losses, with tiny random networks.

Oracles: each loss written out pixel by pixel as in the reference code; a generator whose images
are known, so that the right answer of every check is.
"""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import counterlens as cl
from counterlens.errors import InputError
from counterlens.generators.cgn.natural import Mechanisms, Parts, check_generator
from counterlens.generators.cgn.photographs import patch_grid
from counterlens.losses.cgn_natural import (
    ABLATIONS,
    background_saliency,
    mask_size,
    natural_terms,
    weights_of,
)
from counterlens.models.nets.vgg import VGG16

pytestmark = pytest.mark.usefixtures("one_thread")


class Tiny(nn.Module):
    """A random class-conditional generator of 32 pixels: machinery alone."""

    noise, classes = 6, ("red", "green", "blue")

    def __init__(self, low: float = 0.0, high: float = 1.0, side: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(3, 6)
        self.start = nn.Linear(12, 8 * 16)
        self.last = nn.Conv2d(8, 3, 3, padding=1)
        self.low, self.high, self.side = low, high, side

    def forward(self, u: Tensor, y: Tensor) -> Tensor:
        x = self.start(torch.cat([u, self.embed(y)], 1)).view(-1, 8, 4, 4).relu()
        x = nn.functional.interpolate(x, (self.side, self.side), mode="bilinear")
        return self.low + (self.high - self.low) * self.last(x).sigmoid()


class Bright(nn.Module):
    """A segmenter in closed form: the object is what is bright."""

    def forward(self, x: Tensor) -> Tensor:
        return (8 * (x.mean(1, keepdim=True) - 0.5)).sigmoid()


def narrow_vgg(rng: torch.Generator) -> VGG16:
    weights, before = [], 3
    for _ in range(10):
        weights.append(torch.randn(4, before, 3, 3, generator=rng) / 4)
        before = 4
    return VGG16(weights, [torch.zeros(4)] * 10)


def parts_of(rng: torch.Generator, b: int = 2, side: int = 32) -> Parts:
    shape, front, behind, target = torch.rand(4, b, 3, side, side, generator=rng).unbind(0)
    mask = torch.rand(b, 1, side, side, generator=rng).clamp(1e-4, 1 - 1e-4)
    return Parts(shape, mask, front, behind, mask * front + (1 - mask) * behind, target)


def test_each_term_against_the_sums_of_the_reference_code(rng: torch.Generator) -> None:
    parts, net = parts_of(rng), narrow_vgg(rng)
    terms = natural_terms(parts, Bright(), net, weights_of("none"),
                          torch.Generator().manual_seed(5))  # fmt: skip
    b, _, h, w = parts.x.shape
    x, t = 2 * parts.x - 1, 2 * parts.target - 1  # type: ignore[operator]
    n = b * 3 * h * w
    assert float(terms["l1"]) == pytest.approx(100 * float((x - t).abs().sum()) / n, rel=1e-5)
    doubt = sum(-p * math.log2(p) - (1 - p) * math.log2(1 - p)
                for p in parts.mask.flatten().tolist())  # fmt: skip
    assert float(terms["entropy"]) == pytest.approx(300 * doubt / (b * h * w), rel=1e-4)
    assert float(terms["perceptual"]) == pytest.approx(style(x, t, net, (4, 4, 4, 4)), rel=1e-4)
    grid = patch_grid(parts.target, parts.mask, torch.Generator().manual_seed(5))  # type: ignore[arg-type]
    wanted = style(2 * parts.front - 1, 2 * grid - 1, net, (0, 5, 5, 0))
    assert float(terms["texture"]) == pytest.approx(wanted, rel=1e-4)
    seen = Bright()(parts.behind).flatten().tolist()
    assert float(terms["background"]) == pytest.approx(2000 * sum(seen) / len(seen), rel=1e-5)


def style(x: Tensor, t: Tensor, net: VGG16, weights: tuple[float, ...]) -> float:
    """Σ w² · 5000 · mean |G(x) − G(t)|, the Gram matrices summed place by place."""
    total = 0.0
    for weight, ours, theirs in zip(weights, net(x), net(t), strict=True):
        grams = []
        for tap in (ours, theirs):
            b, c, h, w = tap.shape
            gram = torch.zeros(b, c, c)
            for i in range(h):
                for j in range(w):
                    gram += tap[:, :, None, i, j] * tap[:, None, :, i, j]
            grams.append(gram / (c * h * w))
        total += 5000 * weight**2 * float((grams[0] - grams[1]).abs().mean())
    return total


@pytest.mark.parametrize(("mean", "loss"), [(0.05, 0.05), (0.1, 0), (0.5, 0), (0.95, 0.05)])
def test_the_size_of_a_mask_is_free_between_a_tenth_and_nine(mean: float, loss: float) -> None:
    assert float(mask_size(torch.full((2, 1, 8, 8), mean))) == pytest.approx(loss, abs=1e-6)


def test_the_size_is_of_each_image_and_not_of_the_batch() -> None:
    """An empty and a full mask have a mean of one half together."""
    both = torch.stack([torch.zeros(1, 8, 8), torch.ones(1, 8, 8)])
    assert float(mask_size(both)) == pytest.approx(0.1)


def test_saliency_of_a_dark_background_is_low() -> None:
    dark, bright = (background_saliency(torch.full((1, 3, 8, 8), v), Bright()) for v in (0.1, 0.9))
    assert float(dark) < 0.05 and float(bright) > 0.95


def test_what_an_ablation_removes(rng: torch.Generator) -> None:
    parts, net = parts_of(rng), narrow_vgg(rng)
    removed = {"none": set(), "shape": {"entropy", "size"}, "texture": {"texture"},
               "background": {"background"}, "reconstruction": {"l1", "perceptual"}}  # fmt: skip
    every = {"l1", "perceptual", "entropy", "size", "texture", "background"}
    for name in ABLATIONS:
        terms = natural_terms(parts, Bright(), net, weights_of(name), torch.Generator())
        assert set(terms) == every - removed[name]
    without = natural_terms(parts, Bright(), None, weights_of("none", style=False),
                            torch.Generator())  # fmt: skip
    assert set(without) == every - {"perceptual", "texture"}


def test_mechanisms_start_as_the_generator_and_learn_apart(rng: torch.Generator) -> None:
    generator, net = Tiny(), Mechanisms(Tiny(), Bright())
    u, y = torch.randn(3, 6, generator=rng), torch.tensor([0, 1, 2])
    parts = net(u, y)
    for image in (parts.shape, parts.front, parts.behind, parts.target):
        assert torch.allclose(image, generator(u, y))
    assert torch.allclose(parts.x, generator(u, y), atol=1e-6)  # f and b are equal at the start
    parts.mask.mean().backward()
    got = {name: any(p.grad is not None for p in net.get_submodule(name).parameters())
           for name in ("shape", "texture", "background", "target")}  # fmt: skip
    assert got == {"shape": True, "texture": False, "background": False, "target": False}


def test_counterfactuals_take_each_factor_from_its_own_class(rng: torch.Generator) -> None:
    net = Mechanisms(Tiny(), Bright())
    u = torch.randn(1, 6, generator=rng)
    a, b, c = (torch.tensor([k]) for k in range(3))
    found = net.draw(u, (a, b, c))
    mask = Bright()(Tiny()(u, a)).clamp(1e-4, 1 - 1e-4)
    assert torch.allclose(found.x, mask * Tiny()(u, b) + (1 - mask) * Tiny()(u, c), atol=1e-6)


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        (Tiny(-1, 1), r"span .*expected \[0, 1\]. Images in \[−1, 1\] become so"),
        (Tiny(0, 255), r"expected \[0, 1\]\.$"),
        (Tiny(side=20), "are 20 × 20, expected squares"),
        (Tiny(0.5, 0.5), "it draws nothing"),
        (nn.Linear(6, 3), "the generator fails on noise"),
        (lambda u, y: u, "expected a torch module with weights"),
    ],
)
def test_a_generator_of_the_wrong_range_or_size_is_refused(generator: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_generator(generator, 6, 3)


def test_a_training_lowers_its_losses_and_can_be_looked_at(tmp_path: Path) -> None:
    """Tiny and random, so only that every part works: resumable state, numbers, sheet, weights."""
    result = cl.cgn.train_natural(
        Tiny(), salient=Bright(), iterations=30, images=4, speed=100.0, out=tmp_path / "run",
        quiet=True, device="cpu",
    )  # fmt: skip
    rows = result.table("epochs")
    first, last = (sum(v for k, v in rows[i].items() if k.startswith("loss.")) for i in (0, -1))
    assert last < first
    assert result.numbers["natural.mask"].n == 50 and result.done
    assert (result.folder / "mechanisms.safetensors").is_file()
    (sheet,) = result.images("photographs")
    assert sheet.size == (8 * 96 + 7 * 3, 3 * 96 + 2 * 3)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"classes": ("one",)}, {}, "with one class there is no counterfactual"),
        ({"noise": None}, {}, "noise is None"),
        ({}, {"iterations": 0}, "iterations are 0"),
        ({}, {"ablation": "colour"}, "expected one of"),
        ({}, {"salient": "absent.onnx"}, "no segmenter absent.onnx"),
    ],
)
def test_bad_input_gets_one_line(
    tmp_path: Path, changes: dict[str, object], options: dict[str, object], message: str
) -> None:
    generator = Tiny()
    for name, value in changes.items():
        setattr(generator, name, value)
    given = {"salient": Bright(), "out": tmp_path / "run", "quiet": True, **options}
    with pytest.raises(InputError, match=message):
        cl.cgn.train_natural(generator, **given)
    assert not (tmp_path / "run").exists()
