"""Commands that measure: audit, doctor, compare, report, zoo."""

import json
from pathlib import Path
from typing import Annotated

import typer

from counterlens.cli.commands import command
from counterlens.cli.options import app, check_models, check_run, check_sets, finish, show_findings
from counterlens.workflows._shared.options import option, record
from counterlens.workflows.audit.options import AuditOptions, DoctorOptions
from counterlens.workflows.compare.options import CompareOptions, RatchetOptions


@command(
    app,
    AuditOptions,
    example="zoo:cifar10-plain-small sample:cifar10 --ood noise:uniform --attack l2:0.5",
)
def audit(
    models_and_data: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... DATA",
            help="One or more models (zoo:NAME, timm:NAME, torchvision:NAME, hf:ORG/NAME, "
            "FILE.py:FACTORY, a checkpoint folder; NAME=SPEC names one), then the images (a "
            "folder, a .csv or .jsonl, pack:FILE.npz, known:NAME@ROOT, sample:NAME).",
        ),
    ],
    options: AuditOptions,
) -> None:
    """Measure accuracy, calibration, OOD, robustness; write a report."""
    if len(models_and_data) < 2:
        raise typer.BadParameter(
            "expected MODEL... DATA, e.g. zoo:cifar10-plain-small sample:cifar10"
        )
    check_models(*models_and_data[:-1], *options.surrogate)
    check_sets(models_and_data[-1])
    _check_gates(models_and_data, options)
    from counterlens.workflows.audit.run import audit as run_audit

    result = run_audit(models_and_data[:-1], models_and_data[-1], options=options)
    finish(result, as_json=options.json, quiet=options.quiet)
    if any(not row["passed"] for one in (result, *result.parts) for row in one.table("gates")):
        raise typer.Exit(1)


def _check_gates(models_and_data: list[str], options: AuditOptions) -> None:
    """Refuse gates on numbers that this audit does not measure."""
    from counterlens.notation import split_attacks
    from counterlens.workflows.audit.gates import check_requirements
    from counterlens.workflows.audit.settings import Settings

    attacks = split_attacks(options.attack)
    columns = [part.strip() for text in options.groups for part in text.split(",")]
    given = {**vars(options), "attack": attacks, "groups": tuple(columns)}
    check_requirements(Settings(model=models_and_data[0], data=models_and_data[-1], **given))


@command(app, DoctorOptions, example="zoo:cifar10-plain-small sample:cifar10")
def doctor(
    model: Annotated[str, typer.Argument(help="The model, e.g. timm:resnet18.")],
    data: Annotated[str | None, typer.Argument(help="Labelled images it should know.")] = None,
    *,
    options: DoctorOptions,
) -> None:
    """Is this classifier wrapped right? Ask before quoting numbers."""
    check_models(model, *([options.exported_from] if options.exported_from else []))
    check_sets(data)
    from counterlens.workflows.audit.doctor import doctor as run_doctor

    run = run_doctor(model, data, options=options)
    findings = run.table("doctor")
    if not options.quiet:
        show_findings(findings)
    if options.json:
        print(json.dumps(findings, indent=1, ensure_ascii=False))
    else:
        print(run.folder)
    if any(row["status"] == "fail" for row in findings):
        raise typer.Exit(3)


@command(app, CompareOptions, example="runs/first runs/second")
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two audits or more.")],
    options: CompareOptions,
) -> None:
    """Put audits side by side, paired, and flag clear failures."""
    for folder in runs:
        check_run(folder)
    from counterlens.workflows.compare.run import compare as run_compare

    run = run_compare(runs, options=options)
    finish(run, as_json=options.json, quiet=options.quiet)
    if any(not row["passed"] for row in run.table("gates")):
        raise typer.Exit(1)


@command(app, RatchetOptions, example="failures.json runs/second")
def ratchet(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="File of the collected failures.")],
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The audit of the release.")],
    options: RatchetOptions,
) -> None:
    """Check a release: failures that were mended must not come back."""
    from counterlens.workflows.compare.ratchet import ratchet as run_ratchet

    result = run_ratchet(suite, run, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)
    if any(not row["passed"] for row in result.table("gates")):
        raise typer.Exit(1)


@record
class ReportOptions:
    """Options of report: none."""


@command(app, ReportOptions, example="runs/first")
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    options: ReportOptions,
) -> None:
    """Render the report of a run again."""
    from counterlens.workflows.report import report as render

    print(render(run))


@record
class ZooOptions:
    """Options of zoo."""

    json: bool = option(False, help="Print the result as JSON.", group="Run", scope="command")


@command(app, ZooOptions, example="cifar10-plain-small")
def zoo(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show the card of this one.")
    ] = None,
    *,
    options: ZooOptions,
) -> None:
    """List the shipped models, image–text pairs, generators and samples, or show a card."""
    from counterlens import zoo as shipped

    cards = shipped.any_card(name) if name else shipped.cards()
    if options.json:
        print(json.dumps(cards, indent=1, ensure_ascii=False))
    elif isinstance(cards, dict):
        from counterlens.cli.show.cards import show_card

        show_card(cards)
    else:
        for card in cards:
            print(f"zoo:{card['name']:28} {card.get('summary', '')}")
        for sample in sorted([*shipped.samples(), *shipped.DRAWN]):
            print(f"sample:{sample:25} {shipped.any_card(sample)['what']}")
        for recorded in shipped.recorded():
            about = shipped.any_card(recorded)["recipe"]["about"]
            print(f"{recorded:32} {about} Audited, not shipped.")
