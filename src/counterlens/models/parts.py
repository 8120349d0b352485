"""Parts of a classifier: its last linear layer, the features that enter it, a layer for CAMs.

All three are read from the network while it runs, not from a table of architectures, and
checked: the head is the linear layer whose output *is* the logits; the CAM layer is the last one
with a spatial grid from which every position reaches the features. (In a ViT that reads its class
token, the last block's patches reach nothing: there it is the norm before the last attention.)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterlens.classifier import Classifier
from counterlens.errors import InputError
from counterlens.types import Images

Layout = Literal["channels first", "channels last", "tokens"]

_SKIPPED = (
    *(nn.Identity, nn.Dropout, nn.Dropout2d, nn.Flatten, nn.Linear, nn.Softmax),
    *(nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)


@dataclass(frozen=True)
class CamLayer:
    """A layer whose output lies on a grid over the picture.

    Args:
        name: dotted name inside `classifier.net`; hook `classifier.net.get_submodule(name)`.
        layout: b c h w, b h w c, or b tokens d.
        grid: rows and columns of the grid.
        prefix: tokens before the grid (class token, registers); 0 unless tokens.
    """

    name: str
    layout: Layout
    grid: tuple[int, int]
    prefix: int = 0

    def maps(self, output: Float[Tensor, "..."]) -> Float[Tensor, "b d h w"]:
        """The layer's output, or its gradient, as maps b × d × h × w."""
        if self.layout == "channels first":
            return output
        if self.layout == "channels last":
            return output.permute(0, 3, 1, 2)
        patches = output[:, self.prefix :]
        return patches.transpose(1, 2).reshape(len(output), -1, *self.grid)


def head(classifier: Classifier) -> nn.Linear:
    """The last linear layer: logits = head(features).

    A head written as a 1×1 convolution is given as the linear layer with the same weights.
    """
    layer = classifier.net.get_submodule(head_name(classifier.net, len(classifier.classes)))
    if isinstance(layer, nn.Linear):
        return layer
    assert isinstance(layer, nn.Conv2d)
    linear = nn.Linear(layer.in_channels, layer.out_channels, bias=layer.bias is not None)
    linear.weight = nn.Parameter(layer.weight.flatten(1), requires_grad=layer.weight.requires_grad)
    if layer.bias is not None:
        linear.bias = nn.Parameter(layer.bias, requires_grad=layer.bias.requires_grad)
    return linear


def head_name(net: nn.Module, classes: int) -> str:
    """Dotted name of the last linear layer, or of the 1×1 convolution that serves as one."""
    _refuse_closed(net, "features")
    names: list[str] = [name for name, layer in net.named_modules() if _outputs(layer) == classes]
    linear: list[str] = [name for name in names if isinstance(net.get_submodule(name), nn.Linear)]
    if not names:
        raise InputError(
            f"{type(net).__name__} has no linear layer of {classes} outputs, so it has no features "
            "in the sense of a last linear layer."
        )
    return (linear or names)[-1]


def _refuse_closed(net: nn.Module, what: str) -> None:
    """Raise where layers cannot be looked into: a module says why in `closed`."""
    for layer in net.modules():
        why = getattr(layer, "closed", "")
        if isinstance(layer, torch.jit.ScriptModule):
            why = "layers of TorchScript cannot be looked into"
        if isinstance(why, str) and why:
            raise InputError(
                f"the model has no {what}: {why}. Give the network itself: FILE.py:FACTORY."
            )


def features(classifier: Classifier, x: Images) -> Float[Tensor, "b d"]:
    """What enters the last linear layer; differentiable in x.

    Refused if the logits are not that layer's output, e.g. the mean of two heads.
    """
    name = head_name(classifier.net, len(classifier.classes))
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((inputs[0], output))

    with _hooked([(classifier.net.get_submodule(name), keep)]):
        logits = classifier(x)
    if len(seen) == 1:
        entered, left = seen[0]
        if left.numel() == logits.numel() and torch.equal(
            left.detach().reshape(logits.shape), logits.detach()
        ):
            return entered.flatten(1)
    raise InputError(
        f"{classifier.name}: the logits are not the output of its last linear layer {name}, so it "
        "has no features in that sense."
    )


class FeatureNet(nn.Module):
    """What enters the last linear layer, as a network of its own that can be copied and moved."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        features(classifier, _probe(classifier).detach())  # refused here if there are none
        self.classifier = classifier

    def forward(self, x: Images) -> Float[Tensor, "b d"]:
        """Features of images in [0, 1]."""
        seen: list[Tensor] = []

        def keep(_: nn.Module, inputs: tuple[Tensor, ...], __: Tensor) -> None:
            seen.append(inputs[0])

        net = self.classifier.net
        name = head_name(net, len(self.classifier.classes))
        with _hooked([(net.get_submodule(name), keep)]):
            self.classifier(x)
        return seen[0].flatten(1)


def cam_layer(classifier: Classifier, *, least: int = 1) -> CamLayer:
    """The default layer for class activation maps.

    Args:
        least: rows and columns that the grid should have: where the last layer's are fewer, the
            last finer one that all of the network passes through is taken, if there is any.
    """
    _refuse_closed(classifier.net, "layer for a CAM")
    height, width = classifier.preprocess.size
    x = _probe(classifier)
    outputs: list[tuple[str, nn.Module, Tensor]] = []
    hooks = [
        (layer, _recorder(name, outputs))
        for name, layer in classifier.net.named_modules()
        if name and not isinstance(layer, _SKIPPED)
    ]
    with torch.enable_grad(), _hooked(hooks):
        score = _score(classifier, x)
    places = [(name, out, _grid(out, layer, (height, width))) for name, layer, out in outputs]
    gridded = [(name, out, grid) for name, out, grid in places if grid is not None]
    if gridded and score.requires_grad:
        grads = torch.autograd.grad(score, [out for _, out, _ in gridded], allow_unused=True)
        candidates: list[CamLayer] = []
        for (name, _, grid), grad in zip(reversed(gridded), reversed(grads), strict=True):
            layout, size, prefix = grid
            place = CamLayer(name, layout, size, prefix)
            if grad is not None and _reaches(place.maps(grad)):
                if min(size) >= least and (not candidates or _is_cut(classifier, place)):
                    return place
                candidates.append(place)
        if candidates:
            return candidates[0]
    raise InputError(
        f"{classifier.name} has no layer whose output lies on a grid over the picture, so no CAM "
        "can be drawn."
    )


def _is_cut(classifier: Classifier, place: CamLayer) -> bool:
    """Whether everything passes through a layer: with it held, the picture has no influence."""
    x = _probe(classifier)
    layer = classifier.net.get_submodule(place.name)
    handle = layer.register_forward_hook(lambda _, __, output: output.detach())
    try:
        with torch.enable_grad():
            score = _score(classifier, x)
            if not score.requires_grad:
                return True
            (grad,) = torch.autograd.grad(score, x, allow_unused=True)
    finally:
        handle.remove()
    return grad is None or not bool(grad.abs().max() > 0)


def _probe(classifier: Classifier) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (1, classifier.channels, *classifier.preprocess.size)
    x = torch.rand(shape, generator=generator).to(classifier.mean)
    return x.requires_grad_()


def _score(classifier: Classifier, x: Tensor) -> Tensor:
    """A generic number that depends on the picture through all features.

    Features rather than logits where there are some: a fresh head may be all zeros.
    """
    try:
        out = features(classifier, x)
    except InputError:
        out = classifier(x)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(out.shape, generator=generator).to(out)
    return (weights * out).sum()


def _recorder(name: str, outputs: list[tuple[str, nn.Module, Tensor]]) -> Any:
    def record(layer: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim in (3, 4) and output.requires_grad:
            outputs.append((name, layer, output))

    return record


def _grid(
    output: Tensor, layer: nn.Module, picture: tuple[int, int]
) -> tuple[Layout, tuple[int, int], int] | None:
    """How an output lies on the picture, or None where it does not or the layer is no good.

    Only layers with parts of their own and norms count among token layers: queries, keys and
    values have the same shape but are not what the next layer sees.
    """
    whole = any(True for _ in layer.children())
    if output.ndim == 3:
        _, tokens, _ = output.shape
        grid = _token_grid(tokens, picture)
        if grid is None or not (whole or "norm" in type(layer).__name__.lower()):
            return None
        size, prefix = grid
        return "tokens", size, prefix
    _, first, second, third = output.shape
    if type(layer) is nn.LayerNorm:  # it norms the last axis, so that one holds the channels
        return ("channels last", (first, second), 0) if _fits((first, second), picture) else None
    if _fits((second, third), picture):
        return "channels first", (second, third), 0
    if _fits((first, second), picture):
        return "channels last", (first, second), 0
    return None


def _fits(grid: tuple[int, int], picture: tuple[int, int]) -> bool:
    """Whether rows and columns are those of the picture at some coarser step, more than one."""
    rows, columns = grid
    height, width = picture
    if rows * columns < 2 or rows > height or columns > width:
        return False
    # a step of s pixels gives between height / s − 1 and height / s + 1 rows
    return abs(rows * width - columns * height) <= max(height, width)


def _token_grid(tokens: int, picture: tuple[int, int]) -> tuple[tuple[int, int], int] | None:
    """Rows and columns of the largest grid of the picture's shape that fits, and what is left."""
    height, width = picture
    for rows in range(int((tokens * height / width) ** 0.5 + 1e-9), 0, -1):
        columns = round(rows * width / height)
        rest = tokens - rows * columns
        if columns and rest >= 0:
            return ((rows, columns), rest) if rows * columns > 1 and rest <= 16 else None
    return None


def _reaches(gradient: Float[Tensor, "1 d h w"]) -> bool:
    """Whether most positions of the grid have an influence."""
    return (gradient.abs().sum(1) > 0).float().mean().item() > 0.5


def _outputs(layer: nn.Module) -> int | None:
    """Outputs of a linear layer or a 1×1 convolution; None for any other layer."""
    if isinstance(layer, nn.Linear):
        return layer.out_features
    if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1:
        return layer.out_channels
    return None


@contextmanager
def _hooked(hooks: list[tuple[nn.Module, Any]]) -> Iterator[None]:
    """Forward hooks that are gone afterwards, whatever happens."""
    handles = [layer.register_forward_hook(hook) for layer, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
