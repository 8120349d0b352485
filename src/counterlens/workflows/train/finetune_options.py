"""What a fine-tuning can be asked to do. What is not given is derived from the data."""

from counterlens.workflows._shared.options import (
    Compute,
    Output,
    Resumable,
    TrustOption,
    option,
    record,
)


@record
class FinetuneOptions(Output, Resumable, Compute, TrustOption):
    """Options of finetune."""

    epochs: int | None = option(
        None, help="Passes over the training images. Default: about 120 updates in all, 3 to 30.",
        unit="N", group="Training",
    )  # fmt: skip
    batch: int | None = option(
        None, help="Images per update. Default: a quarter of the training images, 4 to 64.",
        unit="N", group="Training",
    )  # fmt: skip
    lr: float | None = option(
        None, help="Learning rate of AdamW. Default: the best of three, tried on training images.",
        unit="RATE", group="Training",
    )  # fmt: skip
    held_out: float | None = option(
        None, help="Share of each class that is only measured on. Default: 0.2, at most 2,000.",
        unit="SHARE", group="Training",
    )  # fmt: skip
    classes: str = option(
        "auto", help="keep (the network's), data (a new last layer), or auto: keep if all fit.",
        group="Training", choices=("auto", "keep", "data"),
    )  # fmt: skip
    freeze_norms: bool | None = option(
        None, help="Batch norm keeps its statistics. Default: below 1,000 training images.",
        unit="BOOL", group="Training",
    )  # fmt: skip
    augment: str = option(
        "crop-flip", help="crop-flip, crop (writing, digits: nothing is mirrored), or none.",
        group="Training", choices=("crop-flip", "crop", "none"),
    )  # fmt: skip
