"""Commands that measure: audit, doctor, compare, report, zoo."""

import json
from pathlib import Path
from typing import Annotated

import typer

from counterlens.cli.options import (
    Device,
    Json,
    Out,
    Quiet,
    Resume,
    Seed,
    TrustRemote,
    app,
    check_models,
    finish,
    show_findings,
)

About = Annotated[
    list[str],
    typer.Option(
        metavar="FACTS",
        help='What a card does not tell: "NAME: family=…, attention=…, training=…". May be '
        "repeated.",
    ),
]


@app.command()
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
    about: About = [],
    ood: Annotated[
        list[str],
        typer.Option(
            metavar="SPEC", help="Out-of-distribution images, [NAME=]SPEC. May be repeated."
        ),
    ] = [],
    attack: Annotated[
        list[str],
        typer.Option(
            metavar="BALL", help="Robustness test, e.g. l2:0.5, linf:8/255. May be repeated."
        ),
    ] = [],
    ood_attack: Annotated[
        str | None,
        typer.Option(
            metavar="BALL", help="Worst-case OOD detection within this ball, e.g. l2:1.0."
        ),
    ] = None,
    attack_version: Annotated[
        str,
        typer.Option(help="standard, plus, rand, ratio-era, or fast (APGD alone: a first look)."),
    ] = "standard",
    attack_points: Annotated[
        int, typer.Option(help="How many images to attack: the first, or drawn if sorted by class.")
    ] = 1000,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time for each attack, e.g. 10m; bounds when it runs out. Probes come on top."
        ),
    ] = None,
    radius_curve: Annotated[
        str | None,
        typer.Option(help="Confidence at eight radii up to this ball, e.g. l2:3, 200 images each."),
    ] = None,
    surrogate: Annotated[
        list[str],
        typer.Option(
            metavar="MODEL",
            help="Attack this model, too, and try what is found on the audited one. "
            "May be repeated.",
        ),
    ] = [],
    flips: Annotated[
        int,
        typer.Option(help="Images whose answer is asked again under small colour and frame edits."),
    ] = 0,
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="Images to fit the temperature on, 100 or more. Default: 20 % of DATA, set apart; "
            "of a set too small for that all are reported on, at temperature 1."
        ),
    ] = None,
    require: Annotated[
        list[str],
        typer.Option(
            metavar="RULE", help='Release gate, e.g. "accuracy.top1>=0.9". May be repeated.'
        ),
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
    """Measure accuracy, calibration, OOD, robustness; write a report."""
    if len(models_and_data) < 2:
        raise typer.BadParameter(
            "expected MODEL... DATA, e.g. zoo:cifar10-plain-small sample:cifar10"
        )
    check_models(*models_and_data[:-1], *surrogate)
    from counterlens.workflows.audit.run import audit as run_audit

    runs = run_audit(
        models_and_data[:-1],
        models_and_data[-1],
        about=about,
        ood=ood,
        attack=attack,
        ood_attack=ood_attack,
        attack_version=attack_version,
        attack_points=attack_points,
        budget=budget,
        radius_curve=radius_curve,
        surrogate=surrogate,
        flips=flips,
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
    finish(runs[-1], as_json=as_json, quiet=quiet, parts=runs[:-1])
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
    """Is this classifier wrapped right? Ask before quoting numbers."""
    check_models(model)
    from counterlens.workflows.audit.doctor import doctor as run_doctor

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
        show_findings(findings)
    if as_json:
        print(json.dumps(findings, indent=1, ensure_ascii=False))
    else:
        print(run.folder)
    if any(row["status"] == "fail" for row in findings):
        raise typer.Exit(3)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two audits or more.")],
    about: About = [],
    require: Annotated[
        list[str],
        typer.Option(
            metavar="RULE",
            help='Release gate, old run first, e.g. "flips.negative.high<=0.02". May be repeated.',
        ),
    ] = [],
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Put audits side by side, paired, and flag clear failures."""
    from counterlens.workflows.compare.run import compare as run_compare

    run = run_compare(runs, about=about, require=require, out=out)
    finish(run, as_json=as_json, quiet=quiet)
    if any(not row["passed"] for row in run.table("gates")):
        raise typer.Exit(1)


@app.command()
def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]) -> None:
    """Render the report of a run again."""
    from counterlens.workflows.report import report as render

    print(render(run))


@app.command()
def zoo(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show the card of this one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the shipped models, image–text pairs, generators and samples, or show a card."""
    from counterlens import zoo as shipped

    found = shipped.any_card(name) if name else shipped.cards()
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    elif isinstance(found, dict):
        from counterlens.cli.show.cards import show_card

        show_card(found)
    else:
        for card in found:
            print(f"zoo:{card['name']:28} {card.get('summary', '')}")
        for sample in sorted([*shipped.samples(), *shipped.DRAWN]):
            print(f"sample:{sample:25} {shipped.any_card(sample)['what']}")
        for recorded in shipped.recorded():
            about = shipped.any_card(recorded)["recipe"]["about"]
            print(f"{recorded:32} {about} Audited, not shipped.")
