"""What each figure and table of a paper can be asked for."""

from counterlens.workflows._shared.options import Compute, Output, Resumable, option, record


@record
class FigureOptions(Output, Resumable, Compute):
    """Options of the figures of the RATIO paper."""

    models: tuple[str, ...] = option(
        ("zoo:cifar10-plain-small", "zoo:cifar10-ratio-small"),
        help="Models to compare, plain first.",
        flag="--model",
        unit="MODEL",
        group="Models and data",
    )
    data: str | None = option(
        "sample:cifar10",
        help="Real images, those of the test.",
        unit="SPEC",
        group="Models and data",
    )
    shown: int = option(4, help="How many images to show.", unit="N", group="Search")
    steps: int = option(500, help="Steps of the search in pixel space.", unit="N", group="Search")
    radius: tuple[str, ...] = option(
        (), help="Budget, e.g. 0.5, in l2. Default: six, by size.", unit="RADIUS", group="Search"
    )


@record
class OodFigureOptions(FigureOptions):
    """Options of those figures of the RATIO paper that show images of anything else."""

    ood: tuple[str, ...] = option(
        (),
        help="Out-of-distribution images, [NAME=]SPEC. Default: sample:textures.",
        unit="SPEC",
        group="Models and data",
    )


@record
class GradientFigureOptions(Output, Resumable, Compute):
    """Options of Figure 13 of the DiG-IN paper."""

    model: str = option(
        "zoo:cifar10-plain-small",
        help="The model: its gradients are shown.",
        unit="MODEL",
        group="Models and data",
    )
    data: str | None = option(
        "sample:cifar10",
        help="Real images, with masks of the objects or without.",
        unit="SPEC",
        group="Models and data",
    )
    mask: tuple[str, ...] = option(
        (),
        help="Mask of the object. One folder of them. Default: the set's own, else images are "
        "drawn.",
        unit="MASK",
        group="Models and data",
    )
    generator: str | None = option(
        None,
        help="Diffusers folder or hub id. Default: the shipped one that fits.",
        unit="FOLDER",
        group="Models and data",
    )
    shown: int = option(4, help="How many images to show.", unit="N", group="Search")


@record
class Table1Options(Output, Compute):
    """Options of Table 1 of the RATIO paper; all but `rerun` need it."""

    rerun: str | None = option(
        None,
        help="Row to audit again, by its recipe; NAME=MODEL for one that you trained.",
        unit="NAME[=MODEL]",
        group="Audit of a row",
    )
    data: str | None = option(
        "sample:cifar10",
        help="Real images, of that audit.",
        unit="SPEC",
        group="Audit of a row",
    )
    ood: tuple[str, ...] = option(
        (), help="Out-of-distribution images, [NAME=]SPEC.", unit="SPEC", group="Audit of a row"
    )
    calibrate: str | None = option(
        "sample:cifar10-calibration",
        help="Images to fit the temperature on.",
        unit="SPEC",
        group="Audit of a row",
    )
    points: int | None = option(
        None,
        help="How many images to attack. Default: as its card says.",
        unit="N",
        group="Audit of a row",
    )
