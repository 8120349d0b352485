"""Options of neurons: a record for each method, so that no option is given to one without it."""

from pathlib import Path

from counterlens.workflows._shared.generation.search_options import (
    GENERATOR,
    GeneratorOption,
    GraphOption,
    HalfOption,
    MemoryOption,
    SearchSettings,
    captioner,
    mask,
)
from counterlens.workflows._shared.options import (
    Compute,
    Distributed,
    Output,
    Resumable,
    TrustOption,
    option,
    record,
)

FEATURES, IMAGES = "Features", "Images"


@record
class NeuronOptions(Output, Resumable, Compute, TrustOption):
    """Of every method."""


@record
class UnitOption:
    """Of methods that take units by number."""

    unit: tuple[int, ...] = option(
        (), help="Unit of the last layer but one, by number.", unit="N", group=FEATURES
    )


@record
class LogitOption:
    """Of methods that draw pictures from nothing."""

    logit: tuple[str, ...] = option(
        (), help="Class whose logit is raised, by name or number.", unit="CLASS", group=FEATURES
    )


@record
class ComponentOption:
    """Of methods that take components of classes."""

    npca: tuple[str, ...] = option(
        (),
        help="Component of a class, CLASS:NUMBER; CLASS for its first four; or all.",
        unit="CLASS[:NUMBER]",
        group=FEATURES,
    )


@record
class PictureOption:
    """Of methods that show features on pictures."""

    image: tuple[str, ...] = option(
        (),
        help="Picture file or place in a set, on which the features are shown and changed.",
        unit="IMAGE",
        group=IMAGES,
        scope="objects",
    )
    limit: int | None = option(
        None, help="Use only this many images of each set.", unit="N", group=IMAGES
    )


@record
class DataOption:
    """Of methods that compare with real images."""

    data: str | None = option(
        None, help="Real images, a folder or SPEC.", unit="SPEC", group=IMAGES, scope="objects"
    )


@record
class LabelledDataOption(DataOption):
    """Of methods that need real images of the classes."""

    data: str = option(
        help="Real images, a folder or SPEC.", unit="SPEC", group=IMAGES, scope="objects"
    )


@record
class ShowOptions(PictureOption, LogitOption, UnitOption, NeuronOptions):
    """Options of neurons show."""

    steps: int = option(256, help="Steps of the search in pixel space.", unit="N", group=FEATURES)


@record
class DrawOptions(
    Distributed,
    SearchSettings,
    HalfOption,
    GraphOption,
    MemoryOption,
    GeneratorOption,
    DataOption,
    LogitOption,
    UnitOption,
    NeuronOptions,
):
    """Options of neurons diffusion."""

    count: int = option(4, help="Images to generate of each, per unit.", unit="N", group=FEATURES)
    similar: int = option(
        0, help="Draw so many units most like each one, too.", unit="N", group=FEATURES
    )
    words: Path | None = option(
        None, help="More candidate words for the prompts, one a line.", unit="FILE", group=GENERATOR
    )
    captioner: str | None = captioner("whose captions of --data are candidates")


@record
class ComponentOptions(PictureOption, LabelledDataOption, ComponentOption, NeuronOptions):
    """Options of neurons npca."""


@record
class SpuriousOptions(
    HalfOption, GeneratorOption, LabelledDataOption, ComponentOption, UnitOption, NeuronOptions
):
    """Options of neurons spurious."""

    mask: tuple[str, ...] = mask(
        "A folder, key:NAME of a packed set, attention, or cam. Default: the set's own, else "
        "attention, else cam."
    )
    limit: int | None = option(
        None, help="Use only this many images of each set.", unit="N", group=IMAGES
    )


@record
class CounterfactualOptions(
    SearchSettings,
    HalfOption,
    MemoryOption,
    GeneratorOption,
    DataOption,
    PictureOption,
    ComponentOption,
    UnitOption,
    NeuronOptions,
):
    """Options of neurons counterfactual."""

    mask: tuple[str, ...] = mask(
        "A picture, white on it, of all images or of each; or a folder of them. Default: attention."
    )


METHODS: dict[str, type[NeuronOptions]] = {
    "show": ShowOptions,
    "diffusion": DrawOptions,
    "npca": ComponentOptions,
    "spurious": SpuriousOptions,
    "counterfactual": CounterfactualOptions,
}
