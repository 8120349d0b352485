"""What trainings can be asked to do; everything that is trained by stands in their recipes."""

from pathlib import Path

from counterlens.workflows._shared.options import Output, Resumable, option, record


@record
class Training(Output, Resumable):
    """Of all trainings by settings; the settings themselves are kept as the recipe."""

    changes: tuple[str, ...] = option(
        (),
        help="Change a setting, e.g. epochs=30.",
        flag="--set",
        unit="KEY=VALUE",
        group="Training",
        scope="run",
    )
    max_minutes: float | None = option(
        None,
        help="Stop after so long; --resume goes on.",
        unit="MINUTES",
        group="Training",
        scope="run",
    )
    cache: Path | None = option(
        None,
        help="Folder for decoded images. Default: COUNTERLENS_CACHE or the user's cache.",
        unit="FOLDER",
        group="Training",
        scope="run",
    )
    seed: int = option(0, help="Seed of everything random.", unit="N", group="Run")
    device: str = option("auto", help="auto, cpu, cuda, cuda:1, mps.", group="Run", scope="run")


@record
class TrainOptions(Training):
    """Options of train."""

    data: str | None = option(
        None,
        help="Real images, those to train on, with their classes.",
        unit="SPEC",
        group="Data",
        scope="command",
    )
    out_data: str | None = option(
        None,
        help="Images of anything else, for losses that need them.",
        unit="SPEC",
        group="Data",
    )
    list_recipes: bool = option(
        False, help="List the recipes.", flag="--list", group="Training", scope="command"
    )


@record
class ClipOptions(Training):
    """Options of the training of an image–text pair."""

    test: str | None = option(
        None,
        help="Labelled images of the same classes, which the exported pair classifies.",
        unit="SPEC",
        group="Data",
        scope="run",
    )


@record
class DiffusionTraining(Training):
    """Options of the training of a diffusion model."""

    recipe: str = option(
        "cifar10-diffusion",
        help="cifar10-diffusion, or photos-diffusion: 128 pixels.",
        unit="NAME",
        group="Training",
        scope="run",
    )
    test: str | None = option(
        None, help="Test images of the first set's classes.", unit="SPEC", group="Data"
    )
    judge: str | None = option(
        None,
        help="Classifier that says whether samples show what the prompt names.",
        unit="MODEL",
        group="Data",
    )


@record
class FewStepTraining(Training):
    """Options of the distillation of a diffusion model to few steps."""

    generator: str = option(
        "zoo:cifar10-diffusion",
        help="The teacher: a diffusers folder, or zoo:NAME.",
        unit="FOLDER",
        group="Training",
    )
    recipe: str = option(
        "cifar10-diffusion-few",
        help="cifar10-diffusion-few, or photos-diffusion-few: 128 pixels.",
        unit="NAME",
        group="Training",
        scope="run",
    )
    test: str | None = option(
        None, help="Test images of the first set's classes.", unit="SPEC", group="Data"
    )
    judge: str | None = option(
        None,
        help="Classifier that says whether samples show what the prompt names.",
        unit="MODEL",
        group="Data",
    )


@record
class QualityOptions(Output, Resumable):
    """Options of measuring a generator again."""

    judge: str = option(
        help="Classifier that says whether samples show what the prompt names.", unit="MODEL"
    )
    test: str = option(help="Test images of the generator's classes.", unit="SPEC")
    train: str | None = option(None, help="Its training images.", unit="SPEC")
    count: int = option(1000, help="How many images to draw.", unit="N")
    seed: int = option(0, help="Seed of everything random.", unit="N", group="Run")
    device: str = option("auto", help="auto, cpu, cuda, cuda:1, mps.", group="Run")
