"""What all commands share: the application, common options, and how results are printed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from counterlens.cli.commands import Choices
from counterlens.errors import InputError

app = typer.Typer(
    cls=Choices,
    name="counterlens",
    help="The debugger for image classifiers: audit, explain, discover, curate, train.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: half the time of a boxed one, and it can be searched
    context_settings={"help_option_names": ["-h", "--help"]},
)

Out = Annotated[Path | None, typer.Option(help="Run folder to create. Default: under runs/.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the unfinished run in --out.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")]
On = Annotated[str, typer.Option(help="here, ray, or ray://HOST:PORT.")]
WorkersOption = Annotated[
    int | None, typer.Option(help="Most workers on Ray. Default: the GPUs, or the cores.")
]
Changes = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Setting of the generator's search: updates, text_rate, cuts, … May be repeated.",
    ),
]
TrustRemote = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Allow a model to run code of its own, also a FILE.py that a run folder names.",
    ),
]


def refuse_unused(context: typer.Context, mode: str, *names: str) -> None:
    """An option that this mode does not use, and that was typed, is an error."""
    for param in context.command.params:
        source = context.get_parameter_source(str(param.name))
        if param.name in names and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"{param.opts[0]} has no effect with {mode}. Leave it out.")


def finish(run: Any, *, as_json: bool, quiet: bool, parts: Sequence[Any] = ()) -> None:
    """Print the result of a command: numbers to standard error, the answer to standard output.

    Args:
        run: the result of a workflow, or its run.
        parts: runs that it consists of, where it does not know them itself.
    """
    parts = parts or getattr(run, "parts", ())
    if not quiet:
        from counterlens.cli.show.summary import show_run

        show_run(run, parts)
    if as_json:
        print(json.dumps(_answer(run, parts), indent=1, ensure_ascii=False))
    else:
        print(run.folder)


def _answer(run: Any, parts: Sequence[Any]) -> dict[str, Any]:
    """What --json prints: result.json, how the gates went and where the report is."""
    report = run.folder / "report.html"
    gates = [
        {"run": str(part.folder), **row}
        for part in (parts or (run,))
        for row in part.table("gates")
    ]
    result: dict[str, Any] = json.loads((run.folder / "result.json").read_text(encoding="utf-8"))
    return {**result, "gates": gates, "report": str(report) if report.exists() else None}


def check_models(*specs: str) -> None:
    """Refuse mistyped models in a fraction of a second: torch is not imported yet."""
    from counterlens.models.specs import check_spec
    from counterlens.workflows._shared.names import named

    for spec in specs:
        check_spec(named(spec)[1])


def check_sets(*specs: str | None) -> None:
    """Refuse mistyped sets of images as early."""
    from counterlens.data.specs import check_set

    for spec in specs:
        if spec is not None:
            check_set(spec)


def check_run(folder: str | Path) -> None:
    """Refuse a folder that holds no run as early."""
    from counterlens.runs import Run

    Run.open(Path(folder))


def check_classes(model: str, names: Sequence[str], words: Sequence[str] = ()) -> None:
    """Refuse a class that a shipped model does not have as early; other models tell theirs later.

    Args:
        words: what stands for classes, besides their names.
    """
    from counterlens import zoo
    from counterlens.label_spaces.named import class_index

    shipped = model.removeprefix("zoo:") if model.startswith("zoo:") else ""
    if shipped in zoo.names():
        classes = zoo.card(shipped)["classes"]
        for name in names:
            if name not in words:
                class_index(classes, name)


def show_findings(findings: list[dict[str, Any]]) -> None:
    from rich.console import Console

    console = Console(stderr=True)
    marks = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]FAIL[/]"}
    for row in findings:
        console.print(
            f"{marks.get(row['status'], row['status']):>6}  {row['check']}: {row['found']}"
        )
        if row["status"] in ("warn", "fail"):
            console.print(f"        {row['fix']}  (sure: {row['sure']})")
