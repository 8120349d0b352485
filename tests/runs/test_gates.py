"""Gates against plain comparison of floats."""

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterlens.errors import InputError
from counterlens.runs import Number, check_gates, key_part, parse_gate

SIGNS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
values = st.floats(-1e6, 1e6, allow_nan=False)
names = st.lists(st.text(min_size=1).map(key_part).filter(bool), min_size=2, max_size=3).map(
    ".".join
)


@given(names, st.sampled_from(["", ".low", ".high"]), st.sampled_from(list(SIGNS)), values)
def test_a_gate_is_read_back_from_its_text(key: str, part: str, sign: str, bound: float) -> None:
    if key.endswith((".low", ".high")) or not key.isascii():
        return
    gate = parse_gate(f" {key}{part} {sign} {bound!r} ")
    assert (gate.key, gate.sign, gate.bound) == (key, sign, bound)
    assert gate.part == (part.removeprefix(".") or "value")


@given(values, st.floats(0, 10), st.floats(0, 10), st.sampled_from(list(SIGNS)), values)
def test_a_gate_decides_as_the_comparison_does(
    value: float, below: float, above: float, sign: str, bound: float
) -> None:
    number = Number(value, 9, value - below, value + above, "p")
    for part, actual in (("", value), (".low", number.low), (".high", number.high)):
        (result,) = check_gates([parse_gate(f"a.b{part}{sign}{bound!r}")], {"a.b": number})
        assert result.passed is SIGNS[sign](actual, bound)
        assert result.value == actual


@pytest.mark.parametrize(
    "text",
    ["", "accuracy", "accuracy.top1=0.9", "accuracy.top1>=", ">=0.9", "a.b>=1.2.3", "a.b>=x"],
)
def test_what_is_no_gate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="the gate"):
        parse_gate(text)


def test_a_number_that_must_not_be_quoted_fails_its_gate() -> None:
    number = Number(0.9, 10, 0.8, 0.95, "p", trust={"verdict": "do not quote"})
    (result,) = check_gates(
        [parse_gate("robust.l2-0.5.accuracy>=0.1")], {"robust.l2-0.5.accuracy": number}
    )
    assert not result.passed
    assert "quoted" in result.why


def test_a_number_without_value_fails_its_gate_and_says_why() -> None:
    number = Number.missing("too few images", "p")
    (result,) = check_gates([parse_gate("a.b<=1")], {"a.b": number})
    assert (result.passed, result.why) == (False, "too few images")


def test_a_gate_on_a_bound_that_is_not_known_fails() -> None:
    (result,) = check_gates([parse_gate("a.b.low>=0")], {"a.b": Number(1.0, 3, None, None, "p")})
    assert not result.passed


def test_a_mistyped_key_fails_and_names_its_neighbour() -> None:
    (result,) = check_gates(
        [parse_gate("accuracy.top_1>=0.5")], {"accuracy.top1": Number(1, 1, 1, 1, "p")}
    )
    assert not result.passed
    assert "accuracy.top1" in result.why


def test_keys_with_radii_can_be_named() -> None:
    gate = parse_gate("robust.linf-8_255.accuracy.low>=4.5e-1")
    assert (gate.key, gate.part, gate.bound) == ("robust.linf-8_255.accuracy", "low", 0.45)


@pytest.mark.parametrize(
    ("bound", "text", "passed"),
    [
        ("upper", "robust.accuracy>=0.35", False),  # all that is certain is the lower end
        ("upper", "robust.accuracy>=0.05", True),
        ("upper", "robust.accuracy<=0.4", True),  # an upper bound below the limit is enough
        ("lower", "robust.accuracy<=0.4", False),
        ("lower", "robust.accuracy>=0.35", True),
        (None, "robust.accuracy>=0.35", True),
    ],
)
def test_while_a_number_is_only_a_bound_a_gate_looks_at_the_certain_end(bound, text, passed):
    number = Number(0.375, 48, 0.1, 0.5, "p", "budget ended" if bound else None, bound=bound)
    (result,) = check_gates([parse_gate(text)], {"robust.accuracy": number})
    assert result.passed is passed, result
    assert Number.from_json(number.to_json()) == number


def test_an_older_run_whose_budget_ended_holds_a_bound():
    detail = "the budget ended first: 0% of the points are settled"
    flag = {"name": "complete", "status": "weak", "value": 0.0, "detail": detail}
    row = {"value": 0.375, "n": 48, "low": 0.0, "high": 0.5, "protocol": "p"}
    assert Number.from_json(row | {"trust": {"flags": [flag]}}).bound == "upper"
    assert Number.from_json(row | {"trust": {"flags": [flag | {"status": "ok"}]}}).bound is None
    assert Number.from_json(row | {"trust": {"flags": "torn"}}).bound is None
