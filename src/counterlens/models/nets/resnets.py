"""Networks for small images as plain modules, and any timm architecture by name.

Paper: He et al. 2016 (resnet2016) for the residual blocks, Zagoruyko and Komodakis 2016
       (wrn2016) for the wide networks, Xie et al. 2017 (resnext2017) and Hu et al. 2018 (se2018)
       for grouped and gated blocks; Augustin et al. 2020 (ratio2020) trained the first kind.
Differs: the small-image form (3×3 stem, no pooling after it; stride 1, or more for
       photographs), PyTorch's default initialisation. The width of each stage and the activation
       may be chosen.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from counterlens.errors import InputError, MissingExtra
from counterlens.models.nets.digit_net import DigitNet

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU}


class ChannelGate(nn.Module):
    """Squeeze and excitation: channels are weighed by what the whole picture holds."""

    def __init__(self, width: int, *, reduction: int = 16) -> None:
        super().__init__()
        inner = max(8, width // reduction)
        self.down = nn.Conv2d(width, inner, 1)
        self.up = nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x times its channel weights.

        Equation: se2018 (4)   x̃_c = σ(W₂ ReLU(W₁ mean(x)))_c · x_c
        """
        pooled = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.up(torch.relu(self.down(pooled))))


class Basic(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, cin: int, width: int, stride: int, act: type[nn.Module], **_: Any) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act = act()
        self.shortcut = _shortcut(cin, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """act(F(x) + shortcut(x))."""
        y = self.act(self.bn1(self.conv1(x)))
        out: Tensor = self.act(self.bn2(self.conv2(y)) + self.shortcut(x))
        return out


class Bottleneck(nn.Module):
    """1×1, 3×3 (grouped on request), 1×1 to four times the width; the stride is on the 3×3."""

    expansion = 4

    def __init__(
        self,
        cin: int,
        width: int,
        stride: int,
        act: type[nn.Module],
        *,
        groups: int = 1,
        group_width: int | None = None,
        gated: bool = False,
    ) -> None:
        super().__init__()
        inner = width if group_width is None else width * group_width * groups // 64
        cout = width * self.expansion
        self.conv1 = nn.Conv2d(cin, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, cout, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(cout)
        self.gate = ChannelGate(cout) if gated else nn.Identity()
        self.act = act()
        self.shortcut = _shortcut(cin, cout, stride)

    def forward(self, x: Tensor) -> Tensor:
        """act(F(x) + shortcut(x))."""
        y = self.act(self.bn1(self.conv1(x)))
        y = self.act(self.bn2(self.conv2(y)))
        out: Tensor = self.act(self.gate(self.bn3(self.conv3(y))) + self.shortcut(x))
        return out


def _shortcut(cin: int, cout: int, stride: int) -> nn.Module:
    if stride == 1 and cin == cout:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))


class ResNet(nn.Module):
    """Residual network for small pictures: four stages of strides 1, 2, 2, 2."""

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        blocks: Sequence[int],
        classes: int,
        *,
        widths: Sequence[int] = (64, 128, 256, 512),
        activation: str = "relu",
        stem: int = 1,
        **options: Any,
    ) -> None:
        """`stem` is the stride of the first convolution: 1 for 32 pixels, 2 for photographs."""
        super().__init__()
        act = _activation(activation)
        if stem not in (1, 2, 4):
            raise InputError(f"stem is {stem}, expected a stride of 1, 2 or 4.")
        if len(widths) != len(blocks):
            raise InputError(f"widths has {len(widths)} entries, expected {len(blocks)}.")
        cin = widths[0]
        self.conv1 = nn.Conv2d(3, cin, max(3, 2 * stem - 1), stem, max(1, stem - 1), bias=False)
        self.bn1 = nn.BatchNorm2d(cin)
        self.act = act()
        for number, (width, count) in enumerate(zip(widths, blocks, strict=True), 1):
            stage = []
            for i in range(count):
                stride = 2 if number > 1 and i == 0 else 1
                stage.append(block(cin, width, stride, act, **options))
                cin = width * block.expansion
            self.add_module(f"layer{number}", nn.Sequential(*stage))
        self.stages = len(blocks)
        self.linear = nn.Linear(cin, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of normalised pictures."""
        x = self.act(self.bn1(self.conv1(x)))
        for number in range(1, self.stages + 1):
            x = getattr(self, f"layer{number}")(x)
        out: Tensor = self.linear(x.mean((2, 3)))
        return out


class PreActivated(nn.Module):
    """Norm and activation before each of two 3×3 convolutions."""

    def __init__(self, cin: int, cout: int, stride: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.act = act()
        same = stride == 1 and cin == cout
        self.shortcut = None if same else nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """F(x) + shortcut(x), the shortcut taken after the first activation if it projects."""
        y = self.act(self.bn1(x))
        identity = x if self.shortcut is None else self.shortcut(y)
        out: Tensor = self.conv2(self.act(self.bn2(self.conv1(y)))) + identity
        return out


class WideResNet(nn.Module):
    """Pre-activated residual network of three stages, `width` times as wide as the thin one."""

    def __init__(
        self, classes: int, *, depth: int = 28, width: int = 10, activation: str = "relu"
    ) -> None:
        super().__init__()
        if (depth - 4) % 6 or depth < 10:
            raise InputError(f"depth is {depth}, expected 6n + 4 such as 16, 28 or 34.")
        act, cin = _activation(activation), 16
        self.conv1 = nn.Conv2d(3, cin, 3, 1, 1, bias=False)
        blocks: list[nn.Module] = []
        for stage in range(3):
            cout = 16 * width * 2**stage
            for i in range((depth - 4) // 6):
                blocks.append(PreActivated(cin, cout, 2 if stage and not i else 1, act))
                cin = cout
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(cin)
        self.act = act()
        self.linear = nn.Linear(cin, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits of normalised pictures."""
        x = self.act(self.bn(self.blocks(self.conv1(x))))
        out: Tensor = self.linear(x.mean((2, 3)))
        return out


KINDS = ("resnet18", "resnet34", "resnet50", "resnext29", "wideresnet", "digit-net")


def build(architecture: Mapping[str, Any], classes: int) -> nn.Module:
    """The network a card or a recipe describes, freshly initialised.

    Args:
        architecture: `kind` and its options, e.g. {"kind": "resnet18", "widths": [32, 64, 128,
            256]}, {"kind": "wideresnet", "depth": 28, "width": 4}, {"kind": "timm:resnet50"}.
        classes: number of logits.

    >>> sum(p.numel() for p in build({"kind": "resnet18"}, 10).parameters())
    11173962
    """
    options = {key: value for key, value in architecture.items() if key != "kind"}
    kind = architecture.get("kind")
    try:
        match kind:
            case "resnet18":
                return ResNet(Basic, (2, 2, 2, 2), classes, **options)
            case "resnet34":
                return ResNet(Basic, (3, 4, 6, 3), classes, **options)
            case "resnet50":
                return ResNet(Bottleneck, (3, 4, 6, 3), classes, **options)
            case "resnext29":
                settings = {"widths": (64, 128, 256), "groups": 8, "group_width": 16, **options}
                return ResNet(Bottleneck, (3, 3, 3), classes, **settings)
            case "wideresnet":
                return WideResNet(classes, **options)
            case "digit-net":
                return DigitNet(classes, **options)
            case str() if kind.startswith("timm:"):
                return _timm(kind.removeprefix("timm:"), classes, options)
    except TypeError as error:
        raise InputError(f"architecture {kind} does not take these options: {error}.") from None
    raise InputError(
        f"architecture kind is {kind!r}, expected one of {', '.join(KINDS)} or timm:NAME."
    )


def _timm(name: str, classes: int, options: Mapping[str, Any]) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise MissingExtra(f"timm:{name} needs timm. Install it: pip install timm.") from None
    try:
        net: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes, **options)
    except RuntimeError as error:
        raise InputError(f"timm has no architecture {name!r} ({error}).") from None
    return net


def _activation(name: str) -> type[nn.Module]:
    if name not in ACTIVATIONS:
        raise InputError(f"activation is {name!r}, expected one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def flops(net: nn.Module, size: tuple[int, int, int]) -> int:
    """Floating-point operations of one forward pass of one picture (c, h, w).

    Convolutions and linear layers alone, two per multiply-add: what "model FLOPs" means.

    >>> flops(nn.Conv2d(3, 8, 3, padding=1), (3, 32, 32)) == 2 * 3 * 8 * 9 * 32 * 32
    True
    """
    total = 0

    def count(module: nn.Module, _: Any, out: Tensor) -> None:
        nonlocal total
        weight = module.weight
        assert isinstance(weight, Tensor)
        total += 2 * math.prod(weight.shape) * math.prod(out.shape[2:])

    layers = [m for m in net.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    training = net.training
    example = next(net.parameters())
    try:
        with torch.no_grad():
            net.eval()(torch.zeros(1, *size, device=example.device, dtype=example.dtype))
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    return total
