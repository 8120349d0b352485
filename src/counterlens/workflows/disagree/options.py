"""Options of disagree."""

from counterlens.workflows._shared.generation.search_options import (
    GeneratorOption,
    GraphOption,
    HalfOption,
    MemoryOption,
    SearchSettings,
    guidance,
    sampling_steps,
    updates,
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

MODELS, CHECKS = "Models and classes", "Checks on the images"


@record
class DisagreeOptions(
    Distributed,
    SearchSettings,
    HalfOption,
    GraphOption,
    MemoryOption,
    GeneratorOption,
    Output,
    Resumable,
    Compute,
    TrustOption,
):
    """Options of disagree."""

    classes: tuple[str, ...] = option(
        (),
        flag="--class",
        help="Class by name or number, or all.",
        unit="CLASS",
        group=MODELS,
    )
    count: int = option(
        10, help="Images to generate of each, per class and direction.", unit="N", group=MODELS
    )
    score: str = option(
        "auto",
        help="What is raised: difference or logarithms of confidences, or auto.",
        unit="SCORE",
        group=MODELS,
        choices=("auto", "difference", "logarithms"),
    )
    updates: int = updates(15)
    sampling_steps: int = sampling_steps(25)
    guidance: float = guidance()
    verify: str | None = option(
        None,
        help="Real labelled images on which findings are checked.",
        unit="SPEC",
        group=CHECKS,
        scope="objects",
    )
    judge: tuple[str, ...] = option(
        (),
        flag="--with",
        help="Another model, which sides with one of the two.",
        unit="MODEL",
        group=CHECKS,
        scope="objects",
    )
    persist: tuple[str, ...] = option(
        (),
        help="Another second model to repeat the search with.",
        unit="MODEL",
        group=CHECKS,
        scope="objects",
    )
    require: tuple[str, ...] = option(
        (),
        help='Release gate, e.g. "disagree.first.real.high<=0.02".',
        unit="RULE",
        group=CHECKS,
    )
