"""A CGN of photographs: three copies of a class-conditional generator, each to draw one factor.

Paper: Sauer and Geiger 2021 (cgn2021, §3.2 and its ImageNet code): shape, texture and background
       mechanisms start as copies of the generator; the generator itself, frozen, is the target. The
       mask is what a frozen segmenter sees in the shape mechanism's image.
Differs: the generator is any module G(noise, class) with images in [0, 1], in place of BigGAN-256;
       the segmenter gets its own normalisation in place of raw [−1, 1] images.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from counterlens.errors import InputError
from counterlens.generators.cgn.model import LEAST, compose
from counterlens.types import Images

Salient = Callable[[Images], Float[Tensor, "b 1 h w"]]
"""Images in [0, 1] to soft masks of their size; carries gradients."""
NAMES = ("shape", "texture", "background")
MULTIPLE = 8
SMALLEST = 32


@dataclass(frozen=True)
class Parts:
    """What the mechanisms drew.

    Args:
        shape: image of the shape mechanism.
        mask: its object, in [1e-4, 1 − 1e-4].
        front: texture of the object.
        behind: background.
        x: the composition.
        target: what the frozen generator draws from the same noise and class; None at other times.
    """

    shape: Images
    mask: Float[Tensor, "b 1 h w"]
    front: Images
    behind: Images
    x: Images
    target: Images | None = None


class Mechanisms(nn.Module):
    """Shape, texture and background mechanisms on copies of one generator.

    Args:
        generator: G(noise b × d, class b) → images b × 3 × h × w in [0, 1].
        salient: finds the object in an image.
    """

    def __init__(self, generator: nn.Module, salient: Salient) -> None:
        super().__init__()
        self.target = copy.deepcopy(generator).eval().requires_grad_(False)
        for name in NAMES:
            copied = copy.deepcopy(generator).eval()  # normalisation keeps its statistics
            self.add_module(name, copied.requires_grad_(True))
        self.salient = salient

    def forward(self, u: Float[Tensor, "b d"], y: Int[Tensor, "b"]) -> Parts:
        """All mechanisms with the same noise and class, beside the target: for training."""
        with torch.no_grad():
            target = self.target(u, y)
        parts = self.draw(u, (y, y, y))
        return Parts(parts.shape, parts.mask, parts.front, parts.behind, parts.x, target)

    def draw(self, u: Float[Tensor, "b d"], classes: tuple[Tensor, Tensor, Tensor]) -> Parts:
        """Each mechanism with a class of its own and the same noise: counterfactuals.

        Equation: cgn2021 §3.2   m = clamp(U²-Net(f_shape(u, y₁))),  x = m ⊙ f + (1 − m) ⊙ b
        """
        shape, front, behind = (
            self.get_submodule(name)(u, y) for name, y in zip(NAMES, classes, strict=True)
        )
        mask = self.salient(shape).clamp(LEAST, 1 - LEAST)
        return Parts(shape, mask, front, behind, compose(mask, front, behind))


@torch.no_grad()
def check_generator(generator: object, noise: int, classes: int) -> int:
    """The side of the generator's images; one that draws anything but images in [0, 1] is refused.

    Args:
        noise: length of its noise.
        classes: how many classes it knows.
    """
    if not isinstance(generator, nn.Module) or not list(generator.parameters()):
        raise InputError(
            f"the generator is {type(generator).__name__}, expected a torch module with weights: "
            "its copies are trained."
        )
    u = torch.randn(4, noise, generator=torch.Generator().manual_seed(0))
    y = torch.arange(4) % classes
    try:
        x = generator.eval()(u, y)
    except Exception as error:
        raise InputError(
            f"the generator fails on noise 4 × {noise} and classes 0 … {classes - 1} "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})."
        ) from error
    if not isinstance(x, Tensor) or x.ndim != 4 or x.shape[:2] != (4, 3):
        came = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"the generator returns {came}, expected images 4 × 3 × side × side.")
    height, width = x.shape[2:]
    if height != width or height < SMALLEST or height % MULTIPLE:
        raise InputError(
            f"the generator's images are {height} × {width}, expected squares of {SMALLEST} pixels "
            f"or more, in multiples of {MULTIPLE}."
        )
    low, high = float(x.min()), float(x.max())
    if not (low >= -1e-3 and high <= 1 + 1e-3):  # written so that NaN fails too
        hint = " Images in [−1, 1] become so by (x + 1) / 2." if -1.01 <= low < 0 else ""
        raise InputError(
            f"the generator's images span [{low:.3g}, {high:.3g}], expected [0, 1].{hint}"
        )
    if high - low < 1e-3:
        raise InputError(f"all pixels of the generator's images are {low:.3g}: it draws nothing.")
    return int(height)
