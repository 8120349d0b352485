"""Options are declared once: what derives from a record, and what holds for all of them."""

import importlib.util
import inspect
import re
import shlex
import types
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

import counterlens
from counterlens.cli import app
from counterlens.cli.commands import command, modes, records
from counterlens.errors import InputError
from counterlens.workflows._shared.options import (
    Output,
    build,
    option,
    options_of,
    record,
    settings_of,
    takes,
    takes_by,
)

ROOT = Path(__file__).parents[2]


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
    """Type, unit, flag and what the help says first are the same in every command."""
    meanings: dict[str, dict[object, list[str]]] = {}
    for command_name, kind in records(app).items():
        types_of = typing.get_type_hints(kind)
        for name, one in options_of(kind).items():
            facts = one.metadata
            words = re.split(r"[,.;:(]", facts["help"])[0]
            meaning = (_plain(types_of[name]), facts["unit"], facts["flag"], words)
            meanings.setdefault(name, {}).setdefault(meaning, []).append(command_name)
    several = {name: known for name, known in meanings.items() if len(known) > 1}
    assert not several


def _plain(annotation: object) -> object:
    """A type without None: whether an option must be given may differ."""
    if not isinstance(annotation, types.UnionType):
        return annotation
    return next(one for one in typing.get_args(annotation) if one is not types.NoneType)


@pytest.mark.parametrize("name", sorted(records(app)))
def test_help_is_grouped_and_has_an_example(name: str) -> None:
    text = CliRunner().invoke(app, [*name.split(), "--help"]).output
    assert f"counterlens {name} " in text.split("Example:")[1]
    words = shlex.split(text.split("Example:")[1])[1 + len(name.split()) :]
    leaf: Any = get_command(app)
    for word in name.split():
        leaf = leaf.commands[word]
    leaf.make_context(name, words)  # refuses an option or argument that does not exist
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


@record
class Deep(Output):
    """Options of one method."""

    layer: int = option(1, help="Layer.")
    batch: int = option(8, help="Images at a time.")


@record
class Wide(Output):
    """Options of another method."""

    radius: float = option(0.5, help="Radius.")
    batch: int = option(8, help="Images at a time.")


@takes_by({"deep": Deep, "wide": Wide}, default="deep")
def draw_by(model: str, *, method: str, options: Deep | Wide) -> tuple[str, object]:
    """Draws."""
    return method, options


def test_a_method_takes_its_own_options_alone() -> None:
    assert draw_by("m") == ("deep", Deep())
    assert draw_by("m", method="wide", radius=2) == ("wide", Wide(radius=2.0))
    assert draw_by("m", options=Wide(radius=3.0)) == ("wide", Wide(radius=3.0))
    with pytest.raises(InputError, match=r"draw_by by deep has no option 'radius'; .*'wide'"):
        draw_by("m", radius=2)
    with pytest.raises(InputError, match=r"expected one of deep, wide\. Did you mean wide"):
        draw_by("m", method="wid")
    with pytest.raises(InputError, match="has no option 'radios'"):
        draw_by("m", method="wide", radios=2)
    assert "radius" in inspect.signature(draw_by).parameters
    assert "Options of method='wide':\n    radius: Radius." in (draw_by.__doc__ or "")


def test_a_command_without_a_mode_is_the_default_one() -> None:
    seen: list[object] = []
    small = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h"]})
    small.callback()(lambda: None)
    group = modes(small, "draw", default="deep", arguments="MODEL", about="Draw.", example="m")
    for kind in (Deep, Wide):

        @command(group, kind, name=kind.__name__.lower(), example="m")
        def one(model: str, options: object) -> None:
            """Draw."""
            seen.append(options)

    for line in (["m"], ["--layer", "2", "m"], ["wide", "m", "--radius", "1"]):
        CliRunner().invoke(small, ["draw", *line], catch_exceptions=False)
    assert seen == [Deep(), Deep(layer=2), Wide(radius=1.0)]
    refused = CliRunner().invoke(small, ["draw", "m", "--radius", "1"])
    assert "deep has no --radius; it belongs to wide." in refused.output
    assert "Without a COMMAND it is deep" in CliRunner().invoke(small, ["draw", "-h"]).output


def test_a_required_option_is_asked_for() -> None:
    @record
    class Needs:
        data: str = option(help="Images.")

    with pytest.raises(InputError, match=r"f needs data: Images\."):
        build(Needs, {}, command="f")
