"""Options of explain: a record for each method, so that no option is given to one without it."""

from counterlens.workflows._shared.generation.search_options import (
    GENERATOR,
    IMAGES,
    GeneratorOption,
    HalfOption,
    Judges,
    MemoryOption,
    PixelSearch,
    Robust,
    SearchSettings,
    captioner,
    mask,
    own_guidance,
    own_sampling_steps,
    sampling_steps,
    updates,
)
from counterlens.workflows._shared.options import (
    Compute,
    Output,
    Resumable,
    TrustOption,
    option,
    record,
)


@record
class ExplainOptions(Output, Resumable, Compute, TrustOption):
    """Of every method."""

    limit: int | None = option(
        None,
        help="Use only this many images of each set. Default: 16.",
        unit="N",
        group=IMAGES,
    )
    worst: int | None = option(
        None,
        help="How many of its surest mistakes are explained, where an audit's folder stands in "
        "place of the model. Default: 8.",
        unit="N",
        group=IMAGES,
    )
    slice_number: int | None = option(
        None,
        help="Only mistakes of this confirmed slice of the audit (audit --slices), by its number.",
        unit="N",
        flag="--slice",
        group=IMAGES,
    )
    train: str | None = option(
        None,
        help="Images among which the nearest to an audit's mistakes are sought. Default: those "
        "that its temperature was fitted on.",
        unit="SPEC",
        group=IMAGES,
    )


@record
class TargetOptions:
    """Of methods that explain a class."""

    target: tuple[str, ...] = option(
        (),
        help="Class by name or number, or true, predicted, near (the default of counterfactuals), "
        "near:head, near:wordnet, all, random.",
        unit="CLASS",
        group=IMAGES,
    )


@record
class PixelOptions(PixelSearch, ExplainOptions, Judges, TargetOptions):
    """Options of explain pixel."""


@record
class DiffusionOptions(
    SearchSettings, HalfOption, MemoryOption, GeneratorOption, ExplainOptions, Judges, TargetOptions
):
    """Options of explain diffusion."""

    caption: tuple[str, ...] = option(
        (),
        help='What the image shows, with its class word. Default: "a photograph of a CLASS".',
        unit="TEXT",
        group=GENERATOR,
    )
    captioner: str | None = captioner("which writes the captions")
    mask: tuple[str, ...] = mask(
        "A picture, white on it, of all images or of each; U2-Net as .onnx; sam:FOLDER or "
        "sam:OWNER/MODEL, Segment Anything at points of attention; attention. Default: the set's "
        "own, else attention."
    )
    sampling_steps: int | None = own_sampling_steps(20)
    updates: int = updates(20)
    rounds: int | None = option(
        None,
        help="Searches again where confidence is below 0.8. Default: 1 below 128 pixels, else 0.",
        unit="N",
        group=GENERATOR,
    )
    guidance: float | None = own_guidance()
    reference: bool = option(
        False, help="Mix words as the paper's code does, faults included.", group=GENERATOR
    )


@record
class DvceOptions(HalfOption, GeneratorOption, ExplainOptions, Judges, Robust, TargetOptions):
    """Options of explain dvce."""

    sampling_steps: int = sampling_steps(200, ", of which the second half is walked")
    batch: int | None = option(
        None, help="Images per batch. Default: by size.", unit="N", group=GENERATOR, scope="run"
    )


@record
class CamOptions(ExplainOptions, TargetOptions):
    """Options of explain cam."""


@record
class EditOptions(ExplainOptions):
    """Options of explain colour and explain frame: those of every method."""


METHODS: dict[str, type[ExplainOptions]] = {
    "pixel": PixelOptions,
    "diffusion": DiffusionOptions,
    "dvce": DvceOptions,
    "cam": CamOptions,
    "colour": EditOptions,
    "frame": EditOptions,
}
