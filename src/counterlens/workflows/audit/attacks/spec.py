"""The attack specs of an audit, as balls."""

from counterlens.ball import Ball
from counterlens.notation import parse_ball


def parse_attack(text: str, numbers: float = float("inf")) -> Ball:
    """`l2:0.5` or `linf:8/255` as a ball that holds a part of the images of so many numbers.

    >>> parse_attack("linf:8/255").radius == 8 / 255
    True
    """
    norm, radius = parse_ball(text, numbers)
    return Ball(norm, radius)  # type: ignore[arg-type]
