"""The shipped sample sets: packs under zoo/samples, each with a provenance card, and textures.

`cifar10`: 1,000 CIFAR-10 test images, the first 100 of each class. `cifar10-calibration`: the
last 2,000 CIFAR-10 training images, for temperatures. `textures`: patterns drawn by code when
they are read, at any size (see textures.py). `pets`: photographs of 37 breeds with masks.
"""

from dataclasses import replace

import numpy as np

from counterlens import zoo
from counterlens.data.provenance import COLUMNS
from counterlens.data.sources.packed import open_pack
from counterlens.data.specs import check_sample
from counterlens.data.synthetic.textures import textures
from counterlens.images import ImageSet
from counterlens.runs import read_json


def open_sample(which: str, *, name: str, size: tuple[int, int]) -> ImageSet:
    """A shipped set; where its images come from is on its provenance card."""
    if which == "textures":
        return textures(name, size)
    check_sample(which)
    opened = open_pack(zoo.sample(which), name=name)
    card = read_json(zoo.sample(which).with_suffix(".json"))
    facts = {key: np.full(len(opened), card[key]) for key in COLUMNS if card.get(key)}
    return replace(opened, extra={**opened.extra, **facts})
