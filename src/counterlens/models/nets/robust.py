"""The architectures in which robust CIFAR and ImageNet weights are published.

Read off the names and shapes in the file itself, so that a file is never forced into a network it
was not made for; the parameters are then given our names.

Paper: Croce et al. 2021 (robustbench2021) for the collection, Gowal et al. 2020 (gowal2020) for
       the wide networks with TensorFlow's padding.
Differs: nothing but the names of the parameters.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from counterlens.models.nets.resnets import build
from counterlens.models.weights import Weights


@dataclass(frozen=True)
class WeightsLayout:
    """What a file of weights is for.

    Args:
        name: e.g. "wrn-28-10".
        make: builds the network for a number of classes.
        rename: our name for a parameter of the file, None where it is never used.
        head: name of the last layer in the file.
        trained_on: "cifar" or "imagenet", for size and colours.
        normalised: whether this family always normalises colours.
    """

    name: str
    make: Callable[[int], nn.Module]
    rename: Callable[[str], str | None]
    head: str
    trained_on: str = "cifar"
    normalised: bool = False


class PreActBlock(nn.Module):
    """Norm and activation before each convolution; two readings of the shortcut are in use."""

    def __init__(self, cin: int, cout: int, stride: int, *, late: bool) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.late = late
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """F(x) + shortcut, taken of x itself or, if late, after the first activation."""
        y = torch.relu(self.bn1(x))
        identity = self.shortcut(y if self.late else x) if hasattr(self, "shortcut") else x
        out: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(y)))) + identity
        return out


class PreActResNet18(nn.Module):
    """Four stages of two blocks for 32×32 pictures; `late` also norms before the last layer."""

    def __init__(self, classes: int, *, late: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        cin = 64
        for number, width in enumerate((64, 128, 256, 512), 1):
            first = PreActBlock(cin, width, 1 if number == 1 else 2, late=late)
            second = PreActBlock(width, width, 1, late=late)
            self.add_module(f"layer{number}", nn.Sequential(first, second))
            cin = width
        self.bn = nn.BatchNorm2d(cin) if late else None
        self.linear = nn.Linear(cin, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of normalised pictures."""
        x = self.conv1(x)
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        if self.bn is not None:
            x = torch.relu(self.bn(x))
        out: Tensor = self.linear(x.mean((2, 3)))
        return out


def recognise(state: Weights) -> WeightsLayout | None:
    """The layout of these weights, or None where it is none of ours."""
    if "block1.layer.0.conv1.weight" in state:
        return _wide(state)
    if "init_conv.weight" in state and "layer.0.block.0.conv_0.weight" in state:
        return _wide_same(state)
    if "layer4.1.conv1.weight" not in state:
        return None
    if "linear.weight" in state and "bn1.weight" in state:
        return _small_resnet(state)
    if "linear.weight" in state:
        late = "bn.weight" in state
        return WeightsLayout(
            "preactresnet-18", lambda k: PreActResNet18(k, late=late), str, "linear"
        )
    if "fc.weight" in state and state["conv1.weight"].shape[-1] == 7:
        return _large_resnet(state)
    return None


def _wide(state: Weights) -> WeightsLayout:
    blocks = _count(state, r"block1\.layer\.(\d+)\.")
    depth, width = 6 * blocks + 4, state["block1.layer.0.conv1.weight"].shape[0] // 16
    outer = {"bn1": "bn", "fc": "linear", "conv1": "conv1"}

    def rename(key: str) -> str | None:
        if key.startswith("sub_block1."):  # left over in some files, never run
            return None
        inner = re.fullmatch(r"block(\d)\.layer\.(\d+)\.(\w+)\.(\w+)", key)
        if inner is None:
            layer, _, rest = key.partition(".")
            return f"{outer.get(layer, layer)}.{rest}"
        place = (int(inner[1]) - 1) * blocks + int(inner[2])
        return f"blocks.{place}.{inner[3].replace('convShortcut', 'shortcut')}.{inner[4]}"

    architecture = {"kind": "wideresnet", "depth": depth, "width": width}
    return WeightsLayout(f"wrn-{depth}-{width}", lambda k: build(architecture, k), rename, "fc")


def _wide_same(state: Weights) -> WeightsLayout:
    blocks = _count(state, r"layer\.0\.block\.(\d+)\.")
    depth, width = 6 * blocks + 4, state["layer.0.block.0.conv_0.weight"].shape[0] // 16
    outer = {"init_conv": "conv1", "batchnorm": "bn", "logits": "linear"}
    parts = {"batchnorm_0": "bn1", "conv_0": "conv1", "batchnorm_1": "bn2", "conv_1": "conv2"}

    def rename(key: str) -> str | None:
        inner = re.fullmatch(r"layer\.(\d)\.block\.(\d+)\.(\w+)\.(\w+)", key)
        if inner is None:
            layer, _, rest = key.partition(".")
            return f"{outer.get(layer, layer)}.{rest}"
        stage, i = int(inner[1]), int(inner[2])
        part = parts.get(inner[3], inner[3])
        padded = ".1" if stage and not i and part == "conv1" else ""
        return f"blocks.{stage * blocks + i}.{part}{padded}.{inner[4]}"

    architecture = {"kind": "wideresnet", "depth": depth, "width": width, "activation": "silu"}

    def make(classes: int) -> nn.Module:
        return pad_like_tensorflow(build(architecture, classes))

    return WeightsLayout(f"wrn-{depth}-{width}", make, rename, "logits", normalised=True)


def pad_like_tensorflow(net: nn.Module) -> nn.Module:
    """Give the strided 3×3 convolutions of a wide network padding at the far edges alone."""
    for block in net.get_submodule("blocks").children():
        conv = block.get_submodule("conv1")
        assert isinstance(conv, nn.Conv2d)
        if conv.stride == (2, 2):
            unpadded = nn.Conv2d(conv.in_channels, conv.out_channels, 3, 2, 0, bias=False)
            block.add_module("conv1", nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), unpadded))
    return net


def _small_resnet(state: Weights) -> WeightsLayout:
    bottleneck = "layer1.0.conv3.weight" in state
    deep = _count(state, r"layer3\.(\d+)\.") == 6
    depth = 50 if bottleneck else 34 if deep else 18
    return WeightsLayout(
        f"resnet-{depth}", lambda k: build({"kind": f"resnet{depth}"}, k), str, head="linear"
    )


def _large_resnet(state: Weights) -> WeightsLayout | None:
    from torchvision import models

    bottleneck = "layer1.0.conv3.weight" in state
    blocks = tuple(_count(state, rf"layer{stage}\.(\d+)\.") for stage in range(1, 5))
    names: dict[tuple[bool, tuple[int, ...]], str] = {
        (False, (2, 2, 2, 2)): "resnet18",
        (False, (3, 4, 6, 3)): "resnet34",
        (True, (3, 4, 6, 3)): "resnet50",
        (True, (3, 4, 23, 3)): "resnet101",
        (True, (3, 8, 36, 3)): "resnet152",
    }
    name = names.get((bottleneck, blocks))
    if name is None:
        return None
    width = state["layer1.0.conv1.weight"].shape[0]
    if width == 128 and bottleneck:
        name = f"wide_{name}_2"

    def make(classes: int) -> nn.Module:
        net: nn.Module = models.get_model(name, weights=None, num_classes=classes)
        return net

    return WeightsLayout(name, make, str, "fc", trained_on="imagenet", normalised=True)


def _count(state: Weights, pattern: str) -> int:
    return len({match[1] for key in state if (match := re.match(pattern, key))})
