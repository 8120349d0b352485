"""Pictures painted in the style of others: texture and colours change, the shape stays.

Paper: Geirhos et al. 2019 (geirhos2019), training on stylised images against the texture bias.
Differs: styles are the other pictures of the set, or any pictures of the user, not paintings.
"""

import numpy as np
import torch

from counterlens.data import open_set
from counterlens.images import ImageSet, Pixels, to_pixels
from counterlens.models.nets import adain
from counterlens.runs import user_path
from counterlens.workflows.repair.edits.made import Edited, donors, with_donor
from counterlens.workflows.repair.groups import Codes, Grouped


def stylised_edit(
    images: ImageSet, rows: Codes, by: Grouped, spec: str, rng: np.random.Generator
) -> Edited:
    """Versions in the style of a donor; unrelated: the picture mirrored.

    Args:
        spec: WEIGHTS, a folder of encoder and decoder, or WEIGHTS@STYLES, where STYLES is a set of
            pictures; without it the styles are those of pictures of another value and class.
    """
    weights, _, others = spec.partition("@")
    network = adain.load(user_path(weights))
    if others:
        styles = open_set(others)
        donor = rng.integers(0, len(styles), len(rows))
        values = by.values[rows]
    else:
        styles = images
        rows, donor = with_donor(rows, donors(rows, by, rng))
        values = by.values[donor]

    def read(j: int) -> Pixels:
        content, style = images.read(int(rows[j])), styles.read(int(donor[j]))
        return painted(network, content, style)

    def unrelated(j: int) -> Pixels:
        return images.read(int(rows[j]))[:, ::-1].copy()

    return Edited(rows, read, unrelated, values)


def painted(network: adain.StyleTransfer, content: Pixels, style: Pixels) -> Pixels:
    """One picture in the style of another."""
    both = [
        torch.from_numpy(one.transpose(2, 0, 1).copy())[None].float() / 255
        for one in (content, style)
    ]
    return to_pixels(network(*both)[0])
