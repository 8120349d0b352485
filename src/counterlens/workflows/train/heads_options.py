"""What a training of three heads can be asked to do."""

from counterlens.workflows._shared.options import (
    Compute,
    Output,
    Resumable,
    TrustOption,
    option,
    record,
)


@record
class HeadsOptions(Output, Resumable, Compute, TrustOption):
    """Options of the recipe heads."""

    counterfactuals: str | None = option(
        None, help="Manifest of cgn compose: RUN/counterfactuals.jsonl.", unit="SPEC", group="Data"
    )
    arm: str = option(
        "both", help="Train on both, on originals alone, or on counterfactuals alone.",
        group="Training", choices=("both", "originals", "counterfactuals"),
    )  # fmt: skip
    trunk: str = option(
        "frozen", help="frozen: only the heads learn, on stored features; or trained.",
        group="Training", choices=("frozen", "trained"),
    )  # fmt: skip
    side: int = option(
        128, help="Side of the images the network takes.", unit="N", group="Training"
    )
    epochs: int | None = option(
        None, help="Passes over the originals. Default: 40 with a frozen trunk, 4 with a trained.",
        unit="N", group="Training",
    )  # fmt: skip
    batch: int = option(
        32, help="Originals per update, and as many counterfactuals.", unit="N", group="Training"
    )
    lr: float = option(1e-3, help="Rate of the heads; of a trunk a tenth.", group="Training")
    held_out: float | None = option(
        None, help="Share of each class that is only measured on. Default: 0.2, at most 2,000.",
        unit="SHARE", group="Training",
    )  # fmt: skip
