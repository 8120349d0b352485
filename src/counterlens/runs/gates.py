"""Gates: `accuracy.top1>=0.9` turns a run into a release decision."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from counterlens.errors import InputError
from counterlens.runs.number import Number

_FORM = re.compile(
    r"^\s*([\w.\-]+?)(?:\.(low|high))?\s*(>=|<=|>|<)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*$"
)
_NEEDS = (
    (r"groups\.(.+\.)?robust", "--groups and its --attack"),
    (r"groups\.(.+\.)?auroc", "--groups and its --ood set"),
    (r"operating\.costs\..+", "--costs"),
    (r"operating\..+", "its --threshold"),
    (r"slices\..+", "--slices"),
    (r"groups\..+", "--groups with that column"),
    (r"robust\..+\.accuracy", "its --attack"),
    (r"ood\..+\.worst_(auroc|mmc)", "--ood-attack and its --ood set"),
    (r"ood\..+\.(auroc|aupr|fpr95|mmc)", "its --ood set"),
    (r"bias\.(colour|frame)_(\w+_)?flip(_mean)?", "--flips"),
)
_TESTS = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}


@dataclass(frozen=True)
class Gate:
    """One requirement on one number, or on a bound of its interval."""

    key: str
    part: str
    sign: str
    bound: float
    text: str


@dataclass(frozen=True)
class GateResult:
    """A gate and how it went."""

    gate: Gate
    value: float | None
    passed: bool
    why: str


def parse_gate(text: str) -> Gate:
    """Read `KEY>=NUMBER`; `KEY.low` and `KEY.high` gate on the interval."""
    match = _FORM.match(text)
    if not match:
        raise InputError(
            f"the gate {text!r} is not of the form KEY>=NUMBER (or <=, >, <), "
            'for example "accuracy.top1>=0.9" or "accuracy.top1.low>=0.9".'
        )
    key, part, sign, bound = match.groups()
    try:
        limit = float(bound)
    except ValueError:
        raise InputError(f"the gate {text!r}: {bound!r} is not a number.") from None
    return Gate(key, part or "value", sign, limit, text.strip())


def refuse_impossible(gates: Iterable[Gate], possible: Sequence[str]) -> None:
    """Refuse a gate on a number that a run will not have, and name the nearest that it may have.

    Args:
        possible: every key that the run may produce.
    """
    for gate in gates:
        if gate.key in possible:
            continue
        needs = next((text for form, text in _NEEDS if re.fullmatch(form, gate.key)), "")
        near = get_close_matches(gate.key, possible, n=3, cutoff=0.3) or list(possible)[:3]
        raise InputError(
            f"the gate {gate.text!r}: this audit does not measure {gate.key}"
            f"{needs and f' without {needs}'}. The nearest that it does: {', '.join(near)}."
        )


def check_gates(gates: Iterable[Gate], numbers: Mapping[str, Number]) -> list[GateResult]:
    """Try each gate. A number that is missing, or that must not be quoted, fails its gate.

    A gate on a key the run has not fails too, rather than stop a long audit at its end.
    """
    results = []
    for gate in gates:
        number = numbers.get(gate.key)
        if number is None:
            near = get_close_matches(gate.key, numbers, n=3, cutoff=0.4)
            hint = f"; near: {', '.join(near)}" if near else ""
            results.append(GateResult(gate, None, False, f"the run has no such number{hint}"))
            continue
        part = _part(gate, number)
        value = getattr(number, part)
        if value is None:
            results.append(GateResult(gate, None, False, number.reason or "no value"))
        elif number.trust and number.trust.get("verdict") == "do not quote":
            results.append(GateResult(gate, value, False, "the number must not be quoted"))
        else:
            passed = bool(_TESTS[gate.sign](value, gate.bound))
            why = f"{part} {value:.6g}"
            if part != gate.part:
                why += f", the value is only the {number.bound} bound: {number.reason}"
            results.append(GateResult(gate, value, passed, why))
    return results


def _part(gate: Gate, number: Number) -> str:
    """What a gate looks at: where the value is only a bound, the end that is certain."""
    if gate.part == "value" and number.bound == "upper" and gate.sign.startswith(">"):
        return "low"
    if gate.part == "value" and number.bound == "lower" and gate.sign.startswith("<"):
        return "high"
    return gate.part
