"""Counterfactual generative network for digits: shape, object texture and background apart.

Three mechanisms each see noise and a class. Given the same class they imitate the data; given
three classes they make pictures that the data does not hold, and the class of the shape is the
label.

Paper: Sauer and Geiger 2021, Counterfactual Generative Networks (cgn2021, section 3 and its
       MNIST code); cgnstudy2022.
Differs: s networks of different seeds may be held in one stack. What the code calls a shuffle of
       patches is a cyclic shift; both are here (`shuffle`). Random places come in as numbers, so
       that a picture is a function of its inputs.
"""

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from counterlens import zoo
from counterlens.errors import InputError, first_line
from counterlens.generators.cgn.stacked import StackEmbedding, StackLinear, StackUp, conv, unstacked
from counterlens.runs import atomic, read_object, write_json

CgnPart = Literal["object", "background"]
Shuffle = Literal["shift", "patches", "none"]
SHUFFLES: tuple[Shuffle, ...] = ("shift", "patches", "none")
CLASSES = 10
NOISE = 32
SIDE = 32
GRID = 4  # patches along a side
PLACES = GRID * GRID
LEAST = 1e-4

Noise = Float[Tensor, "b s 32"]
Classes = Int[Tensor, "b s"]
ShapeMasks = Float[Tensor, "b s 1 32 32"]
Fills = Float[Tensor, "b s 3 32 32"]
Places = Float[Tensor, "b s 16"]


class _Up(nn.Module):
    """Twice the size: nearest neighbour, 3×3 convolution, batch norm, leaky ReLU."""

    def __init__(self, stack: int, cin: int, cout: int) -> None:
        super().__init__()
        self.conv = conv(stack, cin, cout, 3, 1, 1)
        self.norm = nn.BatchNorm2d(stack * cout)

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(self.norm(self.conv.twice(x)), 0.2)


class ShapeNet(nn.Module):
    """Noise and class to a mask."""

    def __init__(self, stack: int, width: int) -> None:
        super().__init__()
        self.stack, self.width = stack, width
        self.start = StackLinear(stack, NOISE + CLASSES, 2 * width * 64)
        self.up1 = _Up(stack, 2 * width, width)
        self.up2 = _Up(stack, width, 1)

    def forward(self, inside: Float[Tensor, "b s d"]) -> ShapeMasks:
        """Masks in [1e-4, 1 − 1e-4]; the clamp stops gradients outside, as in the code.

        Equation: cgn2021 §A   m = clamp(IN(up(IN(up(IN(linear([u, e_y])))))))
        """
        x = self.start(inside).reshape(len(inside), -1, 8, 8)
        x = self.up1(functional.instance_norm(x))
        x = self.up2(functional.instance_norm(x))
        return functional.instance_norm(x).clamp(LEAST, 1 - LEAST)[:, :, None]


class Texture(nn.Module):
    """Noise and class to a texture in [−1, 1] that fills the picture."""

    def __init__(self, stack: int, width: int) -> None:
        super().__init__()
        self.stack = stack
        self.start = StackLinear(stack, NOISE + CLASSES, 2 * width * 64)
        self.up1 = _Up(stack, 2 * width, 2 * width)
        self.up2 = _Up(stack, 2 * width, width)
        self.last = conv(stack, width, 3, 3, 1, 1)
        self.norm = nn.BatchNorm2d(stack * 3)

    def forward(self, inside: Float[Tensor, "b s d"]) -> Fills:
        """Textures, not yet shuffled."""
        x = self.start(inside).reshape(len(inside), -1, 8, 8)
        x = self.norm(self.last(self.up2(self.up1(x)))).tanh()
        out: Tensor = x.reshape(len(x), self.stack, 3, SIDE, SIDE)
        return out


class CGN(nn.Module):
    """Mechanisms of shape, object texture and background, for a stack of networks."""

    def __init__(self, stack: int = 1, *, width: int = 32, shuffle: str = "shift") -> None:
        super().__init__()
        if shuffle not in SHUFFLES:
            raise InputError(f"shuffle is {shuffle!r}, expected one of {', '.join(SHUFFLES)}.")
        self.stack, self.shuffle = stack, shuffle
        self.classes = StackEmbedding(stack, CLASSES, CLASSES)
        self.shape = ShapeNet(stack, width)
        self.object = Texture(stack, width)
        self.background = Texture(stack, width)

    def forward(self, u: Noise, y: Classes, places: Float[Tensor, "b s 2 16"]) -> tuple[Any, ...]:
        """Mask, object and background of the same noise and class, as in training."""
        inside = torch.cat([u, self.classes(y)], 2)
        front = shuffled(self.object(inside), places[:, :, 0], self.shuffle)
        behind = shuffled(self.background(inside), places[:, :, 1], self.shuffle)
        return self.shape(inside), front, behind

    def masks(self, u: Noise, y: Classes) -> ShapeMasks:
        """Masks of digits y."""
        out: ShapeMasks = self.shape(torch.cat([u, self.classes(y)], 2))
        return out

    def fills(self, part: CgnPart, u: Noise, y: Classes, places: Places) -> Fills:
        """Object or background textures of classes y, shuffled."""
        mechanism = self.object if part == "object" else self.background
        out = mechanism(torch.cat([u, self.classes(y)], 2))
        return shuffled(out, places, self.shuffle)


def compose(
    mask: Float[Tensor, "*b 1 h w"], front: Float[Tensor, "*b c h w"], behind: Tensor
) -> Float[Tensor, "*b c h w"]:
    """The picture: the object where the mask is, the background elsewhere.

    Equation: cgn2021 (2)   x = m ⊙ f + (1 − m) ⊙ b
    """
    return mask * front + (1 - mask) * behind


def shuffled(x: Fills, places: Places, how: str) -> Fills:
    """Textures whose parts have changed places, so that they cannot hold a shape.

    Args:
        places: uniform numbers in [0, 1): the first two choose the shift, all of them the order
            of the patches.
        how: "shift": the code's random crop of a 2 × 2 tiling, which is a cyclic shift by 0 … 32
            pixels along each axis; "patches": the paper's 4 × 4 patches in random order.
    """
    if how == "shift":
        return cyclic_shift(x, (places[:, :, :2] * (SIDE + 1)).long())
    if how == "patches":
        return permuted_patches(x, places.argsort(2))
    return x


def cyclic_shift(x: Fills, by: Int[Tensor, "b s 2"]) -> Fills:
    """Each picture rolled up and left by its own number of pixels.

    Equation: cgn2021 §A   crop of [[x, x], [x, x]] at (dy, dx)
    """
    along = torch.arange(SIDE, device=x.device)
    y = ((along + by[:, :, :1]) % SIDE)[:, :, None, :, None].expand_as(x)
    z = ((along + by[:, :, 1:]) % SIDE)[:, :, None, None, :].expand_as(x)
    return x.gather(3, y).gather(4, z)


def permuted_patches(x: Fills, order: Int[Tensor, "b s 16"]) -> Fills:
    """Each picture cut into 4 × 4 patches, patch i taken from place order[i]."""
    b, s, c = x.shape[:3]
    edge = SIDE // GRID
    cut = x.view(b, s, c, GRID, edge, GRID, edge).permute(0, 1, 3, 5, 2, 4, 6)
    flat = cut.reshape(b, s, PLACES, -1)
    moved = flat.gather(2, order[..., None].expand_as(flat))
    back = moved.view(b, s, GRID, GRID, c, edge, edge).permute(0, 1, 4, 2, 5, 3, 6)
    return back.reshape(x.shape)


class DCGAN(nn.Module):
    """The baseline: noise and class to a picture, nothing taken apart.

    Paper: Radford et al. 2016 (dcgan2016), in the CGN code's form.
    """

    def __init__(self, stack: int = 1, *, widths: tuple[int, int, int] = (256, 128, 64)) -> None:
        super().__init__()
        self.stack = stack
        self.classes = StackEmbedding(stack, CLASSES, CLASSES)
        inside = (NOISE + CLASSES, *widths)
        layers: list[nn.Module] = []
        for i, (cin, cout) in enumerate(pairwise(inside)):
            stride, pad = (1, 0) if i == 0 else (2, 1)
            up = StackUp(stack * cin, stack * cout, 4, stride, pad, groups=stack, bias=False)
            layers += [up, nn.BatchNorm2d(stack * cout), nn.LeakyReLU(0.2)]
        last = StackUp(stack * widths[-1], stack * 3, 4, 2, 1, groups=stack, bias=False)
        self.layers = nn.Sequential(*layers, last, nn.Tanh())

    def forward(self, u: Noise, y: Classes, places: Tensor | None = None) -> Fills:
        """Pictures in [−1, 1] of classes y."""
        inside = torch.cat([u, self.classes(y)], 2).reshape(len(u), -1, 1, 1)
        out: Tensor = self.layers(inside)
        return out.reshape(len(u), self.stack, 3, SIDE, SIDE)


KINDS = ("cgn", "gan")


def build(kind: str, stack: int = 1, **options: Any) -> CGN | DCGAN:
    """A generator, freshly initialised."""
    if kind == "cgn":
        return CGN(stack, **options)
    if kind == "gan":
        return DCGAN(stack, **options)
    raise InputError(f"generator kind is {kind!r}, expected cgn or gan.")


def initialise(net: nn.Module, how: str, gain: float) -> None:
    """The start the code gives each set: orthogonal or normal weights, γ ~ N(1, gain), biases 0."""
    if how not in ("orthogonal", "normal", "default"):
        raise InputError(f"init is {how!r}, expected orthogonal, normal or default.")
    if how == "default":
        return
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, StackLinear)):
            if how == "orthogonal":
                nn.init.orthogonal_(layer.weight, gain)
            else:
                nn.init.normal_(layer.weight, 0.0, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight, 1.0, gain)
            nn.init.zeros_(layer.bias)


@torch.no_grad()
def start_background(net: CGN, colour: Float[Tensor, "3"]) -> None:
    """Let the backgrounds of all classes start at one colour in [−1, 1].

    The batch norm before the tanh spreads the classes around its bias. From a bias of 0 half of
    them start bright, and where the data's ground is black those begin as negatives.
    """
    bias = torch.atanh(colour.clamp(-0.99, 0.99))
    net.background.norm.bias.copy_(bias.repeat(net.stack))


def save(
    folder: Path, net: CGN | DCGAN, card: Mapping[str, Any], *, row: int = 0, half: bool = True
) -> Path:
    """Write one network of a stack as model.safetensors with its card.

    Args:
        row: which network of the stack.
        half: in half precision.
    """
    from safetensors.torch import save_file

    state = unstacked(net.state_dict(), net.stack)[row]
    stored = {
        key: (value.half() if half and value.is_floating_point() else value)
        .cpu()
        .contiguous()
        .clone()
        for key, value in state.items()
    }
    with atomic(folder / "model.safetensors") as part:
        save_file(stored, part)
    digest = _digest(folder / "model.safetensors")
    write_json(folder / "card.json", {"schema": 1, **card, "weights_sha256": digest})
    return folder


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def load(source: str | Path) -> tuple[CGN | DCGAN, dict[str, Any]]:
    """A generator in eval mode, on the CPU, and its card.

    Args:
        source: a folder that `save` wrote, or zoo:NAME.
    """
    text = str(source)
    folder = zoo.cgn(text.removeprefix("zoo:")) if text.startswith("zoo:") else Path(source)
    if not (folder / "card.json").is_file() or not (folder / "model.safetensors").is_file():
        raise InputError(
            f"{folder} holds no generator, expected card.json and model.safetensors: a folder "
            "seed-N of counterlens cgn train."
        )
    card = read_object(folder / "card.json")
    if card.get("kind") not in KINDS:
        raise InputError(f"{folder} holds {card.get('kind', 'a classifier')!r}, expected a CGN.")
    if card.get("weights_sha256") != _digest(folder / "model.safetensors"):
        raise InputError(
            f"{folder}/model.safetensors is not the file its card describes (SHA-256 differs). "
            "Copy both files again."
        )
    from safetensors.torch import load_file

    try:
        net = build(card["kind"], **card.get("options", {}))
        state = load_file(folder / "model.safetensors")
        own = net.state_dict()
        net.load_state_dict({key: value.to(own[key].dtype) for key, value in state.items()})
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder / 'card.json'} describes no generator of these weights "
            f"({type(error).__name__}: {first_line(error)})."
        ) from error
    return net.eval().requires_grad_(False), card
