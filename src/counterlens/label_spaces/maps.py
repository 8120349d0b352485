"""LabelMap: the declared relation between a model's outputs and the classes of a protocol.

Paper: Hendrycks et al. 2021 (ImageNet-A, -O: 200 of 1000 classes); Geirhos et al. 2019 (16
    categories, mean probability); Xiao et al. 2021 (ImageNet-9, arg-max then map);
    Tsipras et al. 2019 (Restricted ImageNet, nine ranges of classes).
Differs: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from counterlens.errors import InputError
from counterlens.label_spaces.imagenet import imagenet, imagenet_index

SIXTEEN = (
    *("airplane", "bear", "bicycle", "bird", "boat", "bottle", "car", "cat"),
    *("chair", "clock", "dog", "elephant", "keyboard", "knife", "oven", "truck"),
)
NINE = (
    *("dog", "bird", "vehicle", "reptile", "carnivore"),
    *("insect", "instrument", "primate", "fish"),
)
RESTRICTED = {  # first and last class, both included
    "dog": (151, 268),
    "cat": (281, 285),
    "frog": (30, 32),
    "turtle": (33, 37),
    "bird": (80, 100),
    "monkey": (365, 382),
    "fish": (389, 397),
    "crab": (118, 121),
    "insect": (300, 319),
}
SUBSETS = {"imagenet-a": "A", "imagenet-o": "O", "imagenet-r": "R"}

MapRule = Literal["subset", "mean", "argmax"]


@dataclass(frozen=True)
class LabelMap:
    """Which outputs of a model make up each class of a protocol.

    Args:
        name: of the protocol, for the reader.
        classes: of the protocol.
        groups: outputs of the model that stand for each class.
        rule: "subset" keeps these columns and drops the others before arg-max and softmax;
            "mean" averages the probabilities of a group; "argmax" takes the model's answer
            over all its outputs and looks up its group: an answer in no group is wrong.
    """

    name: str
    classes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    rule: MapRule

    def __post_init__(self) -> None:
        if len(self.classes) != len(self.groups) or not all(self.groups):
            raise InputError(
                f"label map {self.name} has {len(self.classes)} classes and {len(self.groups)} "
                "groups, expected a group of one or more outputs for each class."
            )
        if self.rule == "subset" and any(len(group) != 1 for group in self.groups):
            raise InputError(f"label map {self.name} keeps columns: one output for each class.")

    @property
    def columns(self) -> tuple[int, ...]:
        """The outputs of a subset map, in the order of its classes."""
        return tuple(group[0] for group in self.groups)

    def mapping(self, outputs: int) -> tuple[int, ...]:
        """The class of each of a model's outputs, −1 for none."""
        of = [-1] * outputs
        for k, group in enumerate(self.groups):
            for i in group:
                of[i] = k
        return tuple(of)


SPACES: dict[str, MapRule] = {
    "imagenet-a": "subset",
    "imagenet-o": "subset",
    "imagenet-r": "subset",
    "cue-conflict": "mean",
    "stylized-imagenet-16": "mean",
    "imagenet-9": "argmax",
    "restricted-imagenet": "argmax",
}
"""The declared spaces over ImageNet-1k and how they turn answers into theirs."""


def members(space: str) -> dict[str, tuple[int, ...]]:
    """The ImageNet-1k labels of each class of a declared space.

    >>> len(members("imagenet-a")), members("restricted-imagenet")["frog"]
    (200, (30, 31, 32))
    """
    synsets = imagenet()
    if space in SUBSETS:
        letter = SUBSETS[space]
        return {s.wnid: (i,) for i, s in enumerate(synsets) if letter in s.subsets}
    if space in ("cue-conflict", "stylized-imagenet-16"):
        return {c: tuple(i for i, s in enumerate(synsets) if s.sixteen == c) for c in SIXTEEN}
    if space == "imagenet-9":
        return {c: tuple(i for i, s in enumerate(synsets) if s.nine == c) for c in NINE}
    if space == "restricted-imagenet":
        return {c: tuple(range(low, high + 1)) for c, (low, high) in RESTRICTED.items()}
    raise InputError(f"label space {space} is not declared, expected one of {', '.join(SPACES)}.")


def declared_map(space: str, model_classes: Sequence[str]) -> LabelMap | None:
    """A declared space over a model's outputs; None where the model has not ImageNet's classes."""
    labels = imagenet_index(model_classes)
    if labels is None:
        return None
    output = {label: i for i, label in enumerate(labels) if label >= 0}
    wanted = members(space)
    groups = {c: tuple(output[k] for k in group if k in output) for c, group in wanted.items()}
    if not all(groups.values()):  # a model of part of ImageNet
        return None
    return LabelMap(space, tuple(groups), tuple(groups.values()), SPACES[space])


def everything(model_classes: Sequence[str]) -> LabelMap:
    """All classes of the model, as they are."""
    groups = tuple((i,) for i in range(len(model_classes)))
    return LabelMap(f"all {len(groups)} classes", tuple(model_classes), groups, "subset")
