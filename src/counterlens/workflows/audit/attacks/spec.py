"""What an audit is told of attacks, as numbers: balls, radii, budgets."""

import re
from collections.abc import Sequence
from fractions import Fraction

from counterlens.ball import Ball, check_radius
from counterlens.errors import InputError

NORMS = {"l1": "l1", "l2": "l2", "linf": "linf", "l∞": "linf"}


def parse_attack(text: str, numbers: float = float("inf")) -> Ball:
    """`l2:0.5` or `linf:8/255` as a ball that holds a part of the images of so many numbers.

    >>> parse_attack("linf:8/255").radius == 8 / 255
    True
    """
    norm, _, size = text.partition(":")
    try:
        radius = float(Fraction(size.strip()))
    except (ValueError, ZeroDivisionError):
        radius = -1.0
    if norm.strip() not in NORMS or radius <= 0:
        raise InputError(
            f"attack {text!r} is not NORM:RADIUS with a radius above 0, "
            "for example l2:0.5, linf:8/255 or l1:12."
        )
    ball = Ball(NORMS[norm.strip()], radius)  # type: ignore[arg-type]
    check_radius(text, ball.norm, radius, numbers)
    return ball


def split_attacks(texts: Sequence[str]) -> tuple[str, ...]:
    """`l2:0.25,0.5,1` as one attack per radius, the smaller ones of a norm first.

    >>> split_attacks(["l2:1,0.5", "linf:8/255"])
    ('l2:0.5', 'l2:1', 'linf:8/255')
    """
    found: list[str] = []
    for text in texts:
        norm, colon, radii = text.partition(":")
        parts = [f"{norm.strip()}{colon}{radius.strip()}" for radius in radii.split(",")]
        found += parts if colon else [text]
    order = list(dict.fromkeys(text.partition(":")[0] for text in found))
    return tuple(
        sorted(
            dict.fromkeys(found),
            key=lambda text: (
                order.index(text.partition(":")[0]),
                float(parse_attack(text).radius),
            ),
        )
    )


def seconds(budget: str | None) -> float | None:
    """`90`, `90s`, `10m` or `1.5h` in seconds.

    >>> seconds("10m")
    600.0
    """
    if budget is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", budget)
    if not found:
        raise InputError(f"budget is {budget!r}, expected a time such as 90s, 10m or 1h.")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]
