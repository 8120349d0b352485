"""Label spaces: which outputs of a model stand for which classes of the data.

Declared facts (ImageNet-1k by WordNet id, its 200-class subsets, coarse groups, CIFAR names) and
the matching of any folder's class names with any model's. Nothing in here knows torch;
`counterlens.metrics.label_map` applies a `LabelMap` to logits.
"""

from counterlens.label_spaces.cifar import CIFAR10, CIFAR100
from counterlens.label_spaces.imagenet import (
    Synset,
    imagenet,
    imagenet_groups,
    imagenet_index,
    imagenet_names,
)
from counterlens.label_spaces.maps import SPACES, LabelMap, declared_map, everything, members
from counterlens.label_spaces.matching import Match, Matching, match_classes

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "SPACES",
    "LabelMap",
    "Match",
    "Matching",
    "Synset",
    "declared_map",
    "everything",
    "imagenet",
    "imagenet_groups",
    "imagenet_index",
    "imagenet_names",
    "match_classes",
    "members",
]
