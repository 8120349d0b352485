"""Options of searches for images, in pixel space and by a generator. Nothing here loads torch."""

from typing import Any

from counterlens.workflows._shared.options import option, record

IMAGES, SEARCH, GENERATOR = "Model and images", "Search in pixel space", "Generator"
NORMS = ("l2", "linf", "l1", "l1.5")


@record
class GeneratorOption:
    """Of workflows that draw with a generator."""

    generator: str | None = option(
        None,
        help="Diffusers folder or hub id. Default: the shipped one that fits.",
        unit="FOLDER",
        group=GENERATOR,
    )


@record
class MemoryOption:
    """Of workflows that compute gradients through a generator."""

    memory: str | None = option(
        None,
        help="Memory to use, e.g. 12GB. Default: most of what is free.",
        unit="SIZE",
        group=GENERATOR,
        scope="run",
    )


@record
class HalfOption:
    """Of workflows whose generator may compute in half precision."""

    half: bool = option(False, help="Generator in half precision (bfloat16).", group=GENERATOR)


@record
class GraphOption:
    """Of workflows that draw many images in the same way, step by step."""

    graphs: bool = option(
        False,
        help="Replay the network as CUDA graphs: faster where few images fit at a time.",
        group=GENERATOR,
        scope="run",
    )


@record
class SearchSettings:
    """Of workflows whose search has settings that are seldom changed."""

    changes: tuple[str, ...] = option(
        (),
        flag="--set",
        help="Change a setting: text_rate, noise_rate, cuts, … of the generator's search; of an "
        "edit also edit.latent_weight, edit.pixel_weight, edit.inner, …",
        unit="KEY=VALUE",
        group=GENERATOR,
    )


def updates(default: int) -> Any:
    """The option --updates; its default differs between searches."""
    return option(default, help="Updates of the generator's inputs.", unit="N", group=GENERATOR)


def sampling_steps(default: int, more: str = "") -> Any:
    """The option --sampling-steps; `more` stands behind its meaning."""
    return option(default, help=f"Steps of the diffusion chain{more}.", unit="N", group=GENERATOR)


def guidance() -> Any:
    """The option --guidance."""
    return option(3.0, help="How strongly the text guides.", unit="WEIGHT", group=GENERATOR)


def own_sampling_steps(usual: int) -> Any:
    """The option --sampling-steps where a generator of few steps brings its own."""
    text = f"Steps of the diffusion chain. Default: {usual}, or the generator's own."
    return option(None, help=text, unit="N", group=GENERATOR)


def own_guidance() -> Any:
    """The option --guidance where a generator of few steps brings its own."""
    text = "How strongly the text guides. Default: 3, or the generator's own."
    return option(None, help=text, unit="WEIGHT", group=GENERATOR)


def captioner(more: str) -> Any:
    """The option --captioner; `more` says what its captions are for."""
    return option(
        None, help=f"Hub id or folder of a captioner, {more}.", unit="FOLDER", group=GENERATOR
    )


def mask(more: str) -> Any:
    """The option --mask; `more` says what it may be."""
    return option((), help=f"Mask of the object. {more}", unit="MASK", group=GENERATOR)


def pixel_steps(default: int, more: str = "") -> Any:
    """The option --steps; `more` stands behind its meaning."""
    return option(
        default, help=f"Steps of the search in pixel space{more}.", unit="N", group=SEARCH
    )


@record
class Judges:
    """Of methods whose images other models are shown."""

    judge: tuple[str, ...] = option(
        (),
        flag="--with",
        help="Another model, which says what it sees. By diffusion it guides, too.",
        unit="MODEL",
        group=IMAGES,
        scope="objects",
    )


@record
class Robust:
    """Of DVCE, which a robust model helps."""

    robust: str | None = option(
        None,
        help="Robust model, whose gradients help DVCE. In evaluate pixels explain it, too.",
        unit="MODEL",
        group=IMAGES,
        scope="objects",
    )


@record
class PixelSearch:
    """Of searches in pixel space."""

    radius: tuple[str, ...] = option(
        (),
        help="Budget, e.g. 1.5 or 8/255. Default: six, by the size of the image; of an audit two.",
        unit="RADIUS",
        group=SEARCH,
    )
    norm: str = option("l2", help="l2, linf, l1 or l1.5.", choices=NORMS, group=SEARCH)
    steps: int = pixel_steps(100, "; finer: 500")
    batch: int | None = option(
        None, help="Images per batch. Default: by size.", unit="N", group=SEARCH, scope="run"
    )
