"""Typed settings: what is refused and how, and that nothing is lost on the way.

Oracles: the recipes and cards that are shipped; a literal list of mistakes.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterlens import zoo
from counterlens.errors import InputError
from counterlens.workflows._shared.settings import (
    Switch,
    as_dict,
    build,
    changed,
    differing,
    merge,
    read_value,
)
from counterlens.workflows.train import recipes
from counterlens.workflows.train.recipe import Recipe


@dataclass(frozen=True)
class Inner:
    """A section."""

    steps: int | tuple[int, ...] = 7
    radius: float = 0.5


@dataclass(frozen=True)
class Sample:
    """Settings for these tests."""

    epochs: float = 3
    batch: int = 8
    name: str | None = None
    inner: Inner = Inner()
    colour: tuple[float, float, float] = (0.0, 0.0, 0.0)
    drops: tuple[float, ...] = ()
    keep: bool = False
    fast: Switch = "auto"
    rule: Literal["hash", "last"] = "hash"
    architecture: dict[str, Any] = field(default_factory=lambda: {"kind": "a", "depth": 2})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bacth=3", r"--set sets 'bacth', which no training has\. Did you mean batch\?"),
        ("inner.step=3", r"--set: inner sets 'step'.*Did you mean steps\?"),
        ("batch=many", "--set sets batch to 'many', expected a whole number."),
        ("batch=2.5", "--set sets batch to 2.5, expected a whole number."),
        ("batch=true", "--set sets batch to True, expected a whole number."),
        ("epochs=[1]", r"--set sets epochs to \[1\], expected a number."),
        ("inner.steps=[1, x]", "expected a whole number or a list of whole numbers."),
        ("inner=3", "--set sets inner to 3, expected inner.KEY=VALUE."),
        ("colour=[1, 2]", "expected a list of 3 numbers."),
        ("keep=1", "expected true or false."),
        ("fast=maybe", "--set sets fast to 'maybe', expected true or false or auto."),
        ("rule=first", "--set sets rule to 'first', expected hash or last."),
        ("name=3", "--set sets name to 3, expected a text or null."),
        ("batch", "changes has 'batch', expected KEY=VALUE"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_was_expected(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        changed(Sample(), [text])
    assert "\n" not in str(caught.value)


def test_a_change_is_read_as_yaml_and_kept_as_it_was_written() -> None:
    new = changed(
        Sample(),
        ["epochs=5", "batch=1e2", "inner.steps=[1, 2]", "inner.radius=1", "fast=false",
         "architecture.depth=3", "name=null", "drops=[5e-1]"],
    )  # fmt: skip
    assert new.inner == Inner((1, 2), 1) and new.drops == (0.5,) and new.architecture["depth"] == 3
    assert new.batch == 100 and isinstance(new.batch, int)
    assert isinstance(new.epochs, int) and isinstance(new.inner.radius, int)  # 5 stays 5 in a card
    assert new.fast is False
    assert changed(Sample(), ["architecture.kind=b"]).architecture == {"kind": "b"}  # not mixed


@given(
    st.floats(1, 9), st.integers(1, 9), st.lists(st.floats(0, 1), max_size=3), st.booleans(),
    st.one_of(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=3)),
)  # fmt: skip
def test_what_differs_leads_back_to_the_record(
    epochs: float, batch: int, drops: list[float], keep: bool, steps: int | list[int]
) -> None:
    inner = Inner(tuple(steps) if isinstance(steps, list) else steps)
    record = Sample(epochs, batch, "n", inner, drops=tuple(drops), keep=keep)
    values = as_dict(record)
    assert build(Sample, values) == record
    changes = [f"{key}={value}" for key, value in differing(values, as_dict(Sample()))]
    assert changed(Sample(), changes) == record
    assert read_value(str(batch)) == batch


@pytest.mark.parametrize("name", sorted({card["name"] for card in zoo.cards()} & {*zoo.names()}))
def test_the_recipe_of_every_shipped_card_is_one_today(name: str) -> None:
    """Cards were written before recipes had types: they read as they were written."""
    recipe = zoo.card(name)["recipe"]
    values = as_dict(Recipe())
    before = dict(values)
    merge(Recipe, values, recipe, name)
    assert as_dict(build(Recipe, values)) == {**before, **recipe}


def test_a_recipe_that_is_wrong_names_its_file(tmp_path) -> None:
    (tmp_path / "mine.yaml").write_text("base: cifar10-plain-small\nlr: fast\n")
    with pytest.raises(InputError, match=r"mine\.yaml sets lr to 'fast', expected a number\."):
        recipes.load(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("base: cifar10-plain-small\nlr: 1e-3\n")
    assert recipes.load(str(tmp_path / "mine.yaml")).lr == 0.001
