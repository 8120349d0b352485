"""Number: a value that never travels without its n, its interval and its protocol."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal

from counterlens.runs.files import short_name

Bound = Literal["upper", "lower"]
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Number:
    """One measured scalar.

    Args:
        value: the measurement; None when it could not be made, then `reason` says why.
        n: how many images (or points, or pairs) it rests on.
        low, high: 95 % interval; equal to `value` when exact.
        protocol: how it was measured, in one readable line.
        reason: why there is no value, or why it is only a bound.
        trust: for attack results: verdict, flags and reasons.
        bound: "upper" or "lower" where the search behind the value was cut short, so that the
            truth is known only to lie on that side of it; `low` and `high` enclose it.
    """

    value: float | None
    n: int
    low: float | None
    high: float | None
    protocol: str
    reason: str | None = None
    trust: Mapping[str, Any] | None = field(default=None)
    bound: Bound | None = None

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"{name} is {number}; a Number is finite, or None with a reason")
        if self.value is None and not self.reason:
            raise ValueError("a Number without a value needs a reason")
        if self.bound not in (None, "upper", "lower"):
            raise ValueError(f"bound is {self.bound!r}, expected upper or lower")
        if self.bound is not None and not self.reason:
            raise ValueError("a Number that is only a bound needs a reason")
        if None not in (self.value, self.low, self.high) and not (
            self.low - 1e-12 <= self.value <= self.high + 1e-12  # type: ignore[operator]
        ):
            raise ValueError(f"{self.value} lies outside its interval [{self.low}, {self.high}]")

    @classmethod
    def missing(cls, reason: str, protocol: str, n: int = 0) -> "Number":
        """A number that could not be measured."""
        return cls(None, n, None, None, protocol, reason)

    @classmethod
    def share(cls, hits: int, n: int, protocol: str, *, z: float = _Z) -> "Number":
        """A share of independent cases with its Wilson interval; `z` is that of another level.

        >>> half = Number.share(5, 10, "five of ten")
        >>> half.value, round(half.low, 3), round(half.high, 3)
        (0.5, 0.237, 0.763)
        """
        if not n:
            return cls.missing("there are no cases", protocol)
        p, scale = hits / n, 1 + z**2 / n
        middle = (p + z**2 / (2 * n)) / scale
        half = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n * n)) / scale
        low, high = min(max(middle - half, 0.0), p), max(min(middle + half, 1.0), p)
        return cls(p, n, low, high, f"{protocol}; Wilson interval")

    def to_json(self) -> dict[str, Any]:
        """The form in which result.json stores it."""
        out: dict[str, Any] = {
            "value": self.value,
            "n": self.n,
            "low": self.low,
            "high": self.high,
            "protocol": self.protocol,
        }
        if self.reason is not None:
            out["reason"] = self.reason
        if self.trust is not None:
            out["trust"] = dict(self.trust)
        if self.bound is not None:
            out["bound"] = self.bound
        return out

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Number":
        """Read back what `to_json` wrote; ValueError, TypeError or KeyError for anything else."""
        for name, kind in (("n", int), ("protocol", str)):
            if not isinstance(row[name], kind):
                raise TypeError(f"{name} is {row[name]!r}")
        if not isinstance(row.get("trust"), (Mapping, NoneType)):
            raise TypeError(f"trust is {row['trust']!r}")
        bound, reason = row.get("bound"), row.get("reason")
        if bound is None and _cut_short(row.get("trust") or {}):
            bound, reason = "upper", "budget ended"
        return cls(
            row["value"],
            row["n"],
            row["low"],
            row["high"],
            row["protocol"],
            reason,
            row.get("trust"),
            bound,
        )


def _cut_short(trust: Mapping[str, Any]) -> bool:
    """Whether an older run stored the robust accuracy of an attack whose budget ended first."""
    flags = trust.get("flags")
    return any(
        isinstance(flag, Mapping)
        and (flag.get("name"), flag.get("status")) == ("complete", "weak")
        and "settled" in str(flag.get("detail"))
        for flag in (flags if isinstance(flags, list) else ())
    )


def in_words(number: Number) -> str:
    """A number with interval, n and verdict as plain text, for files that other programs read.

    >>> in_words(Number(0.9333, 15, 0.7018, 0.9881, "p"))
    '0.9333 [0.7018, 0.9881], n = 15'
    >>> in_words(Number.missing("no labels", "p"))
    'not measured: no labels'
    """
    if number.value is None:
        return f"not measured: {number.reason}"
    sign = {"upper": "≤ ", "lower": "≥ "}.get(number.bound or "", "")
    known = number.low is not None and number.high is not None
    interval = f" [{number.low:.4g}, {number.high:.4g}]" if known else ""
    word = (number.trust or {}).get("verdict")
    verdict = f", {word}" if word else ""
    return f"{sign}{number.value:.4g}{interval}, n = {number.n:,}{verdict}"


def key_part(text: str) -> str:
    """A piece of a result key: `l2:8/255` becomes `l2-8_255`.

    >>> key_part("linf:8/255"), key_part("street view")
    ('linf-8_255', 'street_view')
    """
    text = text.strip().replace("/", "_").replace(":", "-").replace(" ", "_")
    return short_name("".join(c if c.isalnum() or c in "-_." else "_" for c in text))
