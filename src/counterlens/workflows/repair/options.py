"""What a repair can be asked to do."""

from pathlib import Path

from counterlens.workflows._shared.options import Compute, Output, TrustOption, option, record

DATA, HOW, PROOF = "Images and groups", "Remedies", "Proof"


@record
class RepairOptions(Output, Compute, TrustOption):
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
        "spurious, tags:RUN of a review, slices:RUN of audits of both sets, or none (the model's "
        "errors).",
        unit="SOURCE",
        flag="--groups",
        group=DATA,
    )
    pairs: str | None = option(
        None,
        help="Edit that changes the shortcut alone: patch:FILE@TOP,LEFT,HEIGHT,WIDTH, "
        "box:TOP,LEFT,HEIGHT,WIDTH, masks:SPEC, stylised:WEIGHTS[@STYLES] (AdaIN), files:FOLDER of "
        "edited versions under the names of the images, run:FOLDER of explain, cgn compose or a "
        "plan whose pairs were judged, or column:NAME, whose text two versions of an image share.",
        unit="EDIT",
        group=DATA,
    )
    remedies: tuple[str, ...] = option(
        (),
        help="temperature, prior, spufix, erase, refit, class-weights, group-weights, dfr, pairs, "
        "jtt, or recipe:NAME, which trains the whole network further; several with commas. "
        "Default: all but temperature and recipes that can run.",
        unit="REMEDY",
        flag="--with",
        group=HOW,
    )
    out_data: str | None = option(
        None,
        help="Images of anything else, for recipes that train with them.",
        unit="SPEC",
        group=HOW,
        scope="objects",
    )
    changes: tuple[str, ...] = option(
        (),
        help="Change a setting, e.g. epochs=2, lr=0.01, near.radius=0.25 of the recipes.",
        unit="KEY=VALUE",
        flag="--set",
        group=HOW,
    )
    want: str = option(
        "groups.worst",
        help="What should rise: groups.worst, accuracy.top1, robust.BALL.accuracy (with --attack), "
        "ood.NAME.auroc (with --ood).",
        unit="KEY",
        group=PROOF,
    )
    allow: tuple[str, ...] = option(
        (),
        help='Loss that must be ruled out beyond, e.g. "accuracy.top1:-0.01".',
        unit="KEY:CHANGE",
        group=PROOF,
    )
    ood: tuple[str, ...] = option(
        (),
        help="Out-of-distribution images, [NAME=]SPEC; one half chooses, the other proves.",
        unit="SPEC",
        group=PROOF,
        scope="objects",
    )
    attack: tuple[str, ...] = option(
        (), help="Robustness test, e.g. l2:0.5; recipes train for the first.", unit="BALL",
        group=PROOF,
    )  # fmt: skip
    attack_version: str = option(
        "fast", help="standard, plus, rand, ratio-era, or fast (APGD alone).", unit="VERSION",
        group=PROOF, choices=("standard", "plus", "rand", "ratio-era", "fast"),
    )  # fmt: skip
    attack_points: int = option(
        200, help="How many images to attack: of each split, drawn by the seed.", unit="N",
        group=PROOF,
    )  # fmt: skip
    plan: bool = option(
        False,
        help="Print group sizes, cost and the smallest change that could be shown; fit nothing.",
        group=PROOF,
    )
    write_pairs: int = option(
        0,
        help="With --plan: write so many pairs to judge in the app; then --pairs run:FOLDER.",
        unit="N",
        group=PROOF,
    )
    features: Path | None = option(
        None,
        help="Folder of stored features. Default: COUNTERLENS_CACHE or the user's cache.",
        unit="FOLDER",
        group="Run",
        scope="run",
    )
