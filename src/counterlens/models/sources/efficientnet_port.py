"""EfficientNet weights of the older PyTorch port, under timm's names.

The port counts blocks through (`_blocks.7._bn1`), timm by stage (`blocks.3.2.bn2`), and a block's
norms are numbered from the first convolution that exists. The map below is by name; nothing is
matched by order or shape.
"""

import re

from torch import nn

from counterlens.models.weights import Weights

_OUTER = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_EXPANDING = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_se_reduce": "se.conv_reduce",
    "_se_expand": "se.conv_expand",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_PLAIN = {  # the first stage widens nothing, so its blocks lack the first convolution
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_se_reduce": "se.conv_reduce",
    "_se_expand": "se.conv_expand",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}


def is_port(state: Weights) -> bool:
    """Whether the weights carry the port's names."""
    return "_conv_stem.weight" in state and "_fc.weight" in state


def rename_port(state: Weights, net: nn.Module) -> Weights:
    """The same tensors under timm's names; a name without a counterpart stays, to be reported."""
    stages = net.get_submodule("blocks")
    places = [f"blocks.{s}.{i}" for s, stage in stages.named_children() for i in _indices(stage)]
    expanding = {int(k.split(".")[1]) for k in state if "._expand_conv." in k}
    renamed: Weights = {}
    for key, value in state.items():
        renamed[_renamed(key, places, expanding)] = value
    return renamed


def _indices(stage: nn.Module) -> list[str]:
    return [name for name, _ in stage.named_children()]


def _renamed(key: str, places: list[str], expanding: set[int]) -> str:
    block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key)
    if block is None:
        layer, _, rest = key.partition(".")
        return f"{_OUTER.get(layer, layer)}.{rest}"
    number, layer, rest = int(block[1]), block[2], block[3]
    names = _EXPANDING if number in expanding else _PLAIN
    if number >= len(places) or layer not in names:
        return key
    return f"{places[number]}.{names[layer]}.{rest}"
