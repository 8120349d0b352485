"""What each part of a curation can be asked to do."""

from pathlib import Path

from counterlens.workflows._shared.options import (
    Compute,
    Distributed,
    Output,
    Printed,
    Resumable,
    TrustOption,
    option,
    record,
)


@record
class Pooled:
    """Of commands that read a pool of images in the classes of a model."""

    alias: tuple[str, ...] = option(
        (), help="The pool's name for a class.", unit="NAME=CLASS", group="Pool"
    )


@record
class Sharded(Distributed):
    """Of commands that classify a whole pool, shard by shard."""

    limit: int | None = option(
        None, help="Use only this many images of each set.", unit="N", group="Pool"
    )
    shard: int = option(512, help="Images per shard, the unit of --resume.", unit="N", group="Run")


@record
class Mining(Output, Resumable, Compute, TrustOption, Sharded, Pooled):
    """What `curate adversarial` and `curate ood` share."""

    filters: tuple[str, ...] = option(
        help="A model that every image of the result must fool.",
        flag="--filter",
        unit="MODEL",
        group="Filters",
    )
    shortlist: int | None = option(
        None,
        help="How many images go to review. Default: all that are left.",
        unit="N",
        group="Filters",
    )
    bits: int = option(
        6,
        help="Hashes that differ in at most so many of 64 bits are copies; -1: never.",
        unit="N",
        group="Screens",
    )
    cosine: float = option(
        0.97,
        help="Cosine from which on two are alike: here features of images; 0: never.",
        unit="SHARE",
        group="Screens",
    )
    least_side: int | None = option(
        None,
        help="Shortest side of a usable image. Default: half of the model's input.",
        unit="N",
        group="Screens",
    )
    licence: str = option(
        "", help="Licence of images whose set does not state it.", unit="TEXT", group="Pool"
    )
    source: str = option(
        "", help="Source of images whose set does not state it.", unit="TEXT", group="Pool"
    )


@record
class AdversarialOptions(Mining):
    """Options of curate adversarial."""

    label_space: str = option(
        "pool",
        help="Classes in which answers count: pool, all, a space such as imagenet-a, or a file.",
        flag="--classes",
        unit="CLASSES",
        group="Pool",
    )
    confidence: float = option(
        0.15,
        help="Bound on the probability: a filter may give the label at most this.",
        unit="SHARE",
        group="Filters",
    )
    per: str = option(
        "crop",
        help="That holds for each crop, or for the mean of ten: crop or mean.",
        unit="VIEW",
        group="Filters",
        choices=("crop", "mean"),
    )
    confusion: int = option(
        15, help="Most images of one label and answer.", unit="N", group="Filters"
    )
    egregious: bool = option(
        False, help="Drop confusions within a WordNet group, dog for dog.", group="Filters"
    )
    against: tuple[str, ...] = option(
        (),
        help="A set of which no image may leak in, such as training data.",
        unit="SPEC",
        group="Screens",
    )
    tags: int = option(
        200,
        help="How many images are probed for why the filter fails.",
        unit="N",
        group="Filters",
    )


@record
class OodOptions(Mining):
    """Options of curate ood."""

    label_space: str = option(
        "all",
        help="Classes in which answers count: pool, all, a space such as imagenet-o, or a file.",
        flag="--classes",
        unit="CLASSES",
        group="Pool",
    )
    confidence: float = option(
        0.5,
        help="Bound on the probability: a filter must give its answer at least this.",
        unit="SHARE",
        group="Filters",
    )
    per_answer: int | None = option(
        None, help="Most images of one answer.", unit="N", group="Filters"
    )
    inside: str | None = option(
        None,
        help="Images of the known classes, to compare with and to keep out.",
        unit="SPEC",
        group="Screens",
    )


@record
class ClassesOptions(Output, TrustOption, Pooled):
    """Options of curate classes."""

    model: str = option(
        help="The model: its classes are chosen from.", unit="MODEL", group="Choice"
    )
    least: int = option(5, help="At least so many: images of a class.", unit="N", group="Choice")
    cosine: float = option(
        0.45,
        help="Cosine from which on two are alike: here rows of the last layer, of classes.",
        unit="SHARE",
        group="Choice",
    )
    per_group: int | None = option(
        None, help="Most classes of one WordNet group. Default: all.", unit="N", group="Choice"
    )
    device: str = option("auto", help="auto, cpu, cuda, cuda:1, mps.", group="Run", scope="run")


@record
class TriageOptions(Output, Resumable, Compute, TrustOption, Sharded, Pooled):
    """Options of curate triage."""

    models: tuple[str, ...] = option(
        help="Models to compare: all must agree against the label.",
        flag="--model",
        unit="MODEL",
        group="Models",
    )
    label_space: str = option(
        "pool",
        help="Classes in which answers count: pool, all, a space such as imagenet-a, or a file.",
        flag="--classes",
        unit="CLASSES",
        group="Pool",
    )
    most: int = option(100, help="Length of the queue.", unit="N", group="Models")
    explained: int = option(
        6, help="How many of its first images get counterfactuals.", unit="N", group="Models"
    )


@record
class ReviewOptions(Printed):
    """Options of curate review."""

    reviewer: str = option(
        "", help="Your name, stored with each verdict.", unit="NAME", group="Review", scope="run"
    )
    adjudicate: bool = option(
        False, help="Settle images that reviewers disagree on.", group="Review", scope="run"
    )
    sheet: Path | None = option(
        None,
        help="Write a page to review in a browser, and stop.",
        unit="FILE",
        group="Review",
        scope="run",
    )
    take: tuple[Path, ...] = option(
        (), help="Verdicts that such a page saved.", unit="FILE", group="Review", scope="run"
    )
    export: Path | None = option(
        None,
        help="Write all verdicts as JSON lines, and stop.",
        unit="FILE",
        group="Review",
        scope="run",
    )
    status: bool = option(
        False, help="Only print how far the review has come.", group="Review", scope="run"
    )


@record
class FreezeOptions(Output, Compute, TrustOption, Distributed):
    """Options of curate freeze; `out` must be given."""

    form: str = option(
        "folder",
        help="folder (a folder per class) or webdataset (tar files).",
        flag="--format",
        unit="FORMAT",
        group="Data set",
        choices=("folder", "webdataset"),
    )
    held_out: tuple[str, ...] = option(
        (),
        help="A model whose weights were no filter: does it fail too?",
        unit="MODEL",
        group="Data set",
    )
    unreviewed: bool = option(
        False, help="Freeze the whole shortlist, reviewed or not.", group="Data set"
    )
    least: int = option(
        1, help="At least so many: reviewers of an image.", unit="N", group="Data set"
    )
    keep_metadata: bool = option(
        False, help="Leave EXIF and GPS data in the files.", group="Data set"
    )


@record
class OutdataOptions(Output, Compute):
    """Options of outdata."""

    model: str = option(
        "auto",
        help="The model: its features find images that look like IN; none, or auto, a shipped one "
        "of the same classes.",
        unit="MODEL",
        group="Screens",
    )
    drop: tuple[str, ...] = option(
        (), help="A class of POOL that shows a class of IN.", unit="CLASS", group="Screens"
    )
    keep: tuple[str, ...] = option(
        (), help="A class of POOL to keep whatever its name or looks.", unit="CLASS",
        group="Screens",
    )  # fmt: skip
    most_bits: int = option(
        10, help="Bits of 64 in which the hash of a copy may differ.", unit="N", group="Screens"
    )
    typical: float = option(
        0.5,
        help="An image looks like IN if it is as near to it as this share of IN is to itself.",
        unit="SHARE",
        group="Screens",
    )
    limit: int | None = option(
        None,
        help="Use only this many images of each set; here of POOL alone.",
        unit="N",
        group="Pool",
    )


@record
class LabelsOptions(Output, Compute, TrustOption):
    """Options of curate labels."""

    model: str = option(
        help="The model: its features tell the classes apart.",
        unit="MODEL",
        group="Models",
        scope="objects",
    )
    folds: int = option(5, help="Parts that take turns.", unit="N", group="Models")
    most: int = option(100, help="Length of the queue.", unit="N", group="Models")
    limit: int | None = option(
        None, help="Use only this many images of each set.", unit="N", group="Pool"
    )
    features: Path | None = option(
        None,
        help="Folder of stored features. Default: COUNTERLENS_CACHE or the user's cache.",
        unit="FOLDER",
        group="Run",
        scope="run",
    )


@record
class RelabelOptions(Printed):
    """Options of curate relabel."""

    to: Path = option(help="File to write: path, id, label.", unit="FILE.csv", group="Labels")
    root: Path | None = option(
        None, help="Folder that the ids are paths in.", unit="FOLDER", group="Labels"
    )
    take_answers: bool = option(
        False,
        help="A rejected label without a class as a tag becomes the model's answer.",
        group="Labels",
    )
    least: int = option(1, help="At least so many: reviewers of an image.", unit="N",
                        group="Labels")  # fmt: skip
