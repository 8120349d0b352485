"""Names for the tensors that travel through the package.

One letter per axis, the same everywhere: b batch, k class, c h w pixels, d feature, t step.
Images are float in [0, 1], channels first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

Images = Float[Tensor, "b c h w"]
Logits = Float[Tensor, "b k"]
Probs = Float[Tensor, "b k"]
Labels = Int[Tensor, "b"]
Scores = Float[Tensor, "b"]
Flags = Bool[Tensor, "b"]

Objective = Callable[[Images], Scores]
"""What a search raises: one score per image, higher is better."""

Batch = Mapping[str, Tensor]
"""The tensors of one update, by name."""

Loss = Callable[[nn.Module, Batch, int], dict[str, Tensor]]
"""(network, batch, number of the update) → named terms; their sum is minimised."""

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]


@dataclass(frozen=True)
class Preprocess:
    """How a picture of any size becomes the classifier's input; the loader obeys it.

    Args:
        size: height and width of the input.
        crop: the shorter side is resized to size / crop, then the centre is cut out;
            None squashes the whole picture to `size` whatever its aspect.
        interpolation: how the picture is resized, antialiased.
        squash: resize to size / crop whatever the aspect, then cut the centre out.
    """

    size: tuple[int, int]
    crop: float | None = 1.0
    interpolation: Interpolation = "bicubic"
    squash: bool = False


__all__ = [
    "Batch",
    "Flags",
    "Images",
    "Interpolation",
    "Labels",
    "Logits",
    "Loss",
    "Objective",
    "Preprocess",
    "Probs",
    "Scores",
]
