"""Options are declared once: what derives from a record, and what holds for all of them."""

import importlib.util
import inspect
import typing
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import counterlens
from counterlens.cli import app
from counterlens.cli.commands import command, records
from counterlens.errors import InputError
from counterlens.workflows._shared.options import (
    Output,
    build,
    option,
    options_of,
    record,
    settings_of,
    takes,
)

ROOT = Path(__file__).parents[2]
# names whose meaning differs between commands, to be told apart: none may be added
TWO_MEANINGS = {"workers"}


@record
class Sample(Output):
    """A record for these tests."""

    count: int = option(3, help="How many.", unit="N", group="Draw")
    names: tuple[str, ...] = option((), help="Names.", flag="--name", group="Draw")
    rate: float | None = option(None, help="Rate.")
    kind: str = option("a", help="Kind.", choices=("a", "bee"))


@takes(Sample)
def sample(model: str, options: Sample) -> Sample:
    """Takes a sample."""
    return options


def test_keywords_become_the_record() -> None:
    made = sample("m", count=5, names="x", rate=2, out="folder")
    assert made == Sample(count=5, names=("x",), rate=2.0, out=Path("folder"))
    assert sample("m", options=Sample(count=9), kind="bee") == Sample(count=9, kind="bee")


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"cuont": 1}, "sample has no option 'cuont'. Did you mean count?"),
        ({"json": True}, "sample has no option 'json'"),
        ({"count": "many"}, r"count is 'many' \(str\), expected int"),
        ({"count": True}, "expected int"),
        ({"kind": "be"}, "expected one of a, bee. Did you mean bee"),
        ({"options": 3}, "options of sample is int, expected Sample"),
    ],
)
def test_a_wrong_keyword_is_one_line(keywords: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        sample("m", **keywords)
    assert "\n" not in str(caught.value)


def test_what_a_run_keeps_is_what_decides_its_result() -> None:
    kept = settings_of(Sample(out=Path("x"), quiet=True), model="m")
    assert kept == {"model": "m", "count": 3, "names": (), "rate": None, "kind": "a"}


def test_help_in_python_lists_the_options() -> None:
    assert list(inspect.signature(counterlens.audit).parameters)[:2] == ["models", "data"]
    assert inspect.signature(counterlens.audit).parameters["attack_points"].default == 1000
    assert "attack_points: How many images to attack" in (counterlens.audit.__doc__ or "")


def test_flags_become_the_same_record_as_keywords() -> None:
    seen: list[Sample] = []
    small = typer.Typer(rich_markup_mode=None)

    @command(small, Sample, example="m")
    def draw(model: str, options: Sample) -> None:
        """Draw."""
        seen.append(options)

    line = ["m", "--count", "5", "--name", "x", "--name", "y", "-q", "--json"]
    CliRunner().invoke(small, line, catch_exceptions=False)
    assert seen == [Sample(count=5, names=("x", "y"), quiet=True, json=True)]
    with pytest.raises(InputError, match="expected one of"):
        CliRunner().invoke(small, ["m", "--kind", "c"], catch_exceptions=False)


def test_one_meaning_per_name() -> None:
    meanings: dict[str, set[object]] = {}
    for kind in records(app).values():
        types_of = typing.get_type_hints(kind)
        for name, one in options_of(kind).items():
            facts = one.metadata
            meanings.setdefault(name, set()).add((types_of[name], facts["unit"], facts["flag"]))
    several = {name for name, known in meanings.items() if len(known) > 1}
    assert several <= TWO_MEANINGS


@pytest.mark.parametrize("name", sorted(records(app)))
def test_help_is_grouped_and_has_an_example(name: str) -> None:
    text = CliRunner().invoke(app, [*name.split(), "--help"]).output
    assert f"counterlens {name} " in text.split("Example:")[1]
    for one in options_of(records(app)[name]).values():
        assert f"\n{one.metadata['group']}:\n" in text


def test_every_option_of_a_record_is_read_somewhere() -> None:
    """Oracle: the text of the package holds `.NAME` or the name as a text."""
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "src" / "counterlens").rglob("*.py")
        if path.name != "options.py"
    )
    for name, kind in records(app).items():
        unread = [one.name for one in fields(kind) if f".{one.name}" not in sources]
        assert not unread, (name, unread)


def test_the_table_of_options_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("options_tool", ROOT / "tools" / "options.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = (ROOT / "docs" / "reference" / "options.md").read_text(encoding="utf-8")
    assert page == tool.page(), "run make docs"


def test_a_required_option_is_asked_for() -> None:
    @record
    class Needs:
        data: str = option(help="Images.")

    with pytest.raises(InputError, match=r"f needs data: Images\."):
        build(Needs, {}, command="f")
