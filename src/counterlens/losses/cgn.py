"""Losses of the counterfactual generative network for digits, and of the GAN beside it.

Paper: Sauer and Geiger 2021 (cgn2021, section 3 and its MNIST code); cgnstudy2022 for the edge
       loss; Mao et al. 2017 (lsgan2017); Gatys et al. 2016 (gatys2016).
Differs: every term is a mean over the pictures of one network, summed over the networks of a
       stack, so that each learns as if alone. The critic may see pictures relative to the colour
       and contrast of their class (`levelled`). The study's text and its code define two edge
       losses; both are here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from counterlens.errors import InputError
from counterlens.generators.cgn.model import CLASSES, Classes, Fills, ShapeMasks, compose
from counterlens.models.nets.vgg import VGG16
from counterlens.types import Batch

STYLE_SCALE = 5000.0
BORDER = 3
Scores2 = Float[Tensor, "b s"]
LossTerms = Callable[[nn.Module, Batch], dict[str, Tensor]]


def least_squares(scores: Scores2, wanted: float) -> Float[Tensor, ""]:
    """How far the critic's scores are from the wanted one.

    Equation: lsgan2017 (9)   mean (D(x) − wanted)²
    """
    return (scores - wanted).square().mean() * scores.shape[1]


def binary_entropy(mask: ShapeMasks) -> Float[Tensor, ""]:
    """Bits of doubt in the mask: 0 for black and white, 1 for grey.

    Equation: cgn2021 §3.1   mean −m log₂ m − (1 − m) log₂(1 − m)
    """
    doubt = -(mask * mask.log2() + (1 - mask) * (1 - mask).log2())
    return doubt.mean() * mask.shape[1]


def gram(x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d d"]:
    """Which features occur at the same positions, summed over the picture.

    Equation: gatys2016 (3)   G_ij = Σ_p F_ip F_jp / (C H W)
    """
    flat = x.flatten(2)
    return flat @ flat.transpose(1, 2) / flat[0].numel()


def grams(
    x: Float[Tensor, "b 3 h w"], features: VGG16, weights: Sequence[float]
) -> list[Float[Tensor, "b _ _"]]:
    """Gram matrices of the taps whose weight is not 0, in float32."""
    wanted = tuple(w != 0 for w in weights)
    return [gram(tap.float()) for tap in features(x, wanted)]


def style_loss(
    generated: Fills,
    real: Fills,
    features: VGG16,
    weights: Sequence[float],
    known: Sequence[Float[Tensor, "b _ _"]] | None = None,
) -> Float[Tensor, ""]:
    """Distance of the Gram matrices of generated and real pictures, row by row.

    Equation: cgn2021 §A   Σ_l 5000 w_l² mean |G_l(x) − G_l(x̂)|

    Args:
        generated, real: pictures in [−1, 1], fed to VGG-16 as they are; the pairs are arbitrary.
        features: in any precision; its taps are compared in float32.
        weights: one per tap; a tap of weight 0 is not computed.
        known: `grams` of the real pictures, where they are precomputed.
    """
    if known is None:
        with torch.no_grad():
            known = grams(real.flatten(0, 1), features, weights)
    fake = grams(generated.flatten(0, 1), features, weights)
    total = generated.new_zeros(())
    for weight, one, other in zip((w for w in weights if w), fake, known, strict=True):
        total = total + STYLE_SCALE * weight**2 * (one - other).abs().mean()
    return total * generated.shape[1]


def edge_loss(mask: ShapeMasks) -> Float[Tensor, ""]:
    """Mask on the outer three pixels, where no digit is: it tells a mask from its negative.

    Equation: cgnstudy2022 §3.3   1/N Σ_p m_p [p within 3 px of the border]
    """
    return (mask * _border(mask, BORDER, BORDER)).mean() * mask.shape[1]


def edge_loss_of_code(mask: ShapeMasks) -> Float[Tensor, ""]:
    """What the study's program computes: border less centre, over three equal channels.

    Equation: cgnstudy2022 code   (Σ_edge m − Σ_centre m) / (H W B), edge 6 px, 7 below and right
    """
    edge = _border(mask, 6, 7)
    return 3 * (mask * (2 * edge - 1)).sum() / (len(mask) * edge.numel())


EDGES: dict[str, Callable[[ShapeMasks], Float[Tensor, ""]]] = {
    "study": edge_loss,
    "code": edge_loss_of_code,
}


def _border(mask: ShapeMasks, first: int, last: int) -> Float[Tensor, "h w"]:
    h, w = mask.shape[3:]
    inner = mask.new_zeros(h, w)
    inner[first : h - last, first : w - last] = 1
    return 1 - inner


@dataclass(frozen=True)
class ClassLevel:
    """Mean colour of each class, and what brings its contrast to that of the mean class."""

    colour: Float[Tensor, "10 3"]
    gain: Float[Tensor, "10"]


def level_of(x: UInt8[Tensor, "n 3 h w"], y: Int[Tensor, "n"]) -> ClassLevel:
    """The level of each class of pictures; a class without pictures keeps what it has."""
    count, n = x.shape[2] * x.shape[3], y.bincount(minlength=CLASSES).double()
    first, second = (x.new_zeros(CLASSES, 3, dtype=torch.float64) for _ in range(2))
    for rows, labels in zip(torch.split(x, 2000), torch.split(y, 2000), strict=True):
        part = rows.double() / 127.5 - 1
        first.index_add_(0, labels, part.sum((2, 3)))
        second.index_add_(0, labels, part.square().sum((2, 3)))
    pixels = (n * count).clamp_min(1)[:, None]
    colour = first / pixels
    spread = (second / pixels - colour.square()).mean(1).clamp_min(0).sqrt()
    seen = spread > 0
    gain = torch.where(seen, spread[seen].mean() / spread, 1.0)
    return ClassLevel(colour.float(), gain.float())


def levelled(x: Fills, y: Classes, level: ClassLevel) -> Fills:
    """Pictures around the mean colour of their class, all classes at the same contrast.

    A critic of unlevelled pictures learns least about the class of least contrast, and on a black
    ground most of what it sees is the ground.
    """
    return (x - level.colour[y][..., None, None]) * level.gain[y][..., None, None, None]


@dataclass
class Game:
    """The state shared by the generator and the critic of one training.

    Args:
        critic: the network that learns second.
        features: VGG-16 for the style loss, or None where all its weights are 0.
        style: weights of the taps.
        entropy, edge: weights of the terms.
        edge_form: "study" (its formula) or "code" (its program).
        known: Gram matrices of all pictures of the data, which never change, where precomputed.
        level: mean colour and contrast of each class, if the critic sees pictures relative to them.
        generated: the last pictures of the generator, from which the critic then learns.
    """

    critic: nn.Module
    features: VGG16 | None
    style: tuple[float, ...]
    entropy: float
    edge: float
    edge_form: str = "study"
    known: Sequence[Float[Tensor, "n _ _"]] | None = None
    level: ClassLevel | None = None
    generated: Tensor | None = field(default=None)

    def __post_init__(self) -> None:
        if self.edge_form not in EDGES:
            raise InputError(f"edge_form is {self.edge_form!r}, expected study or code.")

    def judge(self, x: Fills, batch: Batch) -> Scores2:
        """The critic's scores of new pictures, which are stored for its own update.

        They are stored in place: a captured graph writes to the same memory each time.
        """
        assert self.generated is not None
        self.generated.copy_(x.detach())
        scores: Scores2 = self.critic(self.shown(x, batch["y"]), batch["y"], batch["keep"][:2])
        return scores

    def shown(self, x: Fills, y: Classes) -> Fills:
        """Pictures of classes y as the critic sees them."""
        return x if self.level is None else levelled(x, y, self.level)

    def generator_terms(self, net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        """What the CGN minimises.

        Equation: cgn2021 (3)   L_GAN + λ₁ L_mask + L_style + λ₂ L_edge
        """
        return self._turn(self._generator, net, batch)

    def gan_terms(self, net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        """What the baseline's generator minimises.

        Equation: dcgan2016 §3   mean −log σ(D(x̂))
        """
        return self._turn(self._gan, net, batch)

    def _turn(self, terms: LossTerms, net: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The generator's update: only it learns."""
        if self.generated is None:
            self.generated = torch.empty_like(batch["x"])
        with frozen_weights(self.critic):
            return terms(net, batch)

    def _generator(self, net: nn.Module, batch: Batch) -> dict[str, Tensor]:
        mask, front, behind = net(batch["u"], batch["y"], batch["places"])
        x = compose(mask, front, behind)
        terms = {
            "fool": least_squares(self.judge(x, batch), 1.0),
            "entropy": self.entropy * binary_entropy(mask),
        }
        if self.features is not None:
            known = None
            if self.known is not None:
                known = [one[batch["rows"].flatten()] for one in self.known]
            terms["style"] = style_loss(x, batch["x"], self.features, self.style, known)
        if self.edge:
            terms["edge"] = self.edge * EDGES[self.edge_form](mask)
        return terms

    def _gan(self, net: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"fool": _cross(self.judge(net(batch["u"], batch["y"]), batch), 1.0)}

    def critic_terms(self, net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        """What the critic minimises, on the latest pictures of the generator.

        Equation: lsgan2017 (9)   ½ (mean (D(x) − 1)² + mean D(x̂)²)
        """
        real, fake = self.scores(net, batch)
        return {"real": least_squares(real, 1.0) / 2, "fake": least_squares(fake, 0.0) / 2}

    def gan_critic_terms(self, net: nn.Module, batch: Batch, step: int) -> dict[str, Tensor]:
        """What the baseline's critic minimises.

        Equation: dcgan2016 §3   ½ (mean −log σ(D(x)) + mean −log(1 − σ(D(x̂))))
        """
        real, fake = self.scores(net, batch)
        return {"real": _cross(real, 1.0) / 2, "fake": _cross(fake, 0.0) / 2}

    def scores(self, net: nn.Module, batch: Batch) -> tuple[Scores2, Scores2]:
        """The critic's scores of real and generated pictures; in one batch if possible."""
        assert self.generated is not None
        x, keep = self.shown(batch["x"], batch["labels"]), batch["keep"][2:6]
        generated = self.shown(self.generated, batch["y"])
        if not getattr(self.critic, "alone", False):
            real = net(x, batch["labels"], keep[:2])
            return real, net(generated, batch["y"], keep[2:])
        dropout = torch.cat([keep[:2], keep[2:]], 1)
        both = net(torch.cat([x, generated]), torch.cat([batch["labels"], batch["y"]]), dropout)
        return both[: len(x)], both[len(x) :]


def _cross(scores: Scores2, wanted: float) -> Float[Tensor, ""]:
    goal = torch.full_like(scores, wanted)
    return functional.binary_cross_entropy_with_logits(scores, goal) * scores.shape[1]


@contextmanager
def frozen_weights(net: nn.Module) -> Iterator[None]:
    """Inside, the weights of a network get no gradients."""
    weights = [p for p in net.parameters() if p.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)
