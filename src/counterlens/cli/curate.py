"""Commands that make data sets: the parts of curate, and outdata."""

import json
from pathlib import Path
from typing import Annotated

import typer

from counterlens.cli.commands import Choices, command
from counterlens.cli.options import app, check_models, check_run, check_sets, finish
from counterlens.workflows.curate.options import (
    AdversarialOptions,
    ClassesOptions,
    FreezeOptions,
    LabelsOptions,
    OodOptions,
    OutdataOptions,
    RelabelOptions,
    ReviewOptions,
    TriageOptions,
)

curate = typer.Typer(
    cls=Choices,
    name="curate",
    help="Mine hard images from a pool of photographs, review them, freeze them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(curate)

PoolSpec = Annotated[
    list[str],
    typer.Argument(
        metavar="POOL...", help="Sets to choose from: a folder, a .csv or .jsonl, pack:FILE.npz."
    ),
]
CurationFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a curation.")]


@command(curate, ClassesOptions, example="sample:cifar10 --model zoo:cifar10-plain-small")
def classes(pool: PoolSpec, options: ClassesOptions) -> None:
    """Propose the classes of a set: RUN/classes.txt is yours to edit, then --classes takes it."""
    check_models(options.model)
    check_sets(*pool)
    from counterlens.workflows.curate.classes import choose_classes

    result = choose_classes(pool, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


@command(curate, AdversarialOptions, example="photos/ --filter timm:resnet50")
def adversarial(pool: PoolSpec, options: AdversarialOptions) -> None:
    """Mine labelled photographs that every filter gets wrong (as ImageNet-A was made)."""
    check_models(*options.filters)
    check_sets(*pool)
    from counterlens.workflows.curate.run import adversarial as run_adversarial

    result = run_adversarial(pool, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


@command(curate, OodOptions, example="textures/ --filter timm:resnet50 --inside photos/")
def ood(pool: PoolSpec, options: OodOptions) -> None:
    """Mine images of unknown classes that every filter is sure about (as ImageNet-O was made)."""
    check_models(*options.filters)
    check_sets(*pool)
    from counterlens.workflows.curate.run import ood as run_ood

    result = run_ood(pool, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


@command(
    curate,
    TriageOptions,
    example="photos/ --model timm:resnet50 --model timm:convnext_tiny",
)
def triage(pool: PoolSpec, options: TriageOptions) -> None:
    """List images whose label every model contradicts, the likeliest errors first."""
    check_models(*options.models)
    check_sets(*pool)
    from counterlens.workflows.curate.triage import triage as run_triage

    result = run_triage(pool, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


@command(curate, LabelsOptions, example="photos/ --model timm:resnet18")
def labels(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Labelled images, often your own.")],
    options: LabelsOptions,
) -> None:
    """Rank likely label errors of your own images, by folds; then review and relabel."""
    from counterlens.workflows.curate.labels import labels as run_labels

    result = run_labels(data, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)


@command(curate, RelabelOptions, example="runs/labels --to corrected.csv --root photos")
def relabel(run: CurationFolder, options: RelabelOptions) -> None:
    """Write the corrected labels after the review, as a manifest."""
    from counterlens.workflows.curate.labels import relabel as run_relabel

    facts = run_relabel(run, options=options)
    print(json.dumps(facts, indent=1, ensure_ascii=False) if options.json else options.to)


@command(curate, ReviewOptions, example="runs/mined --reviewer ann")
def review(run: CurationFolder, options: ReviewOptions) -> None:
    """Judge the shortlist: accept, reject or unsure, in the terminal or on a page."""
    check_run(run)
    from counterlens.workflows.curate.review import review as run_review

    state = run_review(run, options=options)
    print(json.dumps(state, indent=1, ensure_ascii=False) if options.json else state["store"])


@command(curate, FreezeOptions, example="runs/mined --out hard-photos --held-out timm:vit_tiny")
def freeze(run: CurationFolder, options: FreezeOptions) -> None:
    """Write the accepted images as a data set with a card, and check that it transfers."""
    check_run(run)
    from counterlens.workflows.curate.freeze import freeze as run_freeze

    card = run_freeze(run, options=options)
    print(json.dumps(card, indent=1, ensure_ascii=False) if options.json else options.out)


@command(app, OutdataOptions, example="photos/ textures/ --drop stripes")
def outdata(
    inside: Annotated[str, typer.Argument(metavar="IN", help="The data with its classes.")],
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Images of anything else.")],
    options: OutdataOptions,
) -> None:
    """Clean a pool of images so that it can stand for anything else in training."""
    check_sets(inside, pool)
    from counterlens.workflows.curate.outdata import outdata as run_outdata

    result = run_outdata(inside, pool, options=options)
    finish(result, as_json=options.json, quiet=options.quiet)
