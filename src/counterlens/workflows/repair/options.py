"""What a repair can be asked to do."""

from pathlib import Path

from counterlens.workflows._shared.options import Compute, Output, Trust, option, record

DATA, HOW, PROOF = "Images and groups", "Remedies", "Proof"


@record
class RepairOptions(Output, Compute, Trust):
    """Options of repair."""

    fix: str = option(
        help="Labelled images: one half fits, the other chooses.",
        unit="SPEC",
        group=DATA,
        scope="objects",
    )
    check: str = option(
        help="Other labelled images, which prove the repair and decide nothing before.",
        unit="SPEC",
        group=DATA,
        scope="objects",
    )
    groups_from: str = option(
        help="What names the groups: column:NAME of both sets, masks:SPEC, shortcut:RUN of neurons "
        "spurious, tags:RUN of a review, or none (the model's errors).",
        unit="SOURCE",
        flag="--groups",
        group=DATA,
    )
    pairs: str | None = option(
        None,
        help="Edit that changes the shortcut alone: patch:FILE@TOP,LEFT,HEIGHT,WIDTH, "
        "box:TOP,LEFT,HEIGHT,WIDTH, masks:SPEC, or column:NAME, whose text two versions of an "
        "image share.",
        unit="EDIT",
        group=DATA,
    )
    remedies: tuple[str, ...] = option(
        (),
        help="temperature, prior, spufix, erase, refit, class-weights, group-weights, dfr, pairs, "
        "jtt; several with commas. Default: all but temperature that can run.",
        unit="REMEDY",
        flag="--with",
        group=HOW,
    )
    want: str = option(
        "groups.worst",
        help="What should rise: groups.worst or accuracy.top1.",
        unit="KEY",
        choices=("groups.worst", "accuracy.top1"),
        group=PROOF,
    )
    allow: tuple[str, ...] = option(
        (),
        help='Loss that must be ruled out beyond, e.g. "accuracy.top1:-0.01".',
        unit="KEY:CHANGE",
        group=PROOF,
    )
    plan: bool = option(
        False,
        help="Print group sizes, cost and the smallest change that could be shown; fit nothing.",
        group=PROOF,
    )
    features: Path | None = option(
        None,
        help="Folder of stored features. Default: COUNTERLENS_CACHE or the user's cache.",
        unit="FOLDER",
        group="Run",
        scope="run",
    )
