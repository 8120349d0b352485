"""Go on where a counterfactual is not sure yet: from where it is, with half the distance's weight.

The paper searches once, with one weight for all images. Classifiers differ in how sure they can be
made: a robust one is left between two classes by a weight that suits a plain one.

Differs: not in the paper. Its own search comes first and stays the result of every image it
       satisfies.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from counterlens.generators.diffusion.optimise import Ascent, Inputs
from counterlens.types import Images, Scores

_Rows = list[int]


def go_on(
    first: Ascent,
    search: Callable[[_Rows, Inputs, int], Ascent],
    worth: Callable[[_Rows, Images], Scores],
    *,
    enough: float,
    rounds: int,
) -> tuple[Ascent, tuple[int, ...]]:
    """Search again for images that are worth too little; the best, and the round each is from.

    An image is left alone as soon as it is worth enough, so it stays as near as it can. Of one
    that never is, the round in which it was worth most is taken.

    Args:
        search: some images by number, the inputs they are at and the round, to their results.
        worth: some images by number, and their pixels in 8 bits, to their score; the
            distance does not count.
    """
    everyone = list(range(len(first.images)))
    best, at, taken = first, first.inputs, [0] * len(everyone)
    value = worth(everyone, eight_bits(first.images))
    for number in range(1, rounds + 1):
        rows = torch.nonzero(value < enough).flatten().tolist()
        if not rows:
            break
        result = search(rows, rows_of(at, rows), number)
        at = _inputs(at, rows, result.inputs, range(len(rows)))
        now = worth(rows, eight_bits(result.images))
        better = torch.nonzero(now > value[rows]).flatten().tolist()
        chosen = [rows[k] for k in better]
        best = Ascent(
            _put(best.images, chosen, result.images[better]),
            _put(best.scores, chosen, result.scores[better]),
            best.start_images,
            best.start,
            _inputs(best.inputs, chosen, result.inputs, better),
            best.trace,
        )
        value = _put(value, chosen, now[better])
        for row in chosen:
            taken[row] = number
    return best, tuple(taken)


def eight_bits(x: Images) -> Images:
    """As a PNG file holds it."""
    return (x * 255).round() / 255


def rows_of(given: Inputs, rows: Sequence[int]) -> Inputs:
    """Those of some images."""
    some = list(rows)
    return Inputs(given.z[some], given.cond[some], given.null[some])


def _put(old: Tensor, rows: _Rows, new: Tensor) -> Tensor:
    merged = old.clone()
    merged[rows] = new
    return merged


def _inputs(old: Inputs, rows: _Rows, new: Inputs, which: Sequence[int]) -> Inputs:
    some = rows_of(new, which)
    return Inputs(
        _put(old.z, rows, some.z), _put(old.cond, rows, some.cond), _put(old.null, rows, some.null)
    )
