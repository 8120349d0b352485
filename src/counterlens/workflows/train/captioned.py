"""What a diffusion model is trained on: pictures of several sets, their captions, their latents."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from counterlens.data import name_of, open_set, subset
from counterlens.data.augment import resized_crop
from counterlens.data.batches import Draws, flip
from counterlens.data.synthetic import captions
from counterlens.errors import InputError
from counterlens.generators.diffusion.schedule import Schedule
from counterlens.losses.diffusion import velocity
from counterlens.types import Preprocess
from counterlens.workflows.train.datasets import check_labels, decoded
from counterlens.workflows.train.recipe import (
    ClipRecipe,
    DenoiserRecipe,
    DiffusionRecipe,
    FewStepRecipe,
)


@dataclass(frozen=True)
class Captioned:
    """Training pictures of all sets, one after another.

    Args:
        x: pixels.
        texts: captions of each, the plain one first.
        held: pictures of the first set that are not trained on.
        held_texts: their plain captions.
        ends: where each set ends.
        shares: how often each set is drawn from.
        classes: words of the first set's classes.
        facts: what the card says about the data.
    """

    x: UInt8[Tensor, "n 3 h w"]
    texts: list[list[str]]
    held: UInt8[Tensor, "m 3 h w"]
    held_texts: list[str]
    ends: tuple[int, ...]
    shares: tuple[float, ...]
    classes: tuple[str, ...]
    facts: dict[str, Any]

    def to(self, device: torch.device) -> "Captioned":
        """The same with all pixels on a device."""
        return replace(self, x=self.x.to(device), held=self.held.to(device))

    def rows(self, count: int, generator: torch.Generator) -> Tensor:
        """Random rows, sets by their shares."""
        device = generator.device
        ends = torch.tensor(self.ends, device=device)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        edges = torch.tensor(self.shares, device=device).cumsum(0)[:-1]
        which, place = torch.rand(2, count, device=device, generator=generator)
        chosen = torch.bucketize(which, edges)
        sizes = (ends - starts)[chosen]
        return torch.minimum(starts[chosen] + (place * sizes).long(), ends[chosen] - 1)


def gather(
    specs: Sequence[str],
    recipe: ClipRecipe | DiffusionRecipe | FewStepRecipe,
    *,
    cache: Path | None,
) -> Captioned:
    """Open, decode and caption the sets; the first loses its last pictures to the held-out ones."""
    shares = recipe.shares[: len(specs)]
    if len(shares) < len(specs) or min(shares) <= 0:
        raise InputError(f"shares are {shares} for {len(specs)} sets, expected one above 0 each.")
    side = getattr(recipe, "stored", None) or recipe.side
    size, final = Preprocess((side, side)), Preprocess((recipe.side, recipe.side))
    kinds = kinds_of(getattr(recipe, "kinds", ()))
    count = recipe.held_out
    classes: tuple[str, ...] = ()
    pixels: list[Tensor] = []
    texts: list[list[str]] = []
    facts: list[dict[str, Any]] = []
    for number, spec in enumerate(specs):
        images = open_set(spec)
        check_labels(images)
        x = decoded(images, size, cache=cache)
        names = [images.classes[k] for k in images.labels]
        if number == 0:
            if not 1 < count < len(x):
                raise InputError(f"held_out is {count}, expected 2 … {len(x) - 1} of {spec}.")
            last = subset(images, np.arange(len(x) - count, len(x)))
            held = x[-count:] if size == final else decoded(last, final, cache=cache)
            held_names = names[-count:]
            x, names = x[:-count], names[:-count]
            classes = tuple(captions.word(name) for name in images.classes)
        pixels.append(x)
        texts += captions.captions(
            names, captions.measure(x), variants=recipe.variants, seed=number, kinds=kinds
        )
        words = {captions.word(name) for name in names}
        facts.append(
            {"name": name_of(spec), "n": len(x), "classes": len(words),
             "share": shares[number] / sum(shares), "fingerprint": images.fingerprint}
        )  # fmt: skip
    return Captioned(
        torch.cat(pixels),
        texts,
        held,
        [captions.prompt(name) for name in held_names],
        tuple(torch.tensor([len(x) for x in pixels]).cumsum(0).tolist()),
        tuple(share / sum(shares) for share in shares),
        classes,
        {"sets": facts, "held_out": {"n": count, "rule": "last of the first set"}},
    )


def kinds_of(pairs: Sequence[str]) -> dict[str, str]:
    """Class names and what they are, from NAME=KIND.

    >>> kinds_of(["beagle=dog"])
    {'beagle': 'dog'}
    """
    split = [pair.rpartition("=") for pair in pairs]
    if wrong := [pair for pair, (name, _, kind) in zip(pairs, split, strict=True)
                 if not (name and kind)]:  # fmt: skip
        raise InputError(f"kinds has {wrong[0]!r}, expected NAME=KIND such as beagle=dog.")
    return {name: kind for name, _, kind in split}


def square_crop(
    pixels: UInt8[Tensor, "b 3 h w"], size: int, generator: torch.Generator | None
) -> Float[Tensor, "b 3 s s"]:
    """Random squares of 64 % of the area or more, half of them mirrored, in [−1, 1]."""
    draws = Draws.make(5, len(pixels), pixels, generator)
    x = resized_crop(pixels.float() / 127.5 - 1, draws, size, least=0.64, widest=1.0)
    return flip(x, draws.uniform[4] < 0.5)


def tokens(tokenizer: Any, texts: Sequence[Sequence[str]]) -> Int[Tensor, "n v t"]:
    """Token ids of all captions; each different text is written once."""
    places = {text: i for i, text in enumerate(dict.fromkeys(t for row in texts for t in row))}
    longest = tokenizer.model_max_length
    ids = tokenizer(
        list(places), padding="max_length", max_length=longest, truncation=True
    ).input_ids
    table = torch.tensor(ids, dtype=torch.int32)
    return table[torch.tensor([[places[text] for text in row] for row in texts])]


class PixelBatches:
    """The autoencoder's batch of each update: pictures, half of them mirrored, and noise."""

    def __init__(
        self,
        pictures: Captioned,
        batch: int,
        shape: tuple[int, ...],
        generator: torch.Generator,
        *,
        crop: int | None = None,
    ) -> None:
        """`crop`: the side of the squares that are cropped; None takes whole pictures."""
        self.pictures, self.batch, self.shape, self.generator = pictures, batch, shape, generator
        self.crop = crop

    def __call__(self, step: int) -> dict[str, Tensor]:
        rows = self.pictures.rows(self.batch, self.generator)
        if self.crop:
            x = square_crop(self.pictures.x[rows], self.crop, self.generator)
            size = (self.batch, *self.shape)
            return {"x": x, "noise": torch.randn(size, device=x.device, generator=self.generator)}
        x = self.pictures.x[rows].float() / 127.5 - 1
        device = self.generator.device
        flip = torch.rand(self.batch, 1, 1, 1, device=device, generator=self.generator) < 0.5
        shape = (self.batch, *self.shape)
        noise = torch.randn(shape, device=device, generator=self.generator)
        return {"x": torch.where(flip, x.flip(3), x), "noise": noise}


class LatentBatches:
    """The denoiser's batch of each update: noisy latents, times, captions, and the target."""

    def __init__(
        self,
        pictures: Captioned,
        z: Float[Tensor, "n v c y x"],
        ids: Int[Tensor, "n v t"],
        empty: Int[Tensor, "t"],
        recipe: DenoiserRecipe,
        generator: torch.Generator,
        schedule: Schedule,
    ) -> None:
        self.pictures, self.z, self.ids, self.empty = pictures, z, ids, empty
        self.batch, self.drop = recipe.batch, recipe.drop
        self.generator, self.times = generator, recipe.times
        self.alphas = schedule.alphas.to(z.device)
        self.velocity = schedule.prediction == "v_prediction"

    def __call__(self, step: int) -> dict[str, Tensor]:
        rows = self.pictures.rows(self.batch, self.generator)
        device, n = self.z.device, self.batch
        draw = torch.rand(4, n, device=device, generator=self.generator)
        views = self.z.shape[1]
        clean = self.z[rows, views - 1 - (draw[0] * views).long().clamp_max(views - 1)].float()
        place = draw[1]
        if self.times == "logit-normal":
            place = torch.randn(n, device=device, generator=self.generator).sigmoid()
        time = (place * len(self.alphas)).long().clamp_max(len(self.alphas) - 1)
        variant = (draw[2] * self.ids.shape[1]).long().clamp_max(self.ids.shape[1] - 1)
        ids = torch.where((draw[3] < self.drop)[:, None], self.empty, self.ids[rows, variant])
        noise = torch.randn(clean.shape, device=device, generator=self.generator)
        return {"z": noised(clean, noise, self.alphas[time]), "time": time,
                "ids": ids.long(), "target": self.target(clean, noise, time)}  # fmt: skip

    def target(self, clean: Tensor, noise: Tensor, time: Tensor) -> Tensor:
        """What the network is to predict."""
        return velocity(clean, noise, self.alphas[time]) if self.velocity else noise


def noised(
    clean: Float[Tensor, "b c h w"], noise: Float[Tensor, "b c h w"], alpha: Float[Tensor, "b"]
) -> Float[Tensor, "b c h w"]:
    """Latents with noise.

    Equation: ddpm2020 (4)   z_t = √ᾱ_t z_0 + √(1 − ᾱ_t) ε
    """
    alpha = alpha.view(-1, 1, 1, 1)
    return alpha.sqrt() * clean + (1 - alpha).sqrt() * noise
