"""Captions from what can be measured: the class, colours, brightness and background of a picture.

A picture of a class becomes "a photograph of a red convertible on a plain white background"
where its pixels say so. Colours are names of mean colours: of the middle half for the object, of
the border for the background; they are left out where the mean is no clear colour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from counterlens.label_spaces.imagenet import WNID

COLOURS = (
    "", "black", "grey", "white", "red", "orange", "brown", "yellow", "green", "blue", "purple",
    "pink",
)  # fmt: skip
LIGHTS = ("", "dark", "bright")
TEMPLATES = ("a photograph of {}", "a photo of {}", "an image of {}", "a picture of {}", "{}")
PLAIN = 0.08
"""A border whose colours deviate less than this is a plain background."""


@dataclass(frozen=True)
class Attributes:
    """What was measured on each picture; numbers into COLOURS and LIGHTS, 0 for nothing clear."""

    colour: Int[np.ndarray, "n"]
    background: Int[np.ndarray, "n"]
    plain: np.ndarray
    light: Int[np.ndarray, "n"]


def word(name: str) -> str:
    """A class name as a caption has it: no WordNet id, no underscores, first name only.

    >>> word("n04311004 steel arch bridge"), word("tabby, tabby cat"), word("sea_slug")
    ('steel arch bridge', 'tabby', 'sea slug')
    """
    words = WNID.sub("", name).split(",")[0].replace("_", " ")
    return " ".join(words.split())


def prompt(name: str, *, template: str = TEMPLATES[0]) -> str:
    """The prompt of a class.

    >>> prompt("cat"), prompt("n02690373 airliner")
    ('a photograph of a cat', 'a photograph of an airliner')
    """
    return template.format(with_article(word(name)))


def with_article(words: str) -> str:
    """The words with a or an before them."""
    return f"{'an' if words[:1].lower() in 'aeio' else 'a'} {words}"


def measure(pixels: UInt8[Tensor, "n 3 h w"], *, part: int = 4096) -> Attributes:
    """Colours, background and brightness of pictures."""
    parts = [_measured(some.float() / 255) for some in torch.split(pixels, part)]
    columns = [torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)]
    return Attributes(*columns)


def _measured(x: Float[Tensor, "n 3 h w"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    high, wide = x.shape[2:]
    middle = x[:, :, high // 4 : high - high // 4, wide // 4 : wide - wide // 4]
    edge = max(1, high // 8)
    ring = torch.ones(high, wide, dtype=torch.bool, device=x.device)
    ring[edge : high - edge, edge : wide - edge] = False
    border = x[:, :, ring]
    grey = x.mean((1, 2, 3))
    light = torch.zeros(len(x), dtype=torch.long, device=x.device)
    light[grey < 0.25] = LIGHTS.index("dark")
    light[grey > 0.7] = LIGHTS.index("bright")
    return (
        name_colours(middle.mean((2, 3))),
        name_colours(border.mean(2)),
        border.std(2).mean(1) < PLAIN,
        light,
    )


def name_colours(rgb: Float[Tensor, "n 3"]) -> Int[Tensor, "n"]:
    """The name of each colour as a number into COLOURS; 0 where it is between names.

    >>> names = name_colours(torch.tensor([[0.8, 0.1, 0.1], [0.95, 0.95, 0.95], [0.4, 0.25, 0.1]]))
    >>> [COLOURS[i] for i in names]
    ['red', 'white', 'brown']
    """
    top, low = rgb.amax(1), rgb.amin(1)
    spread = top - low
    strength = spread / top.clamp_min(1e-6)
    red, green, blue = rgb.unbind(1)
    safe = spread.clamp_min(1e-6)
    hue = torch.where(
        top == red,
        (green - blue) / safe % 6,
        torch.where(top == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    names = torch.zeros(len(rgb), dtype=torch.long, device=rgb.device)

    def call(name: str, where: Tensor) -> None:
        names[where] = COLOURS.index(name)

    vivid = (strength > 0.25) & (top > 0.2)
    call("red", vivid & ((hue < 0.3) | (hue >= 5.6)))
    call("orange", vivid & (hue >= 0.3) & (hue < 0.8))
    call("yellow", vivid & (hue >= 0.8) & (hue < 1.25))
    call("green", vivid & (hue >= 1.25) & (hue < 2.7))
    call("blue", vivid & (hue >= 2.7) & (hue < 4.3))
    call("purple", vivid & (hue >= 4.3) & (hue < 5.1))
    call("pink", vivid & (hue >= 5.1) & (hue < 5.6))
    call("brown", vivid & (hue >= 0.2) & (hue < 1.0) & (top < 0.65))
    pale = strength < 0.12
    call("grey", pale & (top >= 0.25) & (top < 0.75))
    call("white", pale & (top >= 0.75))
    call("black", top < 0.2)
    return names


def captions(
    names: Sequence[str],
    attributes: Attributes,
    *,
    variants: int,
    seed: int = 0,
    kinds: Mapping[str, str] | None = None,
) -> list[list[str]]:
    """So many captions of each picture; each says a random part of what is known.

    The first is always "a photograph of a CLASS".

    Args:
        kinds: what a class is, such as dog for beagle, where its name does not say it.
    """
    kinds = kinds or {}
    rng = np.random.default_rng(seed)
    chance = rng.random((len(names), variants, 5))
    return [
        [
            prompt(name)
            if v == 0
            else _caption(word(name), kinds.get(name, ""), attributes, i, chance[i, v])
            for v in range(variants)
        ]
        for i, name in enumerate(names)
    ]


def _caption(name: str, kind: str, attributes: Attributes, i: int, chance: np.ndarray) -> str:
    colour, back = COLOURS[attributes.colour[i]], COLOURS[attributes.background[i]]
    phrase = with_article(f"{colour} {name}" if colour and chance[0] < 0.5 else name)
    if kind and chance[4] < 0.5:
        phrase += f", {with_article(kind)}"
    if back and chance[1] < 0.5:
        phrase += f" on a {'plain ' if attributes.plain[i] else ''}{back} background"
    text = TEMPLATES[int(chance[2] ** 2 * len(TEMPLATES))].format(phrase)
    light = LIGHTS[attributes.light[i]]
    return f"{text}, {light}" if light and chance[3] < 0.5 else text
