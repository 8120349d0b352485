"""Commands that make data sets: curate classes, adversarial, ood, triage, review, freeze."""

import json
from pathlib import Path
from typing import Annotated

import typer

from counterlens.cli.options import (
    Device,
    Json,
    On,
    Out,
    Quiet,
    Resume,
    Seed,
    TrustRemote,
    Workers,
    app,
    finish,
)

curate = typer.Typer(
    help="Mine hard images from a pool of photographs, review them, freeze them.",
    no_args_is_help=True,
)
app.add_typer(curate, name="curate")

PoolArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="POOL...", help="Sets to choose from: a folder, a .csv or .jsonl, pack:FILE.npz."
    ),
]
FilterOption = Annotated[
    list[str],
    typer.Option("--filter", help="A model that must be wrong. May be repeated."),
]
Shortlist = Annotated[
    int | None, typer.Option(help="How many images go to review. Default: all that are left.")
]
Bits = Annotated[
    int, typer.Option(help="Hashes that differ in so many of 64 bits are copies; -1: never.")
]
Cosine = Annotated[
    float, typer.Option(help="Features of at least this cosine are copies; 0: never.")
]
LeastSide = Annotated[
    int | None, typer.Option(help="Shortest side of a usable image. Default: half the input.")
]
Alias = Annotated[
    list[str],
    typer.Option(metavar="NAME=CLASS", help="The pool's name for a class. May be repeated."),
]
Licence = Annotated[str, typer.Option(help="Licence of images whose set does not say it.")]
Source = Annotated[str, typer.Option(help="Source of images whose set does not say it.")]
Limit = Annotated[int | None, typer.Option(help="Use only this many images of each set.")]
ShardSize = Annotated[int, typer.Option(help="Images per shard, the unit of --resume.")]


@curate.command("classes")
def classes(
    pool: PoolArgument,
    model: Annotated[str, typer.Option(help="The model whose classes are chosen from.")],
    least: Annotated[int, typer.Option(help="Images that a class must have.")] = 5,
    cosine: Annotated[
        float, typer.Option(help="Classes this near in the model's last layer overlap.")
    ] = 0.45,
    per_group: Annotated[
        int | None, typer.Option(help="Most classes of one WordNet group. Default: all.")
    ] = None,
    alias: Alias = [],
    out: Out = None,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Propose the classes of a set: RUN/classes.txt is yours to edit, then --classes takes it."""
    from counterlens.workflows.curate.classes import choose_classes

    made = choose_classes(
        pool,
        model=model,
        least=least,
        cosine=cosine,
        per_group=per_group,
        alias=alias,
        out=out,
        device=device,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
    )
    finish(made, as_json=as_json, quiet=quiet)


@curate.command("adversarial")
def adversarial(
    pool: PoolArgument,
    filters: FilterOption,
    classes: Annotated[
        str,
        typer.Option(help="Classes in which answers count: pool, all, imagenet-a, or a file."),
    ] = "pool",
    confidence: Annotated[
        float, typer.Option(help="Most probability a filter may give the label.")
    ] = 0.15,
    per: Annotated[str, typer.Option(help="That cap holds for each crop, or the mean.")] = "crop",
    confusion: Annotated[int, typer.Option(help="Most images of one label and answer.")] = 15,
    egregious: Annotated[
        bool,
        typer.Option("--egregious", help="Drop confusions within a WordNet group, dog for dog."),
    ] = False,
    shortlist: Shortlist = None,
    against: Annotated[
        list[str],
        typer.Option(help="A set of which no image may leak in, e.g. training data."),
    ] = [],
    bits: Bits = 6,
    cosine: Cosine = 0.97,
    least_side: LeastSide = None,
    alias: Alias = [],
    tags: Annotated[
        int, typer.Option(help="How many images are probed for why the filter fails.")
    ] = 200,
    licence: Licence = "",
    source: Source = "",
    limit: Limit = None,
    shard: ShardSize = 512,
    on: On = "here",
    workers: Workers = None,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Mine labelled photographs that every filter gets wrong (as ImageNet-A was made)."""
    from counterlens.workflows.curate.run import adversarial as run_adversarial

    made = run_adversarial(
        pool,
        filters=filters,
        classes=classes,
        confidence=confidence,
        per=per,  # type: ignore[arg-type]  # refused with a clear line where it is neither
        confusion=confusion,
        egregious=egregious,
        shortlist=shortlist,
        against=against,
        bits=bits,
        cosine=cosine,
        least_side=least_side,
        alias=alias,
        tags=tags,
        licence=licence,
        source=source,
        limit=limit,
        shard=shard,
        on=on,
        workers=workers,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
    )
    finish(made, as_json=as_json, quiet=quiet)


@curate.command("ood")
def ood(
    pool: PoolArgument,
    filters: FilterOption,
    inside: Annotated[
        str | None,
        typer.Option(help="Images of the known classes, to compare with and to keep out."),
    ] = None,
    classes: Annotated[
        str, typer.Option(help="Classes in which answers count: all, imagenet-o, or a file.")
    ] = "all",
    confidence: Annotated[float, typer.Option(help="Least probability of the answer.")] = 0.5,
    per_answer: Annotated[int | None, typer.Option(help="Most images of one answer.")] = None,
    shortlist: Shortlist = None,
    bits: Bits = 6,
    cosine: Cosine = 0.97,
    least_side: LeastSide = None,
    alias: Alias = [],
    licence: Licence = "",
    source: Source = "",
    limit: Limit = None,
    shard: ShardSize = 512,
    on: On = "here",
    workers: Workers = None,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Mine images of unknown things that every filter is sure about (as ImageNet-O was made)."""
    from counterlens.workflows.curate.run import ood as run_ood

    made = run_ood(
        pool,
        filters=filters,
        inside=inside,
        classes=classes,
        confidence=confidence,
        per_answer=per_answer,
        shortlist=shortlist,
        bits=bits,
        cosine=cosine,
        least_side=least_side,
        alias=alias,
        licence=licence,
        source=source,
        limit=limit,
        shard=shard,
        on=on,
        workers=workers,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
    )
    finish(made, as_json=as_json, quiet=quiet)


@curate.command("triage")
def triage(
    pool: PoolArgument,
    models: Annotated[
        list[str], typer.Option("--model", help="A model that knows the classes. May be repeated.")
    ],
    classes: Annotated[
        str, typer.Option(help="Classes in which answers count: pool, all, imagenet-a, or a file.")
    ] = "pool",
    most: Annotated[int, typer.Option(help="Length of the queue.")] = 100,
    explained: Annotated[
        int, typer.Option(help="How many images get counterfactuals beside them.")
    ] = 6,
    alias: Alias = [],
    limit: Limit = None,
    shard: ShardSize = 512,
    on: On = "here",
    workers: Workers = None,
    out: Out = None,
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List images whose label every model contradicts, the likeliest errors first."""
    from counterlens.workflows.curate.triage import triage as run_triage

    made = run_triage(
        pool,
        models=models,
        classes=classes,
        most=most,
        explained=explained,
        alias=alias,
        limit=limit,
        shard=shard,
        on=on,
        workers=workers,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
    )
    finish(made, as_json=as_json, quiet=quiet)


@curate.command("review")
def review(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a curation.")],
    reviewer: Annotated[str, typer.Option(help="Your name, kept with each verdict.")] = "",
    adjudicate: Annotated[
        bool, typer.Option("--adjudicate", help="Settle images that reviewers disagree on.")
    ] = False,
    sheet: Annotated[
        Path | None, typer.Option(help="Write a page to review in a browser, and stop.")
    ] = None,
    take: Annotated[
        list[Path], typer.Option(help="Verdicts that such a page saved. May be repeated.")
    ] = [],
    export: Annotated[
        Path | None, typer.Option(help="Write all verdicts as JSON lines, and stop.")
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Only say how far the review has come.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Judge the shortlist: accept, reject or unsure, in the terminal or on a page."""
    from counterlens.workflows.curate.review import review as run_review

    found = run_review(
        run,
        reviewer=reviewer,
        adjudicate=adjudicate,
        sheet=sheet,
        take=take,
        export=export,
        status=status,
        quiet=quiet,
    )
    print(json.dumps(found, indent=1, ensure_ascii=False) if as_json else found["store"])


@curate.command("freeze")
def freeze(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a curation.")],
    out: Annotated[Path, typer.Option(help="Folder of the data set to create.")],
    form: Annotated[
        str, typer.Option("--format", help="folder (a folder per class) or webdataset (tar files).")
    ] = "folder",
    held_out: Annotated[
        list[str],
        typer.Option(
            help="A model whose weights were no filter: does it fall too? May be repeated."
        ),
    ] = [],
    unreviewed: Annotated[
        bool, typer.Option("--unreviewed", help="Freeze the whole shortlist, reviewed or not.")
    ] = False,
    least: Annotated[int, typer.Option(help="Reviewers who must have judged an image.")] = 1,
    keep_metadata: Annotated[
        bool, typer.Option("--keep-metadata", help="Leave EXIF and GPS data in the files.")
    ] = False,
    on: On = "here",
    workers: Workers = None,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: TrustRemote = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the accepted images as a data set with a card, and check that it transfers."""
    from counterlens.workflows.curate.freeze import freeze as run_freeze

    card = run_freeze(
        run,
        out=out,
        form=form,
        held_out=held_out,
        unreviewed=unreviewed,
        least=least,
        keep_metadata=keep_metadata,
        on=on,
        workers=workers,
        seed=seed,
        device=device,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
    )
    print(json.dumps(card, indent=1, ensure_ascii=False) if as_json else out)
