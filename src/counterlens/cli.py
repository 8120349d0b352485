"""The command line: parse, import, call, print.

Standard output carries the answer alone: with --json the JSON, else the run folder as its last
line. Everything else goes to standard error. Exit codes: 0 ok · 1 a gate failed · 2 bad input ·
3 the doctor refused · 70 a crash (its traceback is kept in the run).
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from counterlens.errors import CounterlensError

app = typer.Typer(
    name="counterlens",
    help="The debugger for image classifiers: audit, explain, discover, curate, repair.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Out = Annotated[Path | None, typer.Option(help="Run folder to create. Default: under runs/.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the unfinished run in --out.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")]
TrustRemote = Annotated[
    bool, typer.Option("--trust-remote-code", help="Allow a model to run code of its own.")
]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """The debugger for image classifiers: audit, explain, discover, curate, repair."""
    if version:
        from counterlens import __version__

        print(__version__)
        raise typer.Exit


@app.command()
def audit(
    models_and_data: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... DATA",
            help="One or more models (zoo:NAME, timm:NAME, torchvision:NAME, hf:ORG/NAME, "
            "FILE.py:FACTORY, a checkpoint folder), then the images (a folder, a .csv or .jsonl, "
            "pack:FILE.npz, known:NAME@ROOT, sample:NAME).",
        ),
    ],
    ood: Annotated[
        list[str], typer.Option(help="Out-of-distribution images, [NAME=]SPEC. May be repeated.")
    ] = [],
    attack: Annotated[
        list[str], typer.Option(help="Robustness test, e.g. l2:0.5, linf:8/255. May be repeated.")
    ] = [],
    ood_attack: Annotated[
        str | None, typer.Option(help="Worst-case OOD detection within this ball, e.g. l2:1.0.")
    ] = None,
    attack_version: Annotated[
        str,
        typer.Option(help="standard, plus, rand, ratio-era, or fast (APGD alone, an upper bound)."),
    ] = "standard",
    attack_points: Annotated[int, typer.Option(help="How many images to attack.")] = 1000,
    budget: Annotated[
        str | None, typer.Option(help="Time for each attack, e.g. 10m; bounds when it runs out.")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="Images to fit the temperature on. Default: 20 % of DATA, set apart."),
    ] = None,
    require: Annotated[
        list[str], typer.Option(help='Release gate, e.g. "accuracy.top1>=0.9". May be repeated.')
    ] = [],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Go on although the doctor refused.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(help="Use only this many images of each set.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Images per batch. Default: found out.")] = None,
    workers: Annotated[int | None, typer.Option(help="Decoding processes.")] = None,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure accuracy, calibration, OOD detection and robustness; write a report."""
    if len(models_and_data) < 2:
        raise typer.BadParameter(
            "expected MODEL... DATA, e.g. zoo:cifar10-plain-small sample:cifar10"
        )
    from counterlens.workflows.audit import audit as run_audit

    runs = run_audit(
        models_and_data[:-1],
        models_and_data[-1],
        ood=ood,
        attack=attack,
        ood_attack=ood_attack,
        attack_version=attack_version,
        attack_points=attack_points,
        budget=budget,
        calibrate=calibrate,
        require=require,
        anyway=anyway,
        limit=limit,
        batch=batch,
        workers=workers,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
    )
    _finish(runs[-1], as_json=as_json, quiet=quiet)
    if any(not row["passed"] for run in runs for row in run.table("gates")):
        raise typer.Exit(1)


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help="The model, e.g. timm:resnet18.")],
    data: Annotated[str | None, typer.Argument(help="Labelled images it should know.")] = None,
    out: Out = None,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Is this classifier wrapped right? Ask before quoting any number."""
    from counterlens.workflows.doctor import doctor as run_doctor

    run = run_doctor(
        model,
        data,
        out=out,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    findings = run.table("doctor")
    if not quiet:
        _show_findings(findings)
    if as_json:
        print(json.dumps(findings, indent=1, ensure_ascii=False))
    else:
        print(run.folder)
    if any(row["status"] == "fail" for row in findings):
        raise typer.Exit(3)


@app.command()
def explain(
    model: Annotated[
        str, typer.Argument(help="The model, or the folder of an audit (with --worst).")
    ],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE...",
            help="Picture files, or places in a set: SPEC#ID, SPEC#3, SPEC#0:16.",
        ),
    ] = [],
    target: Annotated[
        list[str],
        typer.Option(
            help="Class by name or number, or true, predicted, near, all, random. May be repeated."
        ),
    ] = [],
    judge: Annotated[
        list[str],
        typer.Option(
            "--with", help="A further model: does it see the target too? May be repeated."
        ),
    ] = [],
    method: Annotated[str, typer.Option(help="pixel, cam, colour or frame.")] = "pixel",
    radius: Annotated[
        list[str],
        typer.Option(help="Budget, e.g. 1.5 or 8/255. May be repeated. Default: six, by size."),
    ] = [],
    norm: Annotated[str, typer.Option(help="l2, linf, l1 or l1.5.")] = "l2",
    steps: Annotated[int, typer.Option(help="Steps of the search.")] = 500,
    worst: Annotated[
        int | None, typer.Option(help="With an audit: explain so many of its surest mistakes.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="How many pictures of a whole set. Default: 16.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Pictures per batch. Default: by size.")] = None,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what would have to change in a picture, or where the model looked."""
    from counterlens.workflows.explain import explain as run_explain

    made = run_explain(
        model,
        images,
        target=target,
        judge=judge,
        method=method,
        radius=radius,
        norm=norm,
        steps=steps,
        worst=worst,
        limit=limit,
        batch=batch,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
    )
    _finish(made.run, as_json=as_json, quiet=quiet)


@app.command()
def neurons(
    model: Annotated[str, typer.Argument(help="The model, e.g. timm:resnet18.")],
    unit: Annotated[
        list[int], typer.Option(help="Penultimate unit, by number. May be repeated.")
    ] = [],
    logit: Annotated[
        list[str], typer.Option(help="Class whose logit is raised. May be repeated.")
    ] = [],
    image: Annotated[
        list[str], typer.Option(help="Picture on which the units are shown. May be repeated.")
    ] = [],
    steps: Annotated[int, typer.Option(help="Steps of the search.")] = 256,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Picture what drives a unit of a model."""
    from counterlens.workflows.neurons import neurons as run_neurons

    made = run_neurons(
        model,
        unit=unit,
        logit=logit,
        image=image,
        steps=steps,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
    )
    _finish(made.run, as_json=as_json, quiet=quiet)


@app.command()
def reproduce(
    name: Annotated[
        str, typer.Argument(help="ratio-figure1, ratio-figure2, -figure5, -figure7 or -figure13.")
    ],
    model: Annotated[
        list[str], typer.Option(help="Models to compare, plain first. May be repeated.")
    ] = ["zoo:cifar10-plain-small", "zoo:cifar10-ratio-small"],
    data: Annotated[str, typer.Option(help="Test images of their classes.")] = "sample:cifar10",
    ood: Annotated[str, typer.Option(help="Images of other things.")] = "sample:textures",
    count: Annotated[int, typer.Option(help="How many images to show.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps of the search.")] = 500,
    radius: Annotated[list[float], typer.Option(help="l2 budget. May be repeated.")] = [],
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Regenerate a figure of a paper with the shipped models."""
    from counterlens.workflows.reproduce import reproduce as run_reproduce

    made = run_reproduce(
        name,
        model=model,
        data=data,
        ood=ood,
        count=count,
        steps=steps,
        radius=radius,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        quiet=quiet,
    )
    _finish(made.run, as_json=as_json, quiet=quiet)


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe of --list, or a YAML file of settings.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Training images with their classes.")] = None,
    out_data: Annotated[
        str | None, typer.Option(help="Images of other things, for losses that want them.")
    ] = None,
    changes: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting, e.g. epochs=30. May be repeated."
        ),
    ] = [],
    max_minutes: Annotated[
        float | None, typer.Option(help="Stop after so long; --resume goes on.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for decoded images. Default: the user's cache.")
    ] = None,
    list_recipes: Annotated[bool, typer.Option("--list", help="List the recipes.")] = False,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a classifier by a recipe: plain, robust, or RATIO."""
    if list_recipes:
        from counterlens.workflows.recipes import about

        for name, line in about().items():
            print(f"{name:32} {line}")
        return
    if recipe is None or data is None:
        raise typer.BadParameter("expected RECIPE --data SPEC; list the recipes with --list")
    from counterlens.workflows.train import train as run_train

    run = run_train(
        recipe,
        data,
        out_data=out_data,
        changes=changes,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        max_minutes=max_minutes,
        cache=cache,
        quiet=quiet,
    )
    _finish(run, as_json=as_json, quiet=quiet)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two audits or more.")],
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Put audits side by side, with paired intervals, and flag clear failures."""
    from counterlens.workflows.compare import compare as run_compare

    _finish(run_compare(runs, out=out), as_json=as_json, quiet=quiet)


@app.command()
def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]) -> None:
    """Render the report of a run again."""
    from counterlens.workflows.report import report as render

    print(render(run))


@app.command()
def zoo(as_json: Json = False) -> None:
    """List the shipped models and samples."""
    from counterlens import zoo as shipped

    cards = [shipped.card(name) for name in shipped.names()]
    if as_json:
        print(json.dumps(cards, indent=1, ensure_ascii=False))
        return
    for card in cards:
        print(f"zoo:{card['name']:28} {card.get('summary', '')}")
    for name in shipped.samples():
        print(f"sample:{name}")


def _finish(run: Any, *, as_json: bool, quiet: bool) -> None:
    """Print what a command made: the numbers to standard error, the answer to standard output."""
    if not quiet:
        _show_numbers(run)
    if as_json:
        print((run.folder / "result.json").read_text(encoding="utf-8").rstrip())
    else:
        print(run.folder)


def _show_numbers(run: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("number", "value", "95 % interval", "n", ""):
        table.add_column(heading, justify="left" if heading in ("number", "") else "right")
    for key, number in run.numbers.items():
        if number.value is None:
            table.add_row(key, "—", "", str(number.n), number.reason)
            continue
        interval = "" if number.low is None else f"{number.low:.4f} – {number.high:.4f}"
        verdict = (number.trust or {}).get("verdict", "")
        table.add_row(key, f"{number.value:.4f}", interval, str(number.n), verdict)
    for row in run.table("gates"):
        table.add_row(row["gate"], "pass" if row["passed"] else "FAIL", row["why"], "", "gate")
    Console(stderr=True).print(table)


def _show_findings(findings: list[dict[str, Any]]) -> None:
    from rich.console import Console

    console = Console(stderr=True)
    marks = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]FAIL[/]"}
    for row in findings:
        console.print(
            f"{marks.get(row['status'], row['status']):>6}  {row['check']}: {row['found']}"
        )
        if row["status"] in ("warn", "fail"):
            console.print(f"        {row['fix']}  (sure: {row['sure']})")


def main() -> NoReturn:
    """Entry point: every deliberate error is one red line, a crash keeps its traceback."""
    try:
        app(standalone_mode=True)
    except CounterlensError as error:
        _say(f"error: {error}", red=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _say("interrupted; what was done is kept, add --resume to go on.", red=True)
        sys.exit(130)
    except Exception:
        text = traceback.format_exc()
        sys.stderr.write(text)
        _say(f"crash: this is a defect of counterlens.{_keep_crash(text)}", red=True)
        sys.exit(70)
    sys.exit(0)


def _keep_crash(text: str) -> str:
    """Keep a traceback in the run that was being written, if there was one."""
    from counterlens.runs import latest

    run = latest()
    if run is None:
        return ""
    path = run.folder / "crash.txt"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        return ""
    return f" The traceback is kept in {path}."


def _say(text: str, *, red: bool) -> None:
    colour = red and sys.stderr.isatty() and "NO_COLOR" not in os.environ
    sys.stderr.write(f"\033[31m{text}\033[0m\n" if colour else f"{text}\n")
