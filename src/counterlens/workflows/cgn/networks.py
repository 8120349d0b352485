"""The two networks of a CGN's training: their start, their losses, what an update of both needs.

On one H200 an update of ten networks of Coloured MNIST, 266 GFLOP in 730 kernels, took 6.5 ms
before the styles of real pictures, which never change, were kept (`keep_grams`);
`benchmarks/cgn_study.py speed` measures it. Losses are not compiled: replayed as graphs, compiled
ones trained wrongly (H200, PyTorch 2.11).

Paper: Sauer and Geiger 2021 (cgn2021, MNIST code).
Differs: on a GPU the fixed VGG-16 works in bfloat16, all else in TF32; losses, Gram matrices, norms
       and weights are float32.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from counterlens.errors import InputError
from counterlens.fit import Trainable
from counterlens.generators.cgn import critics
from counterlens.generators.cgn import model as cgn
from counterlens.generators.cgn.model import CGN, CLASSES, DCGAN, NOISE, PLACES
from counterlens.generators.cgn.stacked import arrange, stacked
from counterlens.losses.cgn import ClassLevel, Game, grams
from counterlens.models.nets.vgg import VGG16
from counterlens.workflows.cgn.masks import BORDER
from counterlens.workflows.cgn.settings import CgnRecipe
from counterlens.workflows.cgn.stack import Shuffled, seeded, unit_range

MOST_GRAMS = 24 * 2**30  # bytes
CHUNK = 2000
PRECISIONS = ("auto", "fp32", "tf32", "mixed", "bf16")


def options(kind: str, recipe: CgnRecipe) -> dict[str, Any]:
    """What the generator is built with."""
    return {} if kind == "gan" else {"width": recipe.width, "shuffle": recipe.shuffle}


def dtypes(recipe: CgnRecipe, device: torch.device) -> tuple[torch.dtype, torch.dtype]:
    """Precision of VGG-16 and of the networks' convolutions; on a GPU, that of products as well.

    fp32: everywhere; tf32: what the GPU makes of float32; mixed: bfloat16 in VGG-16 alone; bf16:
    in all convolutions. "auto" is mixed on a GPU and fp32 on a CPU.
    """
    chosen = recipe.precision
    if chosen not in PRECISIONS:
        raise InputError(f"precision is {chosen!r}, expected one of {', '.join(PRECISIONS)}.")
    if chosen == "auto":
        chosen = "mixed" if device.type == "cuda" else "fp32"
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = chosen != "fp32"
        torch.set_float32_matmul_precision("highest" if chosen == "fp32" else "high")
    low, full = torch.bfloat16, torch.float32
    return low if chosen in ("mixed", "bf16") else full, low if chosen == "bf16" else full


def nets(
    kind: str,
    recipe: CgnRecipe,
    starts: Sequence[int],
    x: UInt8[Tensor, "n 3 32 32"],
    dtype: torch.dtype = torch.float32,
) -> tuple[CGN | DCGAN, nn.Module]:
    """Generators and critics, one pair per start, as two stacks on the device of the pictures."""
    sizes = options(kind, recipe)

    def generator() -> nn.Module:
        one = cgn.build(kind, **sizes)
        cgn.initialise(one, recipe.init, recipe.gain)
        return one

    def critic() -> nn.Module:
        return critics.build(recipe.critic, 1, recipe.critic_width)

    net = cgn.build(kind, len(starts), **sizes)
    net.load_state_dict(stacked([seeded(generator, start) for start in starts]))
    if isinstance(net, CGN) and recipe.border_start:
        cgn.start_background(net, _border_colour(x))
    other = critics.build(recipe.critic, len(starts), recipe.critic_width)
    other.load_state_dict(stacked([seeded(critic, start + 7) for start in starts]))
    form = recipe.form
    if form == "auto":
        form = "matmul" if x.is_cuda else "grouped"
    for one in (net, other):
        arrange(one, form, dtype)
    return net.to(x.device), other.to(x.device)


def _border_colour(x: UInt8[Tensor, "n 3 32 32"]) -> Float[Tensor, "3"]:
    """Mean colour of the outer three pixels of the data, in [−1, 1]."""
    part = unit_range(x[:2000].cpu())
    edge = torch.ones(part.shape[2:], dtype=torch.bool)
    edge[BORDER:-BORDER, BORDER:-BORDER] = False
    return part[:, :, edge].mean((0, 2))


@torch.no_grad()
def known_grams(
    x: UInt8[Tensor, "n 3 32 32"], recipe: CgnRecipe, features: VGG16 | None
) -> list[Float[Tensor, "n _ _"]] | None:
    """Gram matrices of all pictures, where the device has room; they never change."""
    weights = recipe.style
    if features is None or not recipe.keep_grams:
        return None
    first = grams(unit_range(x[:1]), features, weights)
    size = len(x) * sum(one.numel() * one.element_size() for one in first)
    if recipe.keep_grams == "auto" and (not x.is_cuda or size > MOST_GRAMS):
        return None
    known = [one.new_empty(len(x), *one.shape[1:]) for one in first]
    for start in range(0, len(x), CHUNK):
        rows = slice(start, start + CHUNK)
        for whole, part in zip(known, grams(unit_range(x[rows]), features, weights), strict=True):
            whole[rows] = part
    return known


def trainables(
    kind: str,
    recipe: CgnRecipe,
    net: CGN | DCGAN,
    critic: nn.Module,
    features: VGG16 | None,
    *,
    known: Sequence[Tensor] | None = None,
    level: ClassLevel | None = None,
) -> list[Trainable]:
    """Both networks with their losses and optimisers; the generator is the first."""
    game = Game(
        critic, features, recipe.style, recipe.entropy, recipe.edge,
        recipe.edge_form, known, level,
    )  # fmt: skip
    ours, theirs = (
        (game.generator_terms, game.critic_terms)
        if kind == "cgn"
        else (game.gan_terms, game.gan_critic_terms)
    )
    fused = next(net.parameters()).is_cuda

    def adam(network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(network.parameters(), lr=recipe.lr, betas=(0.5, 0.999), fused=fused)

    return [Trainable(net, ours, adam(net)), Trainable(critic, theirs, adam(critic))]


def batches(
    x: UInt8[Tensor, "n 3 32 32"],
    y: Int[Tensor, "n"],
    recipe: CgnRecipe,
    order: Shuffled,
    generator: torch.Generator,
) -> Callable[[int], dict[str, Tensor]]:
    """What an update of both networks needs, drawn anew for each."""
    b, s, device = order.batch, order.stack, x.device
    width = recipe.critic_width if recipe.critic == "linear" else 1

    def batch(step: int) -> dict[str, Tensor]:
        rows = order(step)
        uniform = torch.rand(b, s, 2 * PLACES + 1, device=device, generator=generator)
        keep = torch.rand(6, b, s, width, device=device, generator=generator) < critics.KEEP_RATE
        u = torch.randn(b, s, NOISE, device=device, generator=generator)
        classes = (uniform[:, :, -1] * CLASSES).long().clamp_max(CLASSES - 1)
        pictures = unit_range(x[rows.flatten()])
        return {
            "x": pictures.view(b, s, *pictures.shape[1:]),
            "rows": rows,
            "labels": y[rows],
            "u": u,
            "y": classes,
            "places": uniform[:, :, :-1].contiguous().view(b, s, 2, PLACES),
            "keep": keep,
        }

    return batch
