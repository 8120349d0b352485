"""Classifier: images in [0, 1] in, logits out; preprocessing and class names travel with it.

The network inside sees normalised pixels; nobody else does. Temperature is a fact on the card,
never part of `forward`: robust accuracy must not depend on it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.errors import InputError
from counterlens.types import Images, Logits, Preprocess

EXAMPLE = "counterlens.Classifier(net, classes=names, mean=…, std=…, size=224)"
"""What to write for a network that does not describe itself."""


class Classifier(nn.Module):
    """A network with its normalisation, preprocessing and class names.

    >>> Classifier(nn.Flatten(), classes=192, size=8).preprocess.size
    (8, 8)

    Args:
        net: a module, or any function of a batch of normalised images; it returns logits. Where
            two classes are named and it returns one logit z, the two logits are (−z/2, z/2).
        classes: names in the order of the logits, or how many there are.
        mean, std: one number per channel, or one for all, on the scale of [0, 1] pixels. Without
            them the network gets the pixels in [0, 1].
        preprocess: how pictures are prepared, in full; or
        size: only the size of the input, one side or (height, width).
        name: what reports call it; the type of the network unless given.
        multilabel: each logit answers its own question, by its sigmoid; an image may have any
            number of the classes.
        card: other facts about the model.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        net: nn.Module | Callable[[Tensor], Tensor],
        classes: Sequence[str] | int,
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
        *,
        preprocess: Preprocess | None = None,
        size: int | tuple[int, int] | None = None,
        name: str | None = None,
        card: Mapping[str, Any] | None = None,
        multilabel: bool = False,
    ) -> None:
        super().__init__()
        self.multilabel = multilabel
        module, self.name = _module(net), name or _type_name(net)
        self.classes = _class_names(classes, self.name)
        self.preprocess = _preprocess(preprocess, size, self.name)
        self.card = dict(card or {})
        means, stds = _statistics(mean, std, module, self.preprocess.size)
        shape = (len(means), *self.preprocess.size)
        if not multilabel and len(self.classes) == 2 and _one_logit(module, shape):
            module = TwoLogits(_unsquashed(module, self.name))
        self.net = module
        self.register_buffer("mean", torch.tensor(means).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(stds).view(1, -1, 1, 1), persistent=False)

    @property
    def channels(self) -> int:
        """Colour channels of the input: 3, or 1 for grey models."""
        return self.mean.shape[1]

    def forward(self, x: Images) -> Logits:
        """Logits of images in [0, 1] of the declared size."""
        out = self.net((x - self.mean) / self.std)
        return out if isinstance(out, Tensor) else unwrap(out)


class TwoLogits(nn.Module):
    """A network of one logit z as one of two: (−z/2, z/2), whose difference is z."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Logits:
        out = self.net(x)
        half = (out if isinstance(out, Tensor) else unwrap(out)).reshape(-1, 1) / 2
        return torch.cat([-half, half], 1)


class Function(nn.Module):
    """A function of images as a module; the owner of a method becomes a submodule."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.closed = "a function shows no layers"
        owner = getattr(function, "__self__", None)
        if isinstance(owner, nn.Module):
            self.owner, self.closed = owner, ""

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _module(net: object) -> nn.Module:
    if isinstance(net, nn.Module):
        return net
    if not callable(net) or isinstance(net, type):
        came = f"the class {net.__name__}" if isinstance(net, type) else type(net).__name__
        raise InputError(
            f"the network is {came}, expected a torch module or a function from images to logits."
        )
    return Function(net)


def _type_name(net: object) -> str:
    return str(getattr(net, "__name__", None) or type(net).__name__).strip("<>")


def _class_names(classes: Sequence[str] | int, name: str) -> tuple[str, ...]:
    if isinstance(classes, int):
        classes = numbered(classes)
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        raise InputError(
            f"classes of {name} are {classes!r}, expected a list of names in the order of the "
            "logits, or their number."
        )
    if len(classes) < 2:
        raise InputError(
            f"{name} has {len(classes)} class, expected at least 2. Name both classes of a "
            'one-logit model, classes=["no", "yes"]: its logit z then counts as (−z/2, z/2).'
        )
    return tuple(str(one) for one in classes)


def _preprocess(
    preprocess: Preprocess | None, size: int | Sequence[int] | None, name: str
) -> Preprocess:
    sides = (size, size) if isinstance(size, int) else tuple(size or ())
    if (preprocess is None) == (size is None):
        what = "neither size nor preprocess" if size is None else "both size and preprocess"
        raise InputError(f"{name} has {what}, expected one of them: {EXAMPLE}.")
    if preprocess is not None:
        return preprocess
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise InputError(f"size of {name} is {size!r}, expected 224 or (height, width).")
    return Preprocess((sides[0], sides[1]))


def _statistics(
    mean: Sequence[float] | float | None,
    std: Sequence[float] | float | None,
    net: nn.Module,
    size: tuple[int, int],
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel; one number counts for all of them."""
    lists = [len(v) for v in (mean, std) if isinstance(v, Sequence)]
    count = lists[0] if lists else _channels(net, size)
    means, stds = (
        [float(v) for v in given]
        if isinstance(given, Sequence)
        else [float(usual if given is None else given)] * count
        for given, usual in ((mean, 0.0), (std, 1.0))
    )
    if len(means) != len(stds) or min(stds) <= 0:
        raise InputError(f"mean {tuple(means)} and std {tuple(stds)} do not fit each other.")
    return means, stds


def _channels(net: nn.Module, size: tuple[int, int]) -> int:
    """Colour channels of the input: of the first convolution, else those with which it runs."""
    if any(isinstance(layer, nn.Conv2d) for layer in net.modules()):
        return input_channels(net)
    return 1 if _output(net, (3, *size)) is None and _output(net, (1, *size)) is not None else 3


def input_channels(net: nn.Module) -> int:
    """Colour channels that the first convolution takes, where it takes 1; else 3."""
    first = next((m for m in net.modules() if isinstance(m, nn.Conv2d)), None)
    return 1 if first is not None and first.in_channels == 1 else 3


def _one_logit(net: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the network gives one number per image; False where it cannot be run like this."""
    out = _output(net, shape)
    return out is not None and out.shape in ((2,), (2, 1))


def _output(net: nn.Module, shape: tuple[int, ...]) -> Tensor | None:
    """What the network gives for two black images, None where it cannot be run like this."""
    modes = [(module, module.training) for module in net.modules()]
    like = next(net.parameters(), torch.zeros(()))
    try:
        net.eval()
        with torch.no_grad():
            out = net(torch.zeros((2, *shape), device=like.device, dtype=like.dtype))
        return out if isinstance(out, Tensor) else unwrap(out)
    except Exception:  # reported in full when the classifier is used
        return None
    finally:
        for module, training in modes:
            module.training = training


def _unsquashed(net: nn.Module, name: str) -> nn.Module:
    """The network, unless its last layer is a sigmoid: a probability is not a logit."""
    last = [module for module in net.modules() if not list(module.children())][-1]
    if isinstance(last, nn.Sigmoid):
        raise InputError(
            f"{name} ends in a sigmoid, expected the logit before it. Leave the sigmoid out."
        )
    return net


def numbered(count: int) -> tuple[str, ...]:
    """Names for classes nobody named: "0", "1", …"""
    return tuple(str(i) for i in range(count))


def pick_device(name: str = "auto") -> torch.device:
    """The device of that name; "auto" takes CUDA, then Apple's MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"no device {name!r}. Use auto, cpu, cuda, cuda:1 or mps.") from error
    absent = {
        "cuda": not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count(),
        "mps": not torch.backends.mps.is_available(),
    }
    if absent.get(device.type, False):
        raise InputError(
            f"device {name} is not there on this machine. Use device=auto or device=cpu."
        )
    return device


def unwrap(out: object) -> Tensor:
    """The logits inside a Hugging Face style output object."""
    logits = getattr(out, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise InputError(
        f"the network returned {type(out).__name__}, expected a tensor of logits. Write a factory "
        "FILE.py:FACTORY whose module returns only the logits."
    )
