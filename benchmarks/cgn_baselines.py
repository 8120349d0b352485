"""What the CGN study's numbers are compared with: trivial heat maps, equal colours, enlarging.

Three measurements on the test sets, without any network:
- the overlap of heat maps that ignore the image with the digits' masks;
- Double-coloured images whose digit and background have the same mean colour: in how many the
  two differ by a grey level or more, so that a rule (differs from the corner pixel) finds the
  digit's exact pixels;
- how many pixels of the digits differ between the two ways of enlarging 28 to 32 pixels by the
  nearest neighbour: Pillow's (used for all three sets here, and for Coloured by the reference
  code) and PyTorch's (used for the other two by the reference code).

Beside them, from results/cgn_study.json, the medians of the classifiers (seeds 0 to 2).

Result (results/cgn_baselines.json, docs/papers/cgn2021.md): a disc in the centre has a mean IoU
of 0.54 on every set, above every classifier of results/cgn_study.json.
Run: python benchmarks/cgn_baselines.py --mnist known:mnist@mnist.npz
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from counterlens.data.open import open_set
from counterlens.data.synthetic.digit_factors import (
    DOUBLE_BACKGROUND,
    DOUBLE_OBJECT,
    Digits,
    open_digits,
)
from counterlens.data.synthetic.mnist_variants import OBJECT_ABOVE, WHICH, DigitVariant, variant
from counterlens.metrics.saliency import trivial_scores

RESULTS = Path(__file__).parent / "results"
ARMS = ("original", "cgn", "original+cgn")


def trivial(split: DigitVariant) -> dict[str, dict[str, float]]:
    """Mean overlap of each trivial map with the masks of a set."""
    return {
        name: {"iou": round(float(both.mean()), 4), "object_iou": round(float(alone.mean()), 4)}
        for name, (both, alone) in trivial_scores(split.masks).items()
    }


def classifiers(which: str) -> dict[str, dict[str, float]]:
    """Medians over seeds 0 to 2 of the stored classifiers of a set."""
    study = json.loads((RESULTS / "cgn_study.json").read_text())[f"table-{which}/classifiers"]
    return {
        arm: {
            key: sorted(r[key] for r in study if r["arm"] == arm and r["seed"] < 3)[1]
            for key in ("iou", "object_iou")
        }
        for arm in ARMS
    }


def equal_colours(split: DigitVariant) -> dict[str, float]:
    """Images whose digit and background have one mean colour: can the digit be seen?"""
    object_colour = np.asarray(DOUBLE_OBJECT)[split.object]
    background_colour = np.asarray(DOUBLE_BACKGROUND)[split.background]
    rows = np.flatnonzero((object_colour == background_colour).all(1))
    x = split.pixels(rows).to(torch.int16)
    corner = x[:, :, :1, :1]
    distance = (x - corner).abs().amax(1)
    digit = torch.from_numpy(split.digits.grey[rows] / 255 > OBJECT_ABOVE)
    levels = distance.flatten(1).amax(1)
    return {
        "images": len(rows),
        "of": len(split),
        "differ_by_a_level_or_more": int((levels >= 1).sum()),
        "median_levels": float(levels.float().median()),
        "digit_found_exactly": int(((distance > 0) == digit).flatten(1).all(1).sum()),
    }


def enlarging(digits: Digits, spec: str) -> dict[str, float]:
    """Pixels of the binarised digits that differ between Pillow's and PyTorch's enlarging."""
    images = open_set(spec)
    small = torch.from_numpy(np.stack([images.read(i)[..., 0] for i in range(len(images))]))
    small = small[-len(digits) :]
    theirs = interpolate(small[:, None].float() / 255, (32, 32))[:, 0] > OBJECT_ABOVE
    ours = torch.from_numpy(digits.grey / 255 > OBJECT_ABOVE)
    differ = (ours != theirs).float()
    return {
        "share_of_all_pixels": round(float(differ.mean()), 4),
        "share_of_the_digits_pixels": round(float(differ.sum() / theirs.sum()), 4),
    }


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", required=True, help="known:mnist@ROOT")
    parser.add_argument("--to", type=Path, default=RESULTS / "cgn_baselines.json")
    given = parser.parse_args()
    digits = open_digits(given.mnist)
    sets = {which: variant(which, "test", digits) for which in WHICH}
    double = sets["double-coloured"]
    found = {
        "n": {which: len(split) for which, split in sets.items()},
        "trivial_maps": {which: trivial(split) for which, split in sets.items()},
        "classifiers": {which: classifiers(which) for which in WHICH},
        "equal_colours": equal_colours(double),
        "enlarging": enlarging(double.digits, given.mnist.replace("mnist@", "mnist/train@")),
    }
    text = json.dumps(found, indent=1)
    given.to.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
